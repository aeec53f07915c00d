//go:build linux

package upgrades

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/choria-provisioner/provisioner/e2e/harness"
	"github.com/choria-provisioner/provisioner/internal/simfleet"
	"github.com/choria-provisioner/provisioner/version/ledger"
)

// healthyNodes are beside those with a fault.
const healthyNodes = 10

// fate is what has to become of a node that is to be upgraded.
type fate struct {
	// fault is one of simfleet's, about what an update does to the node, and the
	// beginning of its identity.
	fault string
	// state, hold, good and barred are of its record.
	state  ledger.State
	hold   ledger.HoldReason
	good   ledger.KnownGood
	barred []string
	// sent is every release_update that it gets.
	sent []string
	// joins is the version with which it gets into the fleet; empty is for a node
	// that must not be there.
	joins string
}

func (f fate) identity() string { return f.fault + ".example.net" }

var (
	proved    = ledger.KnownGood{Version: after, Source: ledger.Proved}
	stayed    = ledger.KnownGood{Version: before, Source: ledger.Proved}
	firstSeen = ledger.KnownGood{Version: before, Source: ledger.FirstSeen}
)

// expectFates runs one daemon for healthy nodes and one of each fault, all of which
// are to be upgraded. They are found by their events and by discovery; with
// announced set, those that wait announce themselves every few seconds besides,
// which is sooner.
func expectFates(t *testing.T, bin harness.Binaries, limit time.Duration, announced bool, settings map[string]any, fates []fate) {
	s := newSite(t, bin, simfleet.Insecure)
	nodes := map[string]*simfleet.Node{}
	for i := range healthyNodes {
		f := fate{fault: fmt.Sprintf("healthy-%d", i), state: ledger.Idle, good: proved, sent: []string{after}, joins: after}
		fates = append(fates, f)
		nodes[f.fault] = s.node(t, f.identity(), nil)
	}
	for _, f := range fates {
		s.upgrade(t, f.identity(), after)
		if nodes[f.fault] == nil {
			nodes[f.fault] = s.faulty(t, f.identity(), f.fault)
		}
	}

	began := time.Now()
	daemon := s.start(t, settings)
	if announced {
		everyFewSeconds(t, func(ctx context.Context) error {
			for _, n := range nodes {
				if n.Gone() {
					continue
				}
				if err := s.fleet.Announce(ctx, n.Identity()); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for _, f := range fates {
		t.Run(f.fault, func(t *testing.T) {
			s.await(t, time.Until(began.Add(limit)), f.identity(), f.wrong)
			harness.Eventually(t, 5*time.Second, "fleet", f.inFleet(nodes[f.fault]))
			t.Logf("no later than %v after the daemon's start", time.Since(began).Round(time.Second))
		})
	}

	// for what must not be can still come
	for _, f := range fates {
		expectSent(t, nodes[f.fault], f.sent...)
		s.expectShown(t, f)
		if err := f.inFleet(nodes[f.fault])(); err != nil {
			t.Errorf("%s: %v", f.fault, err)
		}
	}
	if err := daemon.ExpectMetric("choria_provisioner_ledger_errors_total", 0); err != nil {
		t.Error(err)
	}
}

// expectShown checks that people see the same.
func (s *site) expectShown(t *testing.T, f fate) {
	t.Helper()

	out, err := exec.CommandContext(t.Context(), s.bin.Provisioner, "nodes", "show", f.identity(), "--state-dir", s.stateDir, "--json").Output()
	var rec ledger.Record
	if err == nil {
		err = json.Unmarshal(out, &rec)
	}
	if err == nil {
		err = f.wrong(rec)
	}
	if err != nil {
		t.Errorf("%s: nodes show: %v: %s", f.fault, err, out)
	}
}

// faulty starts a node with a fault.
func (s *site) faulty(t *testing.T, identity, name string) *simfleet.Node {
	t.Helper()

	fault, err := simfleet.FaultNamed(name)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	n, err := s.fleet.AddFaulty(ctx, identity, fault)
	if err != nil {
		t.Fatal(err)
	}

	return n
}

// wrong says what of a record is not as it has to be.
func (f fate) wrong(rec ledger.Record) error {
	switch {
	case rec.State != f.state,
		(rec.Hold != nil) != (f.hold != ""), rec.Hold != nil && rec.Hold.Reason != f.hold,
		rec.KnownGood == nil || *rec.KnownGood != f.good,
		!slices.Equal(rec.Barred(), f.barred):
		return errOther
	}

	return nil
}

// inFleet is an error while the node is not in the fleet, or not waiting, as it
// has to be.
func (f fate) inFleet(n *simfleet.Node) func() error {
	return func() error {
		switch in := n.State() == simfleet.Restarted; {
		case in != (f.joins != ""):
			return fmt.Errorf("%s with version %s is %v", n.Identity(), n.Version(), n.State())
		case in && n.Version() != f.joins:
			return fmt.Errorf("%s is in the fleet with version %s, not %s", n.Identity(), n.Version(), f.joins)
		}
		return nil
	}
}

func testFates(t *testing.T, bin harness.Binaries) {
	expectFates(t, bin, 150*time.Second, true, nil, shortFates())
}

// shortFates are those that come in about a minute.
func shortFates() []fate {
	thrice := []string{after, after, after}

	return []fate{
		{fault: "update-old-version", state: ledger.Held, hold: ledger.HeldExecFailed, good: firstSeen, sent: []string{after}},
		{fault: "update-unstartable", state: ledger.Held, hold: ledger.HeldExecFailed, good: firstSeen, sent: []string{after}},
		{fault: "update-third-version", state: ledger.Held, hold: ledger.HeldThirdVersion, good: firstSeen, sent: []string{after}, joins: "0.0.3"},
		{fault: "update-dark", state: ledger.Dark, good: firstSeen, sent: []string{after}},
		{fault: "update-broken", state: ledger.Held, hold: ledger.HeldBroken, good: firstSeen, sent: []string{after}},
		// an answer that says that nothing was done is no reason not to try again
		{fault: "update-rolled-back", state: ledger.Idle, good: stayed, sent: thrice, joins: before},
		{fault: "updates-off", state: ledger.Idle, good: stayed, sent: thrice, joins: before},
		{fault: "update-wrong-token", state: ledger.Idle, good: stayed, sent: thrice, joins: before},

		{fault: "update-lost-before", state: ledger.Idle, good: proved, sent: []string{after, after}, joins: after},
		{fault: "update-lost-after", state: ledger.Idle, good: proved, sent: []string{after}, joins: after},
		{fault: "update-lost-unseen", state: ledger.Idle, good: proved, sent: []string{after}, joins: after},
		{fault: "update-slow", state: ledger.Idle, good: proved, sent: []string{after}, joins: after},
		{fault: "update-forged", state: ledger.Idle, good: proved, sent: []string{after, after}, joins: after},

		{fault: "new-version-unconfigurable", state: ledger.Idle, good: stayed, barred: []string{after}, sent: []string{after, before}, joins: before},
		{fault: "new-version-unrestartable", state: ledger.Idle, good: stayed, barred: []string{after}, sent: []string{after, before}, joins: before},
	}
}
