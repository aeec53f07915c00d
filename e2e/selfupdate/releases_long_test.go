//go:build linux && long

package selfupdate

import (
	"fmt"
	"slices"
	"strings"
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
	s.trial, s.releaseTimeout = 5*time.Minute, time.Minute
	s.decider = harness.NewDecider(t, s.bin, harness.InsecureConfiguration(s.broker))
	s.startDaemon(t, s.decider.Helper)

	restored := startRestored(t, s)
	refuses, sentBack := startRefuses(t, s)
	loses := startLosesConfiguration(t, s)
	slow, spoilt, interrupted := startSlowDownload(t, s), startSpoilt(t, s), startInterrupted(t, s)

	t.Run("interrupted download", interrupted)
	t.Run("spoilt download", spoilt)
	t.Run("slow download", slow)
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

// slowDownload is longer than a node takes to answer, 20 s, and its caller waits,
// 22 s.
const slowDownload = 30 * time.Second

// The node goes on with its update when nobody waits for its answer any more, and
// is sent nothing meanwhile.
func startSlowDownload(t *testing.T, s *site) (check func(*testing.T)) {
	const identity = "slow-download.example.net"
	from, to := s.linked[0].As(t, "1.0.8", ""), s.linked[0].As(t, "2.0.8", "")
	s.repository.PublishSlow(t, to, slowDownload)
	s.decider.Decide(t, identity, upgradeTo(to, nil))
	node := s.startNode(t, from, identity)

	return func(t *testing.T) {
		rec := s.await(t, cyclesLimit, node, ledger.Idle, ledger.KnownGood{Version: "2.0.8", Source: ledger.Proved})
		s.expectFetched(t, "2.0.8", 1)
		s.expectInFleet(t, node, waiting("1.0.8"), waiting("2.0.8"), inFleet("2.0.8"))
		if !slices.ContainsFunc(rec.Evidence, func(e ledger.Evidence) bool { return strings.HasPrefix(e.Text, "no reply") }) {
			t.Errorf("the answer was in time: %+v", rec.Evidence)
		}
	}
}

// A download with another digest is not taken, and says nothing of the version;
// the node is provisioned as it is, for upgrades are optional here.
func startSpoilt(t *testing.T, s *site) (check func(*testing.T)) {
	const identity = "spoilt-download.example.net"
	from, to := s.linked[0].As(t, "1.0.9", ""), s.linked[0].As(t, "2.0.9", "")
	s.repository.PublishSpoilt(t, to, from)
	s.decider.Decide(t, identity, upgradeTo(to, nil))
	node := s.startNode(t, from, identity)

	return func(t *testing.T) {
		rec := s.await(t, cyclesLimit, node, ledger.Idle, ledger.KnownGood{Version: "1.0.9", Source: ledger.Proved})
		s.expectFetched(t, "2.0.9", 3)
		s.expectInFleet(t, node, waiting("1.0.9"), inFleet("1.0.9"))
		if len(rec.RolledBack) > 0 || len(verdicts(rec)) > 0 || rec.Retry == nil {
			t.Errorf("left %+v, judged %v, next try %+v", rec.RolledBack, verdicts(rec), rec.Retry)
		}
		s.expectExplained(t, node, "invalid checksum")
	}
}

// A node that loses its power while it fetches a release is sent it once more.
func startInterrupted(t *testing.T, s *site) (check func(*testing.T)) {
	const identity = "interrupted-download.example.net"
	from, to := s.linked[0].As(t, "1.0.10", ""), s.linked[0].As(t, "2.0.10", "")
	s.repository.PublishSlow(t, to, slowDownload)
	s.decider.Decide(t, identity, upgradeTo(to, nil))
	node := s.startNode(t, from, identity)

	return func(t *testing.T) {
		harness.Eventually(t, updateLimit, "begin of the download", func() error {
			if got := s.repository.Requests(); !slices.Contains(got, harness.Fetches("2.0.10")[1]) {
				return fmt.Errorf("the repository was asked for %v", got)
			}
			return nil
		})
		s.repository.Publish(t, to)
		node.CutPower(t)
		s.await(t, cyclesLimit, node, ledger.Idle, ledger.KnownGood{Version: "2.0.10", Source: ledger.Proved})
		s.expectFetched(t, "2.0.10", 2)
		node.ExpectProgram(t, to, from)
	}
}
