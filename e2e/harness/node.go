//go:build linux

package harness

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// NodeVersion is the version that nodes report.
const NodeVersion = "0.30.2"

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
		"--identity", identity,
		"--version", NodeVersion)

	return n
}

// Path is a file of the node.
func (n *Node) Path(name string) string { return filepath.Join(n.Dir, name) }

// Read is the content of a file of the node.
func (n *Node) Read(name string) (string, error) {
	b, err := os.ReadFile(n.Path(name))

	return string(b), err
}

// Starts is how often the server started in its process. The log tells: a
// process that executes its program again keeps its pid.
func (n *Node) Starts() int {
	return strings.Count(n.Log(), "Starting Choria server")
}

// Configuration reads the configuration file that the provision agent wrote.
func (n *Node) Configuration() (map[string]string, error) {
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
