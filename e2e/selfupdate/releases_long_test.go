//go:build linux && long

package selfupdate

import (
	"testing"
	"time"

	"github.com/choria-provisioner/provisioner/e2e/harness"
	"github.com/choria-provisioner/provisioner/helper"
	"github.com/choria-provisioner/provisioner/internal/choriaserver/trailer"
	"github.com/choria-provisioner/provisioner/version/ledger"
)

// cyclesLimit is how long it may take until a node was looked at in some cycles,
// of a minute each, between which it is left alone for a minute.
const cyclesLimit = 7 * time.Minute

// What takes cycles of discovery: one daemon, which is never restarted.
func TestReleasesInCycles(t *testing.T) {
	s := newSite(t)
	s.trial = 5 * time.Minute
	s.decider = harness.NewDecider(t, s.bin, harness.InsecureConfiguration(s.broker))
	s.startDaemon(t, s.decider.Helper)

	restored := startRestored(t, s)
	refuses, sentBack := startRefuses(t, s)
	loses := startLosesConfiguration(t, s)

	t.Run("refuses to be configured", func(t *testing.T) {
		awaitInFleet(t, cyclesLimit, refuses)
		sentBack(t)
	})
	t.Run("dark, and restored by a person", restored)
	t.Run("comes back to provisioning", loses)
}

// A server whose release crashes at start is put back by hand. Whoever did that
// says so, and then it is provisioned.
func startRestored(t *testing.T, s *site) (check func(*testing.T)) {
	const identity = "restored.example.net"
	from := s.release(t, "1.0.6", "")
	bad := s.release(t, "2.0.6", trailer.CrashAtStart)
	s.decider.Decide(t, identity, upgradeTo(bad, nil))
	node := s.startNode(t, from, identity)

	return func(t *testing.T) {
		good := ledger.KnownGood{Version: "1.0.6", Source: ledger.FirstSeen}
		s.await(t, darkLimit, node, ledger.Dark, good)
		expectEnded(t, node)
		node.RestoreBackup(t)
		rec := s.await(t, updateLimit, node, ledger.Held, good)
		if rec.Hold.Reason != ledger.HeldExecFailed {
			t.Errorf("held: %+v", rec.Hold)
		}
		s.expectExplained(t, node, "its restart failed", "nodes release")

		s.decider.Decide(t, identity, helper.Keep("it was restored"))
		s.order(t, "release", identity, "--why", "restored from the backup")
		s.await(t, cyclesLimit, node, ledger.Idle, ledger.KnownGood{Version: "1.0.6", Source: ledger.Proved})
		s.expectFetched(t, "2.0.6", 1)
	}
}

// A release that is back in provisioning mode each time it was configured is left
// at the second time.
func startLosesConfiguration(t *testing.T, s *site) (check func(*testing.T)) {
	const identity = "loses-configuration.example.net"
	from := s.release(t, "1.0.7", "")
	bad := s.release(t, "2.0.7", trailer.LoseConfiguration)
	s.decider.Decide(t, identity, upgradeTo(bad, nil))
	node := s.startNode(t, from, identity)

	return func(t *testing.T) {
		rec := s.await(t, cyclesLimit, node, ledger.Idle, ledger.KnownGood{Version: "1.0.7", Source: ledger.Proved})
		s.expectInFleet(t, node, waiting("1.0.7"), waiting("2.0.7"), waiting("2.0.7"), waiting("2.0.7"), waiting("1.0.7"), inFleet("1.0.7"))
		s.expectFetched(t, "2.0.7", 1)
		s.expectFetched(t, "1.0.7", 1)
		expectLeft(t, rec, ledger.RolledBack{From: "2.0.7", To: "1.0.7", Outcome: ledger.OutcomeRolledBack, Barred: true})
	}
}
