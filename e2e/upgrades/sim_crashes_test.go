//go:build linux

package upgrades

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/choria-io/go-choria/lifecycle"

	"github.com/choria-provisioner/provisioner/e2e/harness"
	"github.com/choria-provisioner/provisioner/helper"
	"github.com/choria-provisioner/provisioner/internal/simfleet"
	"github.com/choria-provisioner/provisioner/version/ledger"
)

// A daemon that is killed in the middle: the next one comes to the same verdict,
// and no node is sent its version twice.
func testKilled(t *testing.T, bin harness.Binaries) {
	const nodes = 40
	s := newSite(t, bin, simfleet.Insecure)
	for i := range nodes {
		n := s.node(t, fmt.Sprintf("node-%02d.example.net", i), func(o *simfleet.NodeOptions) { o.Splay = 2 * time.Second })
		s.upgrade(t, n.Identity(), after)
	}

	sent := func() int { return s.fleet.Counts().Calls["choria_provision#release_update"] }
	arrived := func() (count int) {
		for _, n := range s.fleet.Nodes() {
			if n.Version() == after {
				count++
			}
		}
		return count
	}
	for _, moment := range []struct {
		name string
		come func() bool
	}{
		{"the first node was sent its version", func() bool { return sent() > 0 }},
		{"half of them were", func() bool { return sent() >= nodes/2 }},
		{"some are back", func() bool { return arrived() > nodes/2 }},
		{"half are in the fleet", func() bool { return s.fleet.Counts().Restarted >= nodes/2 }},
	} {
		daemon := s.start(t, nil)
		harness.Eventually(t, 60*time.Second, moment.name, func() error {
			if !moment.come() {
				return fmt.Errorf("%+v", s.fleet.Counts())
			}
			return nil
		})
		daemon.Kill()
		t.Logf("killed when %s: %d were sent, %d have it, %d are in the fleet", moment.name, sent(), arrived(), s.fleet.Counts().Restarted)
	}

	daemon := s.start(t, nil)
	// Nobody may have heard a node when it came into the fleet.
	everyFewSeconds(t, func(ctx context.Context) error {
		for _, n := range s.fleet.Nodes() {
			if n.State() != simfleet.Restarted {
				continue
			}
			if err := n.Appear(ctx, lifecycle.Alive); err != nil {
				return err
			}
		}
		return nil
	})
	began := time.Now()
	for _, n := range s.fleet.Nodes() {
		s.await(t, time.Until(began.Add(100*time.Second)), n.Identity(), fate{state: ledger.Idle, good: proved}.wrong)
	}
	for _, n := range s.fleet.Nodes() {
		expectSent(t, n, after)
		if n.State() != simfleet.Restarted {
			t.Errorf("%s is %v", n.Identity(), n.State())
		}
	}
	if err := daemon.ExpectMetric("choria_provisioner_ledger_errors_total", 0); err != nil {
		t.Error(err)
	}
}

// A helper that dies when it is asked changes no version; the one that is
// started after it does.
func testHelperDies(t *testing.T, bin harness.Binaries) {
	s := newSite(t, bin, simfleet.Insecure)
	n := s.node(t, "node.example.net", nil)
	s.decider.DieAt(t, n.Identity())
	daemon := s.start(t, nil)

	harness.Eventually(t, 20*time.Second, "death of the helper", func() error {
		if !said(daemon, n.Identity(), "The node waits for the helper") {
			return fmt.Errorf("nothing is said of it: %v", daemon.Lines())
		}
		return nil
	})
	if rec, err := s.record(t, n.Identity()); err != nil || rec.State != ledger.Idle || rec.Trial != nil {
		t.Errorf("record: %+v, %v", rec, err)
	}
	expectSent(t, n)
	if configured(n) > 0 {
		t.Error("the node was configured without a decision")
	}

	s.upgrade(t, n.Identity(), after)
	s.await(t, 100*time.Second, n.Identity(), fate{state: ledger.Idle, good: proved}.wrong)
	expectSent(t, n, after)
}

// A helper that wants the new version on the old one, and the old one on the new
// one, moves a node there and back once.
func testHelperFlaps(t *testing.T, bin harness.Binaries) { flap(t, bin) }

func flap(t *testing.T, bin harness.Binaries) (*site, *simfleet.Node) {
	t.Helper()

	s := newSite(t, bin, simfleet.Insecure)
	n := s.node(t, "node.example.net", nil)
	s.decider.DecideAt(t, n.Identity(), before, helper.Upgrade(after, "the test wants it"))
	s.decider.DecideAt(t, n.Identity(), after, helper.Rollback(before, "the test wants it"))
	s.start(t, nil)

	s.await(t, 60*time.Second, n.Identity(), fate{state: ledger.Idle, good: stayed}.wrong)
	harness.Eventually(t, 5*time.Second, "fleet", fate{joins: before}.inFleet(n))
	expectSent(t, n, after, before)

	return s, n
}
