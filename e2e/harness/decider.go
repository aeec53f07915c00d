//go:build linux

package harness

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/choria-provisioner/provisioner/helper/helperv1"
)

// Decider is the decider plugin of one daemon, whose decisions a test makes.
type Decider struct {
	// Helper is the helper key of the daemon.
	Helper map[string]any

	dir, journal string
}

// NewDecider prepares the plugin for a daemon whose nodes get a configuration.
func NewDecider(t testing.TB, bin Binaries, configuration map[string]string) *Decider {
	t.Helper()

	d := &Decider{dir: t.TempDir(), journal: filepath.Join(t.TempDir(), "outcomes")}
	d.Helper = map[string]any{
		"plugin": bin.Decider,
		"config": map[string]any{"configuration": configuration, "decisions": d.dir, "journal": d.journal},
	}

	return d
}

// Decide makes a decision for a node, in the place of an earlier one.
func (d *Decider) Decide(t testing.TB, identity string, answer *helperv1.DecideReleaseResponse) {
	t.Helper()

	text, err := protojson.Marshal(answer)
	if err != nil {
		t.Fatal(err)
	}
	d.write(t, identity, text)
}

// DecideAt is Decide for as long as the node runs a version.
func (d *Decider) DecideAt(t testing.TB, identity, version string, answer *helperv1.DecideReleaseResponse) {
	t.Helper()

	d.Decide(t, identity+"@"+version, answer)
}

// DieAt makes the helper die whenever it is asked about a node.
func (d *Decider) DieAt(t testing.TB, identity string) {
	t.Helper()

	d.write(t, identity, nil)
}

func (d *Decider) write(t testing.TB, name string, text []byte) {
	t.Helper()

	file := filepath.Join(d.dir, name+".json")
	if err := os.WriteFile(file+".new", text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}

// ReleaseOutcome is what the helper was told of a node.
type ReleaseOutcome struct {
	Identity string `json:"identity"`
	Outcome  string `json:"outcome"`
	Version  string `json:"version"`
	Detail   string `json:"detail"`
}

// Outcomes are what the helper was told of a node so far, in order.
func (d *Decider) Outcomes(t testing.TB, identity string) []ReleaseOutcome {
	t.Helper()

	f, err := os.Open(d.journal)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()

	var outcomes []ReleaseOutcome
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var o ReleaseOutcome
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			// it is being written
			break
		}
		if o.Identity == identity {
			outcomes = append(outcomes, o)
		}
	}

	return outcomes
}
