//go:build linux

package harness

import (
	"bufio"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Node is a real Choria server.
type Node struct {
	*Process
	Identity string
	// Dir holds its configuration, keys and tokens.
	Dir string
	// Program is the file that it runs.
	Program string
}

// StartNode starts a server that waits to be provisioned. The token is what its
// provisioning.jwt holds.
func StartNode(t testing.TB, bin Binaries, identity, token string) *Node {
	t.Helper()

	return startNode(t, &Node{Identity: identity, Dir: t.TempDir(), Program: bin.ChoriaServer}, token)
}

// StartRelease is StartNode for a server that can update itself: it runs a copy
// of a release, which is its own to replace.
func StartRelease(t testing.TB, release Release, identity, token string) *Node {
	t.Helper()

	dir := t.TempDir()
	n := &Node{Identity: identity, Dir: dir, Program: filepath.Join(dir, "choria")}
	release.install(t, n.Program)

	return startNode(t, n, token)
}

func startNode(t testing.TB, n *Node, token string) *Node {
	t.Helper()

	for name, content := range map[string]string{
		"provisioning.jwt": token,
		"facts.json":       fmt.Sprintf(`{"fqdn": %q, "role": "e2e"}`, n.Identity),
	} {
		err := os.WriteFile(filepath.Join(n.Dir, name), []byte(content), 0o600)
		if err != nil {
			t.Fatal(err)
		}
	}

	n.start(t)

	return n
}

// start runs the server's program.
func (n *Node) start(t testing.TB) {
	t.Helper()

	n.Process = Start(t, n.Identity, n.Dir, nil, n.Program,
		"--config", n.Path("server.conf"),
		"--token", n.Path("provisioning.jwt"),
		"--facts", n.Path("facts.json"),
		"--identity", n.Identity)
}

// Wipe is CutPower that costs the server its configuration.
func (n *Node) Wipe(t testing.TB) {
	t.Helper()

	n.Kill()
	if err := os.Remove(n.Path("server.conf")); err != nil {
		t.Fatal(err)
	}
	n.start(t)
}

// CutPower kills the server and starts its program again.
func (n *Node) CutPower(t testing.TB) {
	t.Helper()

	n.Kill()
	n.start(t)
}

// RestoreBackup puts back the program that an update replaced, as a person does
// whose server has ended, and starts it.
func (n *Node) RestoreBackup(t testing.TB) {
	t.Helper()

	if err := os.Rename(n.Program+".backup", n.Program); err != nil {
		t.Fatal(err)
	}
	n.start(t)
}

// Path is a file of the node.
func (n *Node) Path(name string) string { return filepath.Join(n.Dir, name) }

// Read is the content of a file of the node.
func (n *Node) Read(name string) (string, error) {
	b, err := os.ReadFile(n.Path(name))

	return string(b), err
}

// NodeStart is one start of a server within its process.
type NodeStart struct {
	PID          int
	Provisioning bool
	Version      string
}

// startLine is what the server logs when it starts.
var startLine = regexp.MustCompile(`msg="Starting Choria server" .*\bpid=(\d+) provisioning=(true|false) version=(\S+)`)

// Starts are the starts of the server, as its log tells them: a process that
// executes its program again keeps its pid and start time.
func (n *Node) Starts() []NodeStart {
	var starts []NodeStart
	for _, match := range startLine.FindAllStringSubmatch(n.Log(), -1) {
		pid, err := strconv.Atoi(match[1])
		if err != nil {
			continue
		}
		starts = append(starts, NodeStart{PID: pid, Provisioning: match[2] == "true", Version: match[3]})
	}

	return starts
}

// configuration reads the configuration file that the provision agent wrote.
func (n *Node) configuration() (map[string]string, error) {
	f, err := os.Open(n.Path("server.conf"))
	if err != nil {
		return nil, err
	}
	defer f.Close()

	settings := map[string]string{}
	scanner := bufio.NewScanner(f)
	for scanner.Scan() {
		line := scanner.Text()
		if strings.HasPrefix(line, "#") {
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		if !ok {
			return nil, fmt.Errorf("%s: no setting: %q", f.Name(), line)
		}
		settings[key] = value
	}

	return settings, scanner.Err()
}

// ExpectReexecuted checks that the process that was started is still the one
// that runs, and that it executed its program once more, to leave provisioning
// mode.
func (n *Node) ExpectReexecuted(t testing.TB) {
	t.Helper()

	n.ExpectStarts(t, NodeStart{Provisioning: true}, NodeStart{})
}

// ExpectStarts checks that the process that was started is still the one that
// runs, and that it executed its program so often. A version that is not given
// is the first one's.
func (n *Node) ExpectStarts(t testing.TB, want ...NodeStart) {
	t.Helper()

	if !n.ID.Alive() {
		t.Errorf("process %d of %s ended", n.ID.PID, n.Identity)
	}
	got := n.Starts()
	for i := range want {
		want[i].PID = n.ID.PID
		if want[i].Version == "" && len(got) > 0 {
			want[i].Version = got[0].Version
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("starts of %s: %+v, not %+v", n.Identity, got, want)
	}
}

// ExpectConfiguration checks the configuration file on the node's disk: the
// settings given, in which {identity} and {directory} stand for the node's own,
// and nothing else.
func (n *Node) ExpectConfiguration(t testing.TB, settings map[string]string) {
	t.Helper()

	got, err := n.configuration()
	if err != nil {
		t.Error(err)
		return
	}
	want := fill(settings, n.Identity, n.Dir)
	if !maps.Equal(got, want) {
		t.Errorf("configuration of %s:\n%v\nnot\n%v", n.Identity, got, want)
	}
}

// ExpectProgram checks the file that the node runs, and the backup of the one
// before it.
func (n *Node) ExpectProgram(t testing.TB, now, backup Release) {
	t.Helper()

	name := filepath.Base(n.Program)
	for file, release := range map[string]Release{name: now, name + ".backup": backup} {
		if n.Digest(t, file) != release.Digest(t) {
			t.Errorf("%s of %s is not release %s", file, n.Identity, release.Version)
		}
	}
}
