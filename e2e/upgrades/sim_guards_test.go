//go:build linux

package upgrades

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/choria-provisioner/provisioner/e2e/harness"
	"github.com/choria-provisioner/provisioner/helper"
	"github.com/choria-provisioner/provisioner/helper/helperv1"
	"github.com/choria-provisioner/provisioner/internal/simfleet"
	"github.com/choria-provisioner/provisioner/version/ledger"
	"github.com/choria-provisioner/provisioner/version/ledger/boltstore"
)

// running is the version of the nodes that guards are asked about.
const running = "1.2.0"

// stopped is a change of version that a guard stops.
type stopped struct {
	guard  ledger.Guard
	wanted *helperv1.DecideReleaseResponse
	// remembered makes a record of what the ledger knows of the node. May be nil.
	remembered func(*ledger.Record)
	// node makes the node different. May be nil.
	node func(*simfleet.NodeOptions)
	// left is a guard that leaves nothing undone: the node is provisioned also
	// where upgrades are not optional.
	left bool
}

func (s stopped) identity() string { return string(s.guard) + ".example.net" }

func upgrade(version string) *helperv1.DecideReleaseResponse {
	return helper.Upgrade(version, "the test wants it")
}

func rollback(version string) *helperv1.DecideReleaseResponse {
	return helper.Rollback(version, "the test wants it")
}

// stops is a row for each guard that looks at a node or the fleet.
func stops() []stopped {
	arrived := func(rec *ledger.Record) {
		rec.State = ledger.Arrived
		rec.Trial = &ledger.Change{
			Direction: ledger.Upgrade, Version: running, From: "1.0.0", ID: "x", AttemptID: "x", Sends: 1,
			Reversible: true, Reached: true, Deadline: ledger.Observed(time.Hour),
		}
	}

	return []stopped{
		{guard: ledger.GuardNoKnownGood, wanted: rollback(""), remembered: func(rec *ledger.Record) { rec.KnownGood = nil }},
		{guard: ledger.GuardInvalidVersion, wanted: upgrade("2.0.0/../../other")},
		{guard: ledger.GuardNoVersion, wanted: upgrade("2.0.0"), node: func(o *simfleet.NodeOptions) {
			fault, err := simfleet.FaultNamed("upgradable-no-version")
			if err == nil {
				_ = fault.Apply(nil, o)
			}
		}},
		{guard: ledger.GuardSameVersion, wanted: upgrade(running), left: true},
		{guard: ledger.GuardAmbiguous, wanted: upgrade("1.2")},
		{guard: ledger.GuardHeld, wanted: upgrade("2.0.0"), remembered: func(rec *ledger.Record) {
			rec.State = ledger.Held
			rec.Hold = &ledger.Hold{Reason: ledger.HeldThirdVersion, Why: "seeded"}
		}},
		{guard: ledger.GuardTrialRunning, wanted: upgrade("2.0.0"), remembered: arrived},
		{guard: ledger.GuardNotUpgradable, wanted: upgrade("2.0.0"), node: func(o *simfleet.NodeOptions) { o.NotUpgradable = true }},
		{guard: ledger.GuardOlderThanCurrent, wanted: upgrade("1.1.0")},
		{guard: ledger.GuardNewerThanCurrent, wanted: rollback("1.3.0")},
		{guard: ledger.GuardBarred, wanted: upgrade("6.0.0"), remembered: func(rec *ledger.Record) {
			rec.RolledBack = []ledger.RolledBack{{From: "6.0.0", To: running, Outcome: ledger.OutcomeRolledBack, Why: "seeded", Barred: true}}
		}},
		{guard: ledger.GuardQuarantined, wanted: upgrade("6.6.6")},
		{guard: ledger.GuardPinned, wanted: upgrade("2.0.0"), remembered: func(rec *ledger.Record) { rec.Pin = &ledger.Pin{Version: running} }},
		{guard: ledger.GuardNotReversible, wanted: rollback("1.0.0"), remembered: func(rec *ledger.Record) { rec.NotReversible = []string{running} }},
		{guard: ledger.GuardSecondRollback, wanted: rollback("1.0.0"), remembered: func(rec *ledger.Record) {
			rec.RolledBack = []ledger.RolledBack{{From: running, To: "1.0.0", Outcome: ledger.OutcomeRolledBack, Why: "seeded"}}
		}},
		{guard: ledger.GuardBackoff, wanted: upgrade("2.0.0"), remembered: func(rec *ledger.Record) {
			rec.Retry = &ledger.Retry{Failures: 1, NotBefore: ledger.Observed(time.Hour)}
		}},
		{guard: ledger.GuardThirdChange, wanted: upgrade("2.0.0"), remembered: func(rec *ledger.Record) {
			rec.Recent = []ledger.Begun{{Change: "x", Version: "2.0.0"}, {Change: "y", Version: running}}
		}},
		{guard: ledger.GuardMaxInTrial, wanted: upgrade("2.0.0")},
		// the budget of trials is for others than those that end one
		{guard: ledger.GuardMaxDark, wanted: rollback("1.1.1"), remembered: arrived},
	}
}

