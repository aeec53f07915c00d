//go:build linux

// Package harness runs the provisioner against real Choria servers: every
// program is a process of its own, built from this checkout, on a broker in the
// test's process.
package harness

import (
	"os/exec"
	"path/filepath"
	"strings"
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
	// SiteHelper is e2e/sitehelper, a helper plugin of a site that needs no
	// certificates.
	SiteHelper string
	// LocalCA is examples/localca, the helper plugin that signs CSRs.
	LocalCA string
}

// Build builds every program into a directory that goes with the test.
func Build(t testing.TB) Binaries {
	t.Helper()

	dir := t.TempDir()
	root := run(t, "", "go", "list", "-m", "-f", "{{.Dir}}", module)
	// several main packages and an output directory: one link after another,
	// but the package graph is loaded once
	run(t, root, "go", "build", "-o", dir+"/", "./cmd/choria-provisioner", "./internal/choriaserver", "./e2e/sitehelper")
	// a module of its own
	run(t, filepath.Join(root, "examples"), "go", "build", "-o", dir+"/", "./localca")

	return Binaries{
		Provisioner:  filepath.Join(dir, "choria-provisioner"),
		ChoriaServer: filepath.Join(dir, "choriaserver"),
		SiteHelper:   filepath.Join(dir, "sitehelper"),
		LocalCA:      filepath.Join(dir, "localca"),
	}
}

// run runs a command in dir and returns what it prints.
func run(t testing.TB, dir string, command string, args ...string) string {
	t.Helper()

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
