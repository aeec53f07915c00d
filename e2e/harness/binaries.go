//go:build linux

// Package harness runs the provisioner against real Choria servers: every
// program is a process of its own, built from this checkout, on a broker in the
// test's process.
package harness

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// module is the module under test.
const module = "github.com/choria-provisioner/provisioner"

// Binaries are the paths of the built programs.
type Binaries struct {
	// Provisioner is the daemon.
	Provisioner string
	// ChoriaServer is internal/choriaserver.
	ChoriaServer string
	// ChoriaPing is internal/choriaping.
	ChoriaPing string
	// SiteHelper is e2e/sitehelper, a helper plugin of a site that needs no
	// certificates.
	SiteHelper string
	// Decider is e2e/decider, a helper plugin that decides about releases.
	Decider string
}

// Build builds the programs, once for all tests of a test binary: the go command
// finds them up to date after that.
func Build(t testing.TB) Binaries {
	t.Helper()

	dir := buildDir(t)
	run(t, moduleRoot(t), "go", "build", "-o", dir+"/", "./cmd/choria-provisioner", "./internal/choriaserver", "./internal/choriaping", "./e2e/sitehelper", "./e2e/decider")

	return Binaries{
		Provisioner:  filepath.Join(dir, "choria-provisioner"),
		ChoriaServer: filepath.Join(dir, "choriaserver"),
		ChoriaPing:   filepath.Join(dir, "choriaping"),
		SiteHelper:   filepath.Join(dir, "sitehelper"),
		Decider:      filepath.Join(dir, "decider"),
	}
}

// BuildExample builds one of the helper plugins in examples/, a module of its
// own, and returns its path.
func BuildExample(t testing.TB, name string) string {
	t.Helper()

	dir := buildDir(t)
	run(t, filepath.Join(moduleRoot(t), "examples"), "go", "build", "-o", dir+"/", "./"+name)

	return filepath.Join(dir, name)
}

// buildDir is where this test binary's programs go; another one's may be built at
// the same time.
func buildDir(t testing.TB) string {
	t.Helper()

	dir := filepath.Join(moduleRoot(t), "build", "e2e", filepath.Base(os.Args[0]))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}

	return dir
}

// oneAtATime keeps parallel tests from writing the same program at once.
var oneAtATime sync.Mutex

func moduleRoot(t testing.TB) string {
	t.Helper()

	return run(t, "", "go", "list", "-m", "-f", "{{.Dir}}", module)
}

// run runs a command in dir and returns what it prints.
func run(t testing.TB, dir string, command string, args ...string) string {
	t.Helper()

	oneAtATime.Lock()
	defer oneAtATime.Unlock()

	cmd := exec.Command(command, args...)
	cmd.Dir = dir
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, stderr.String())
	}

	return strings.TrimSpace(string(out))
}
