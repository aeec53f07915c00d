//go:build linux

package selfupdate

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/choria-provisioner/provisioner/e2e/harness"
	"github.com/choria-provisioner/provisioner/helper/helperv1"
	"github.com/choria-provisioner/provisioner/internal/choriaserver/trailer"
	"github.com/choria-provisioner/provisioner/version/ledger"
)

// One site with a helper plugin that decides; its daemon is restarted twice. Each
// case has one node, and versions that no other has.
func TestReleases(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.decider = harness.NewDecider(t, s.bin, harness.InsecureConfiguration(s.broker))
	s.startDaemon(t, s.decider.Helper)

	upgraded, rolledBack := startUpgrade(t, s), startRollback(t, s)
	refuses, sentBack := startRefuses(t, s)
	noWayBack, held := startNotReversible(t, s)
	dark, neverProved := startCrashesAtStart(t, s), startCrashesOnceConfigured(t, s)

	t.Run("upgrade", upgraded)
	t.Run("rollback that the helper asks for", rolledBack)

	// One refusal is no verdict. What is remembered of it outlives the daemon, and
	// the next one looks at all nodes when it starts, not a minute later.
	for _, node := range []*harness.Node{refuses, noWayBack} {
		s.awaitRecord(t, updateLimit, node, "has refused once", func(rec ledger.Record) bool {
			return rec.Trial != nil && rec.Trial.Refusals == 1
		})
	}
	s.restartDaemon(t)
	t.Run("crashes at start", dark)
	t.Run("refuses to be configured", sentBack)
	t.Run("refuses to be configured, no way back", held)

	// The node loses its configuration some day. The daemon that provisioned it
	// would leave it alone for a minute.
	refuses.Wipe(t)
	s.restartDaemon(t)
	t.Run("helper asks again for what was left", func(t *testing.T) { expectBarred(t, s, refuses) })
	t.Run("crashes once configured", neverProved)

	// for what was sent when its check was over
	for _, version := range []string{"2.0.0", "2.0.1", "2.0.2", "2.0.3", "1.0.2", "1.0.4", "2.0.5"} {
		s.expectFetched(t, version, 1)
	}
	for _, version := range []string{"1.0.0", "1.0.1", "1.0.3", "2.0.4", "1.0.5"} {
		s.expectFetched(t, version, 0)
	}
	harness.Eventually(t, 5*time.Second, "metrics", func() error {
		for name, want := range map[string]float64{"dark_nodes": 2, "held_nodes": 1, "trials_running": 0, "ledger_errors_total": 0} {
			if err := s.daemon.ExpectMetric("choria_provisioner_"+name, want); err != nil {
				return err
			}
		}
		return nil
	})
}

// The two programs that were really linked.
func startUpgrade(t *testing.T, s *site) (check func(*testing.T)) {
	const identity = "upgrade.example.net"
	from, to := s.linked[0], s.linked[1]
	s.repository.Publish(t, from, to)
	s.decider.Decide(t, identity, upgradeTo(to, nil))
	node := s.startNode(t, from, identity)

	return func(t *testing.T) {
		rec := s.await(t, updateLimit, node, ledger.Idle, ledger.KnownGood{Version: "2.0.0", Source: ledger.Proved})
		s.expectInFleet(t, node, waiting("1.0.0"), waiting("2.0.0"), inFleet("2.0.0"))
		node.ExpectProgram(t, to, from)
		s.expectFetched(t, "2.0.0", 1)
		if len(rec.RolledBack) > 0 {
			t.Errorf("left: %+v", rec.RolledBack)
		}
		s.expectOutcomes(t, identity, "upgrade-sent", "provisioned", "proved 2.0.0")
	}
}

// The helper sends a node back and says that what it leaves is bad.
func startRollback(t *testing.T, s *site) (check func(*testing.T)) {
	const identity = "rollback.example.net"
	to := s.release(t, "1.0.4", "")
	from := s.release(t, "2.0.4", "")
	s.decider.Decide(t, identity, &helperv1.DecideReleaseResponse{Decision: &helperv1.DecideReleaseResponse_Rollback{
		Rollback: &helperv1.Rollback{Version: to.Version, Reason: "it loses messages", Bar: true},
	}})
	node := s.startNode(t, from, identity)

	return func(t *testing.T) {
		rec := s.await(t, updateLimit, node, ledger.Idle, ledger.KnownGood{Version: "1.0.4", Source: ledger.Proved})
		s.expectInFleet(t, node, waiting("2.0.4"), waiting("1.0.4"), inFleet("1.0.4"))
		node.ExpectProgram(t, to, from)
		s.expectFetched(t, "1.0.4", 1)
		expectLeft(t, rec, ledger.RolledBack{From: "2.0.4", To: "1.0.4", Outcome: ledger.OutcomeRolledBack, Why: "it loses messages", Barred: true})
		s.expectOutcomes(t, identity, "upgrade-sent", "provisioned", "proved 1.0.4")
	}
}

