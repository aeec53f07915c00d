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
}

// StartNode starts a server that waits to be provisioned. The token is what its
// provisioning.jwt holds.
func StartNode(t testing.TB, bin Binaries, identity, token string) *Node {
	t.Helper()

	n := &Node{Identity: identity, Dir: t.TempDir()}
	for name, content := range map[string]string{
		"provisioning.jwt": token,
		"facts.json":       fmt.Sprintf(`{"fqdn": %q, "role": "e2e"}`, identity),
	} {
		err := os.WriteFile(filepath.Join(n.Dir, name), []byte(content), 0o600)
		if err != nil {
			t.Fatal(err)
		}
	}

	n.Process = Start(t, identity, n.Dir, nil, bin.ChoriaServer,
		"--config", n.Path("server.conf"),
		"--token", n.Path("provisioning.jwt"),
		"--facts", n.Path("facts.json"),
		"--identity", identity)

	return n
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
}

// startLine is what the server logs when it starts.
var startLine = regexp.MustCompile(`msg="Starting Choria server" .*\bpid=(\d+) provisioning=(true|false)`)

// Starts are the starts of the server, as its log tells them: a process that
// executes its program again keeps its pid and start time.
func (n *Node) Starts() []NodeStart {
	var starts []NodeStart
	for _, match := range startLine.FindAllStringSubmatch(n.Log(), -1) {
		pid, err := strconv.Atoi(match[1])
		if err != nil {
			continue
		}
		starts = append(starts, NodeStart{PID: pid, Provisioning: match[2] == "true"})
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

	if !n.ID.Alive() {
		t.Errorf("process %d of %s ended", n.ID.PID, n.Identity)
	}
	want := []NodeStart{{PID: n.ID.PID, Provisioning: true}, {PID: n.ID.PID, Provisioning: false}}
	if got := n.Starts(); !slices.Equal(got, want) {
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
