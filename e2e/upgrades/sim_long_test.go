//go:build linux && long

package upgrades

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/choria-io/go-choria/providers/agent/mcorpc"

	"github.com/choria-provisioner/provisioner/e2e/harness"
	"github.com/choria-provisioner/provisioner/helper"
	"github.com/choria-provisioner/provisioner/internal/simfleet"
	"github.com/choria-provisioner/provisioner/version/ledger"
)

// What takes minutes: discovery alone finds the nodes again, and the pace of
// updates that fail is a minute and more.
func TestSimulatedLong(t *testing.T) {
	bin := harness.Build(t)

	for _, test := range []struct {
		name string
		run  func(*testing.T, harness.Binaries)
	}{
		{"fates", testLongFates},
		{"crash loop", testCrashLoop},
		{"repository down", testRepositoryDown},
		{"helper flaps on", testHelperFlapsOn},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(t, bin)
		})
	}
}

func testLongFates(t *testing.T, bin harness.Binaries) {
	expectFates(t, bin, 6*time.Minute, false, map[string]any{
		"versions": map[string]any{"trial": "10m", "release_timeout": releaseTimeout.String()},
	}, append(shortFates(),
		fate{fault: "update-lost-always", state: ledger.Held, hold: ledger.HeldUnsettled, good: firstSeen, sent: []string{after, after}, joins: before},
	))
}

// A node that crashes soon after it was configured with its new version waits
// again, and is rolled back the second time. Until it crashed it was not seen.
func testCrashLoop(t *testing.T, bin harness.Binaries) {
	expectFates(t, bin, 8*time.Minute, false, map[string]any{
		"versions": map[string]any{"trial": "5m", "release_timeout": releaseTimeout.String()},
	}, []fate{
		{fault: "new-version-crashes", state: ledger.Idle, good: stayed, barred: []string{after}, sent: []string{after, before}, joins: before},
	})
}

// The repository is down for longer than the bound of an update when a node is
// to be upgraded, and again when it has to be rolled back. Both are done once it
// is back, and nothing is held against a version that the node never had.
func testRepositoryDown(t *testing.T, bin harness.Binaries) {
	const bound = 30 * time.Second
	s := newSite(t, bin, simfleet.Insecure)
	var down atomic.Bool
	down.Store(true)
	n := s.node(t, "node.example.net", func(o *simfleet.NodeOptions) {
		o.Update = func(*simfleet.Node, string) simfleet.Update {
			if down.Load() {
				return simfleet.Update{Failed: errors.New("release not found: connection refused")}
			}
			return simfleet.Update{}
		}
		o.Intercept = func(n *simfleet.Node, c simfleet.Call) simfleet.Override {
			if c.Action != "choria_provision#configure" || n.Version() != after {
				return simfleet.Override{}
			}
			// it is down again by the time that the node has to go back
			down.Store(true)
			return simfleet.Override{Status: mcorpc.Aborted, Message: "unknown setting"}
		}
	})
	s.upgrade(t, n.Identity(), after)
	s.start(t, map[string]any{
		"upgrades_optional": false,
		"versions":          map[string]any{"trial": "10m", "release_timeout": bound.String()},
	})
	everyFewSeconds(t, func(ctx context.Context) error {
		if n.Gone() {
			return nil
		}
		return s.fleet.Announce(ctx, n.Identity())
	})
	in := func(state ledger.State) func(ledger.Record) error {
		return func(rec ledger.Record) error {
			if rec.State != state || rec.Retry == nil {
				return errOther
			}
			return nil
		}
	}
	outlast := func(state ledger.State) {
		t.Helper()
		rec := s.await(t, 2*time.Minute, n.Identity(), in(state))
		if len(rec.RolledBack) > 0 && state == ledger.Idle {
			t.Errorf("%s is held against the node: %+v", after, rec.RolledBack)
		}
		began := time.Now()
		harness.Eventually(t, 2*bound, "bound", func() error {
			if time.Since(began) < bound+5*time.Second {
				return errors.New("not yet")
			}
			return nil
		})
		s.await(t, time.Second, n.Identity(), in(state))
		down.Store(false)
	}

	outlast(ledger.Idle)
	outlast(ledger.Convicted)
	// Upgrades are not optional: one that wants what is barred gets nothing.
	s.decider.Decide(t, n.Identity(), helper.Keep("it was left"))
	s.await(t, 3*time.Minute, n.Identity(), fate{state: ledger.Idle, good: stayed, barred: []string{after}}.wrong)
	if n.State() != simfleet.Restarted || n.Version() != before {
		t.Errorf("the node runs %s and is %v", n.Version(), n.State())
	}
}

// The next time that it waits, within the bound, the helper that flaps wants a
// third change, and the node is held. For a minute it is taken for one that is
// about to restart.
func testHelperFlapsOn(t *testing.T, bin harness.Binaries) {
	s, n := flap(t, bin)
	if err := n.Return(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	everyFewSeconds(t, func(ctx context.Context) error {
		if n.Gone() {
			return nil
		}
		return s.fleet.Announce(ctx, n.Identity())
	})

	held := fate{state: ledger.Held, hold: ledger.HeldThirdChange, good: stayed, joins: before}
	s.await(t, 90*time.Second, n.Identity(), held.wrong)
	harness.Eventually(t, 5*time.Second, "fleet", held.inFleet(n))
	expectSent(t, n, after, before)
}