// The node is gone, and its version is counted, not judged.
func startCrashesAtStart(t *testing.T, s *site) (check func(*testing.T)) {
	const identity = "crashes-at-start.example.net"
	from := s.release(t, "1.0.1", "")
	bad := s.release(t, "2.0.1", trailer.CrashAtStart)
	s.decider.Decide(t, identity, upgradeTo(bad, nil))
	node := s.startNode(t, from, identity)

	return func(t *testing.T) {
		rec := s.await(t, darkLimit, node, ledger.Dark, ledger.KnownGood{Version: "1.0.1", Source: ledger.FirstSeen})
		expectEnded(t, node)
		node.ExpectProgram(t, bad, from)
		if len(rec.RolledBack) > 0 || len(verdicts(rec)) > 0 {
			t.Errorf("a version that nobody saw is judged: %+v, %v", rec.RolledBack, verdicts(rec))
		}
		s.expectOutcomes(t, identity, "upgrade-sent")
	}
}

// The node goes back by the daemon's own verdict, once, though the helper goes on
// asking for what it left.
func startRefuses(t *testing.T, s *site) (node *harness.Node, check func(*testing.T)) {
	const identity = "refuses.example.net"
	from := s.release(t, "1.0.2", "")
	bad := s.release(t, "2.0.2", trailer.RefuseConfiguration)
	s.decider.Decide(t, identity, upgradeTo(bad, nil))
	node = s.startNode(t, from, identity)

	return node, func(t *testing.T) {
		rec := s.await(t, updateLimit, node, ledger.Idle, ledger.KnownGood{Version: "1.0.2", Source: ledger.Proved})
		s.expectInFleet(t, node, waiting("1.0.2"), waiting("2.0.2"), waiting("1.0.2"), inFleet("1.0.2"))
		node.ExpectProgram(t, from, bad)
		s.expectFetched(t, "2.0.2", 1)
		s.expectFetched(t, "1.0.2", 1)
		expectLeft(t, rec, ledger.RolledBack{From: "2.0.2", To: "1.0.2", Outcome: ledger.OutcomeRolledBack, Barred: true})
		if !stopped(rec, ledger.GuardTrialRunning, "2.0.2") {
			t.Errorf("the helper did not ask again on the way back: %+v", rec.Evidence)
		}
		s.expectOutcomes(t, identity, "upgrade-sent", "rolled-back 2.0.2", "provisioned", "proved 1.0.2")
	}
}

// The node never again gets what it left, and is provisioned as it is.
func expectBarred(t *testing.T, s *site, node *harness.Node) {
	s.awaitRecord(t, updateLimit, node, "may not have 2.0.2", func(rec ledger.Record) bool {
		return stopped(rec, ledger.GuardBarred, "2.0.2")
	})
	awaitInFleet(t, updateLimit, node)
	s.expectFetched(t, "2.0.2", 1)
	s.expectExplained(t, node, "barred", "2.0.2")
}

// A bad version from which the helper said there is no way back is not left: a
// person has to look.
func startNotReversible(t *testing.T, s *site) (node *harness.Node, check func(*testing.T)) {
	const identity = "no-way-back.example.net"
	from := s.release(t, "1.0.5", "")
	bad := s.release(t, "2.0.5", trailer.RefuseConfiguration)
	s.decider.Decide(t, identity, upgradeTo(bad, func(u *helperv1.Upgrade) { u.NotReversible = true }))
	node = s.startNode(t, from, identity)

	return node, func(t *testing.T) {
		rec := s.await(t, updateLimit, node, ledger.Held, ledger.KnownGood{Version: "1.0.5", Source: ledger.FirstSeen})
		if rec.Hold.Reason != ledger.HeldConvicted || !strings.Contains(rec.Hold.Why, "there is no way back from 2.0.5") {
			t.Errorf("held: %+v", rec.Hold)
		}
		node.ExpectStarts(t, waiting("1.0.5"), waiting("2.0.5"))
		node.ExpectProgram(t, bad, from)
		s.expectFetched(t, "1.0.5", 0)
		expectLeft(t, rec, ledger.RolledBack{From: "2.0.5", Outcome: ledger.OutcomeHalted, Barred: true})
		s.expectOutcomes(t, identity, "upgrade-sent", "halted 2.0.5")
		s.expectExplained(t, node, "no way back", "release")
	}
}

