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

// order gives the daemon an order about nodes, as an operator does, and returns
// what is printed.
func (s *site) order(t *testing.T, args ...string) string {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	nodes := exec.CommandContext(ctx, s.bin.Provisioner, append([]string{"nodes", "--state-dir", s.stateDir}, args...)...)
	out, err := nodes.CombinedOutput()
	if err != nil {
		t.Errorf("%s: %v: %s", nodes, err, out)
	}

	return string(out)
}

// expectExplained checks that an operator who asks about the node is told.
func (s *site) expectExplained(t *testing.T, node *harness.Node, words ...string) {
	t.Helper()

	out := s.order(t, "explain", node.Identity)
	for _, w := range words {
		if !strings.Contains(out, w) {
			t.Errorf("the explanation of %s does not say %q:\n%s", node.Identity, w, out)
		}
	}
}
