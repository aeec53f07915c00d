//go:build linux

package harness

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/choria-provisioner/provisioner/internal/choriaserver/trailer"
)

// Release is one release of the server's program.
type Release struct {
	// Version is what a server that runs it shows.
	Version string

	// program is a file that was linked, compressed the same as bzip2.
	program, compressed string
	// trailer is what comes after it.
	trailer []byte
}

// LinkRelease links the server with a version of its own, as small as it gets:
// a server that unpacks an update for longer than 20 s answers nobody.
func LinkRelease(t testing.TB, version string) Release {
	t.Helper()

	program := filepath.Join(buildDir(t), "choria-"+version)
	run(t, moduleRoot(t), "go", "build", "-trimpath", "-ldflags", "-s -w -X github.com/choria-io/go-choria/build.Version="+version,
		"-o", program, "./internal/choriaserver")

	return Release{Version: version, program: program, compressed: compress(t, program)}
}

// As is another release made of the same program: it says it runs that version,
// and has a fault unless that is empty.
func (r Release) As(t testing.TB, version string, fault trailer.Fault) Release {
	t.Helper()

	end, err := trailer.Trailer{Version: version, Fault: fault}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	r.Version, r.trailer = version, end

	return r
}

// open returns the bytes of the program.
func (r Release) open() (io.ReadCloser, error) { return openBefore(r.program, r.trailer) }

// openCompressed returns the program as bzip2, of which several streams in a row
// are one.
func (r Release) openCompressed() (io.ReadCloser, error) {
	if len(r.trailer) == 0 {
		return os.Open(r.compressed)
	}
	bzip2 := exec.Command("bzip2")
	bzip2.Stdin = bytes.NewReader(r.trailer)
	end, err := bzip2.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", bzip2, err)
	}

	return openBefore(r.compressed, end)
}

// openBefore returns the content of a file and then the end.
func openBefore(path string, end []byte) (io.ReadCloser, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}

	return struct {
		io.Reader
		io.Closer
	}{io.MultiReader(f, bytes.NewReader(end)), f}, nil
}

// install writes the program to a file and makes it executable.
func (r Release) install(t testing.TB, path string) {
	t.Helper()

	// A process that is forked meanwhile would hold the file open for writing,
	// and nobody could execute it until that one executes its own.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()

	in, err := r.open()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o700)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
}

// Digest is the sha256 of the program, in hex.
func (r Release) Digest(t testing.TB) string {
	t.Helper()

	in, err := r.open()
	if err != nil {
		t.Fatal(err)
	}

	return digest(t, in)
}

// Digest is the sha256 of a file of the node, in hex.
func (n *Node) Digest(t testing.TB, name string) string {
	t.Helper()

	f, err := os.Open(n.Path(name))
	if err != nil {
		t.Fatal(err)
	}

	return digest(t, f)
}

func digest(t testing.TB, in io.ReadCloser) string {
	t.Helper()
	defer in.Close()

	h := sha256.New()
	if _, err := io.Copy(h, in); err != nil {
		t.Fatal(err)
	}

	return hex.EncodeToString(h.Sum(nil))
}

// compress makes a bzip2 file of a program, unless there is one of it.
func compress(t testing.TB, program string) string {
	t.Helper()
	oneAtATime.Lock()
	defer oneAtATime.Unlock()

	linked, err := os.Stat(program)
	if err != nil {
		t.Fatal(err)
	}
	compressed := program + ".bz2"
	made, err := os.Stat(compressed)
	if err == nil && made.ModTime().After(linked.ModTime()) {
		return compressed
	}

	unfinished, err := os.Create(compressed + ".new")
	if err != nil {
		t.Fatal(err)
	}
	defer unfinished.Close()
	// larger blocks are smaller to keep and slower to unpack
	bzip2 := exec.Command("bzip2", "--fast", "--stdout", program)
	bzip2.Stdout = unfinished
	if err := bzip2.Run(); err != nil {
		t.Fatalf("%s: %v", bzip2, err)
	}
	if err := os.Rename(unfinished.Name(), compressed); err != nil {
		t.Fatal(err)
	}

	return compressed
}