// What has never run in the fleet is never proved. The service manager that
// starts it again is the test.
func startCrashesOnceConfigured(t *testing.T, s *site) (check func(*testing.T)) {
	const identity = "crashes-once-configured.example.net"
	from := s.release(t, "1.0.3", "")
	bad := s.release(t, "2.0.3", trailer.CrashOnceConfigured)
	s.decider.Decide(t, identity, upgradeTo(bad, nil))
	node := s.startNode(t, from, identity)

	return func(t *testing.T) {
		expectEnded(t, node)
		for range 3 {
			out, err := node.Again(10 * time.Second)
			if err == nil || !strings.Contains(out, string(trailer.CrashOnceConfigured)) {
				t.Errorf("it started again: %v, %s", err, out)
			}
		}
		rec := s.await(t, darkLimit, node, ledger.Dark, ledger.KnownGood{Version: "1.0.3", Source: ledger.FirstSeen})
		node.ExpectConfiguration(t, harness.InsecureConfiguration(s.broker))
		if len(verdicts(rec)) > 0 {
			t.Errorf("a version that nobody saw in the fleet is judged: %v", verdicts(rec))
		}
		s.expectOutcomes(t, identity, "upgrade-sent", "provisioned")
	}
}

// The older kind of helper names a version with its answer, as the repository
// does.
func testExecHelper(t *testing.T) {
	s := newSite(t)
	from, to := s.linked[0], s.linked[1]
	s.repository.PublishAs(t, "v2.0.0", to)
	s.startDaemon(t, harness.ExecHelperWith(t, harness.InsecureConfiguration(s.broker), map[string]any{"upgrade": "v2.0.0"}))
	node := s.startNode(t, from, "scripted.example.net")

	s.await(t, updateLimit, node, ledger.Idle, ledger.KnownGood{Version: "v2.0.0", Source: ledger.Proved})
	s.expectInFleet(t, node, waiting("1.0.0"), waiting("2.0.0"), inFleet("2.0.0"))
	node.ExpectProgram(t, to, from)
	s.expectFetched(t, "v2.0.0", 1)
}

// awaitInFleet waits until a server starts with a configuration.
func awaitInFleet(t *testing.T, limit time.Duration, node *harness.Node) {
	t.Helper()

	harness.Eventually(t, limit, node.Identity+" in the fleet", func() error {
		starts := node.Starts()
		if len(starts) == 0 || starts[len(starts)-1].Provisioning {
			return fmt.Errorf("its starts are %+v", starts)
		}
		return nil
	})
}

// stopped tells whether a guard stopped a change to a version.
func stopped(rec ledger.Record, by ledger.Guard, version string) bool {
	return slices.ContainsFunc(rec.Evidence, func(e ledger.Evidence) bool { return e.Guard == by && e.Version == version })
}

// expectEnded waits for the end of a server that crashes.
func expectEnded(t *testing.T, node *harness.Node) {
	t.Helper()

	harness.Eventually(t, updateLimit, "end of "+node.Identity, func() error {
		if node.Running() {
			return errors.New("it runs")
		}
		return nil
	})
}

// expectLeft checks the one version that a node left; a reason is only compared
// where one is given.
func expectLeft(t *testing.T, rec ledger.Record, want ledger.RolledBack) {
	t.Helper()

	got := slices.Clone(rec.RolledBack)
	for i := range got {
		got[i].At, got[i].Change = time.Time{}, ""
		if want.Why == "" {
			got[i].Why = ""
		}
	}
	if !slices.Equal(got, []ledger.RolledBack{want}) {
		t.Errorf("left: %+v, not %+v", rec.RolledBack, want)
	}
}

// expectOutcomes waits until the helper was told of these outcomes of a node, in
// this order and among others; those of a trial have its version. It is told of no
// other version that it is good.
func (s *site) expectOutcomes(t *testing.T, identity string, want ...string) {
	t.Helper()

	var got []string
	harness.Eventually(t, 10*time.Second, "outcomes of "+identity, func() error {
		got = nil
		found := 0
		for _, o := range s.decider.Outcomes(t, identity) {
			told := o.Outcome + " " + o.Version
			got = append(got, told)
			if found < len(want) && strings.HasPrefix(told, want[found]) {
				found++
			}
		}
		if found < len(want) {
			return fmt.Errorf("the helper was told of %q, not of %q", got, want)
		}
		return nil
	})
	for _, told := range got {
		if (strings.HasPrefix(told, "proved") || strings.HasPrefix(told, "presumed")) && !slices.Contains(want, told) {
			t.Errorf("the helper was told %s", told)
		}
	}
}
