//go:build linux

package harness

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
)

// Repository is a repository of releases on loopback, as go-updater wants it:
// VERSION/OS/ARCH/release.json names a file beside it, the bzip2 of a program,
// and the sha256 of the program itself.
type Repository struct {
	// URL is what upgrades_repository says.
	URL string

	mu       sync.Mutex
	releases map[string]published
	requests []string
}

// published is a release with its release.json.
type published struct {
	Release
	spec []byte
	// delay is how long the program is kept back.
	delay time.Duration
}

const (
	specFile    = "release.json"
	programFile = "choria.bz2"
)

// StartRepository starts a repository without releases.
func StartRepository(t testing.TB) *Repository {
	t.Helper()

	r := &Repository{releases: map[string]published{}}
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	r.URL = server.URL

	return r
}

// Publish adds releases, each under its version.
func (r *Repository) Publish(t testing.TB, releases ...Release) {
	t.Helper()

	for _, release := range releases {
		r.PublishAs(t, release.Version, release)
	}
}

// PublishAs adds a release under a name of its own.
func (r *Repository) PublishAs(t testing.TB, version string, release Release) {
	t.Helper()

	r.publish(t, version, release.Digest(t), published{Release: release})
}

// PublishSlow adds a release whose program is kept back for a while.
func (r *Repository) PublishSlow(t testing.TB, release Release, delay time.Duration) {
	t.Helper()

	r.publish(t, release.Version, release.Digest(t), published{Release: release, delay: delay})
}

// PublishSpoilt adds a release with the digest of another one.
func (r *Repository) PublishSpoilt(t testing.TB, release, other Release) {
	t.Helper()

	r.publish(t, release.Version, other.Digest(t), published{Release: release})
}

func (r *Repository) publish(t testing.TB, version, digest string, p published) {
	t.Helper()

	spec, err := json.Marshal(map[string]string{"binary": programFile, "hash": digest})
	if err != nil {
		t.Fatal(err)
	}
	p.spec = spec
	r.mu.Lock()
	defer r.mu.Unlock()
	r.releases[version] = p
}

// Fetches are the paths that a server asks for to take a release, in order.
func Fetches(version string) []string {
	dir := path.Join("/", version, runtime.GOOS, runtime.GOARCH)

	return []string{path.Join(dir, specFile), path.Join(dir, programFile)}
}

// Requests are the paths that were asked for so far, in order.
func (r *Repository) Requests() []string {
	r.mu.Lock()
	defer r.mu.Unlock()

	return slices.Clone(r.requests)
}

// ServeHTTP implements http.Handler.
func (r *Repository) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	r.requests = append(r.requests, req.URL.Path)
	var found published
	for version, p := range r.releases {
		if slices.Contains(Fetches(version), req.URL.Path) {
			found = p
		}
	}
	r.mu.Unlock()

	switch {
	case found.spec == nil:
		http.NotFound(w, req)
	case path.Base(req.URL.Path) == specFile:
		_, _ = w.Write(found.spec)
	default:
		timer := time.NewTimer(found.delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-req.Context().Done():
			return
		}
		program, err := found.openCompressed()
		if err != nil {
			http.Error(w, fmt.Sprint(err), http.StatusInternalServerError)
			return
		}
		defer program.Close()
		_, _ = io.Copy(w, program)
	}
}
