package versions

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// site is a launcher's folders in a test.
type site struct {
	Launcher
	t        *testing.T
	arrivals int
}

func newSite(t *testing.T, names ...string) *site {
	t.Helper()
	dir := t.TempDir()
	s := &site{t: t, Launcher: Launcher{
		StateDir: filepath.Join(dir, "state"), Libexec: filepath.Join(dir, "lib"), Bin: filepath.Join(dir, "bin"),
	}}
	s.check(os.MkdirAll(s.StateDir, 0o755))
	s.check(os.MkdirAll(filepath.Join(s.Libexec, "versions"), 0o755))
	for _, name := range names {
		s.deliver(name)
	}

	return s
}

func (s *site) check(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// deliver puts a version in place, as the newest.
func (s *site) deliver(name string) {
	s.t.Helper()
	s.arrivals++
	s.check(os.Mkdir(s.folder(name), 0o755))
	s.check(os.WriteFile(s.Program(name), []byte(name), 0o755))
	s.check(os.WriteFile(filepath.Join(s.folder(name), marker), []byte(strconv.Itoa(s.arrivals)), 0o644))
}

func (s *site) put(name, text string) {
	s.t.Helper()
	s.check(os.WriteFile(filepath.Join(s.StateDir, name), []byte(text), 0o644))
}

// file is a state file's text, "none" without one.
func (s *site) file(name string) string {
	s.t.Helper()
	text, err := os.ReadFile(filepath.Join(s.StateDir, name))
	if os.IsNotExist(err) {
		return "none"
	}
	s.check(err)

	return string(text)
}

// runs makes this very process the daemon of a version.
func (s *site) runs(version string) {
	s.t.Helper()
	s.put(running, version+" "+strconv.Itoa(os.Getpid())+" "+born(s.t)+"\n")
}

func (s *site) snapshot() *Snapshot {
	s.t.Helper()
	snapshot, err := s.Read()
	s.check(err)

	return snapshot
}
