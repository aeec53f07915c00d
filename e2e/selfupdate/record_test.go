//go:build linux

package selfupdate

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/choria-provisioner/provisioner/e2e/harness"
	"github.com/choria-provisioner/provisioner/version/ledger"
)

// await waits until the record of a node is in a state, for the version that is
// known as good, and returns it.
func (s *site) await(t *testing.T, limit time.Duration, node *harness.Node, state ledger.State, good ledger.KnownGood) ledger.Record {
	t.Helper()

	return s.awaitRecord(t, limit, node, fmt.Sprintf("is %s with %s (%s)", state, good.Version, good.Source), func(rec ledger.Record) bool {
		return rec.State == state && rec.KnownGood != nil && *rec.KnownGood == good
	})
}

func (s *site) awaitRecord(t *testing.T, limit time.Duration, node *harness.Node, what string, ok func(ledger.Record) bool) ledger.Record {
	t.Helper()

	return harness.AwaitRecord(t, limit, s.stateDir, node.Identity, what, ok)
}

// verdicts are the outcomes in a record's evidence, each with its version.
func verdicts(rec ledger.Record) []string {
	var all []string
	for _, e := range rec.Evidence {
		if e.Kind == ledger.Judged {
			all = append(all, string(e.Outcome)+" "+e.Version)
		}
	}

	return all
}

// expectExplained checks that an operator who asks about the node is told.
func (s *site) expectExplained(t *testing.T, node *harness.Node, words ...string) {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	explain := exec.CommandContext(ctx, s.bin.Provisioner, "nodes", "explain", node.Identity, "--state-dir", s.stateDir)
	out, err := explain.CombinedOutput()
	if err != nil {
		t.Errorf("%s: %v: %s", explain, err, out)
	}
	for _, w := range words {
		if !strings.Contains(string(out), w) {
			t.Errorf("%s does not say %q:\n%s", explain, w, out)
		}
	}
}