// elsewhereRecords are of nodes that are not there: the budgets are used up by
// them, and a version is in quarantine.
func elsewhereRecords() []ledger.Record {
	change := ledger.Change{Direction: ledger.Upgrade, From: "1.0.0", ID: "x", AttemptID: "x", Sends: 1, Reversible: true, Deadline: ledger.Observed(time.Hour)}
	var records []ledger.Record
	for i := range 2 {
		rec := ledger.New(fmt.Sprintf("left-%d", i))
		rec.State = ledger.Idle
		rec.RolledBack = []ledger.RolledBack{{From: "6.6.6", To: "1.0.0", Outcome: ledger.OutcomeRolledBack, Barred: true}}
		records = append(records, rec)
	}
	for state, version := range map[ledger.State]string{ledger.Trial: "1.9.9", ledger.Dark: "1.1.1"} {
		rec := ledger.New(string(state))
		c := change
		c.Version = version
		rec.State, rec.Trial = state, &c
		records = append(records, rec)
	}

	return records
}

// seed writes records into the ledger of a daemon that does not run.
func (s *site) seed(t *testing.T, records ...ledger.Record) {
	t.Helper()

	store, err := boltstore.Open(s.stateDir)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	for _, rec := range records {
		if _, err = store.CompareAndSwap(t.Context(), rec); err != nil {
			t.Fatal(err)
		}
	}
}

// Every guard, with upgrades_optional on and off: nothing is sent, and the node
// is provisioned as it is, or refused and asked about again.
func testGuards(t *testing.T, bin harness.Binaries) {
	versions := map[string]any{"trial": "100s", "release_timeout": releaseTimeout.String(), "max_in_trial": 1, "max_dark": 1, "quarantine_after": 2}
	noRepository := []stopped{{guard: ledger.GuardNoRepository, wanted: upgrade("2.0.0")}}

	covered := []ledger.Guard{ledger.GuardNoRepository, ledger.GuardFeatureOff, ledger.GuardStaleEpoch}
	for _, s := range stops() {
		covered = append(covered, s.guard)
	}
	for _, g := range ledger.Guards() {
		if !slices.Contains(covered, g) {
			t.Errorf("no row for the guard %s", g)
		}
	}

	for _, optional := range []bool{true, false} {
		t.Run(fmt.Sprintf("optional %v", optional), func(t *testing.T) {
			t.Parallel()
			testStops(t, bin, optional, stops(), map[string]any{"versions": versions})
		})
		t.Run(fmt.Sprintf("no repository, optional %v", optional), func(t *testing.T) {
			t.Parallel()
			testStops(t, bin, optional, noRepository, map[string]any{"upgrades_repository": ""})
		})
	}
	t.Run("feature off", func(t *testing.T) {
		t.Parallel()
		testFeatureOff(t, bin)
	})
	t.Run("stale epoch", func(t *testing.T) {
		t.Parallel()
		testStaleEpoch(t, bin)
	})
}

func testStops(t *testing.T, bin harness.Binaries, optional bool, rows []stopped, settings map[string]any) {
	s := newSite(t, bin, simfleet.Insecure)
	s.seed(t, elsewhereRecords()...)
	nodes := map[ledger.Guard]*simfleet.Node{}
	for _, row := range rows {
		if row.remembered != nil {
			rec := ledger.New(row.identity())
			rec.State, rec.Seen.Version = ledger.Idle, running
			rec.KnownGood = &ledger.KnownGood{Version: running, Source: ledger.FirstSeen}
			row.remembered(&rec)
			s.seed(t, rec)
		}
		s.decider.Decide(t, row.identity(), row.wanted)
		nodes[row.guard] = s.node(t, row.identity(), func(o *simfleet.NodeOptions) {
			o.Version = running
			if row.node != nil {
				row.node(o)
			}
		})
	}
	settings["upgrades_optional"] = optional
	daemon := s.start(t, settings)

	began := time.Now()
	for _, row := range rows {
		harness.Eventually(t, time.Until(began.Add(30*time.Second)), string(row.guard), func() error {
			if asked := inventories(nodes[row.guard]); asked == 0 {
				return errors.New("the node was not asked")
			}
			if !row.left && !said(daemon, row.identity(), "is stopped by the guard "+string(row.guard)+":") {
				return fmt.Errorf("the log does not say so: %v", daemon.Lines())
			}
			return row.provisioned(nodes[row.guard], optional || row.left)
		})
	}
	if !optional {
		expectAskedAgain(t, s, began, rows, nodes)
	}

	for _, row := range rows {
		n := nodes[row.guard]
		expectSent(t, n)
		if err := row.provisioned(n, optional || row.left); err != nil {
			t.Errorf("%s: %v", row.guard, err)
		}
		rec, err := s.record(t, row.identity())
		if err != nil && !row.left {
			t.Errorf("%s: %v", row.guard, err)
		}
		noted := slices.ContainsFunc(rec.Evidence, func(e ledger.Evidence) bool { return e.Guard == row.guard })
		if noted == row.left {
			t.Errorf("%s: noted as evidence: %v: %+v", row.guard, noted, rec.Evidence)
		}
	}
}

// provisioned is an error while the node is not as far as it should be.
func (s stopped) provisioned(n *simfleet.Node, want bool) error {
	if in := n.State() == simfleet.Restarted; in != want || !want && configured(n) > 0 {
		return fmt.Errorf("%s is %v after %d configurations, and should be in the fleet: %v", n.Identity(), n.State(), configured(n), want)
	}

	return nil
}

// expectAskedAgain waits until the nodes that were refused have been asked about
// once more. They announce themselves, which is sooner than the next discovery.
func expectAskedAgain(t *testing.T, s *site, began time.Time, rows []stopped, nodes map[ledger.Guard]*simfleet.Node) {
	t.Helper()

	harness.Eventually(t, time.Until(began.Add(60*time.Second)), "second question", func() error {
		for _, row := range rows {
			if row.left || inventories(nodes[row.guard]) > 1 {
				continue
			}
			if err := s.fleet.Announce(t.Context(), row.identity()); err != nil {
				return err
			}
			return fmt.Errorf("%s was asked once", row.identity())
		}
		return nil
	})
}

func inventories(n *simfleet.Node) int {
	count := 0
	for _, c := range n.Calls() {
		if c.Action == "rpcutil#inventory" {
			count++
		}
	}

	return count
}

// said tells whether the log has a text about a node.
func said(daemon *harness.Daemon, identity, text string) bool {
	return slices.ContainsFunc(daemon.Lines(), func(l harness.LogLine) bool {
		return l.Identity == identity && strings.Contains(l.Message, text)
	})
}

// With the feature off no helper is asked, nothing is sent and nothing is
// remembered.
func testFeatureOff(t *testing.T, bin harness.Binaries) {
	s := newSite(t, bin, simfleet.Insecure)
	n := s.node(t, "node.example.net", nil)
	s.upgrade(t, n.Identity(), after)
	s.start(t, map[string]any{"features": map[string]bool{"jwt": true}})

	harness.ExpectProvisioned(t, s.fleet, 20*time.Second)
	expectSent(t, n)
	if _, err := os.Stat(filepath.Join(s.stateDir, boltstore.FileName)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("ledger: %v", err)
	}
}

// A record that a later leader wrote is nobody's to change.
func testStaleEpoch(t *testing.T, bin harness.Binaries) {
	s := newSite(t, bin, simfleet.Insecure)
	n := s.node(t, "node.example.net", nil)
	rec := ledger.New(n.Identity())
	rec.State, rec.Epoch, rec.Seen.Version = ledger.Idle, 1000, before
	s.seed(t, rec)
	s.upgrade(t, n.Identity(), after)
	daemon := s.start(t, nil)

	harness.Eventually(t, 20*time.Second, "refusal", func() error {
		if !said(daemon, n.Identity(), ledger.ErrStaleEpoch.Error()) {
			return fmt.Errorf("the log does not say so: %v", daemon.Lines())
		}
		return nil
	})
	expectSent(t, n)
	if configured(n) > 0 {
		t.Error("the node was configured")
	}
}
