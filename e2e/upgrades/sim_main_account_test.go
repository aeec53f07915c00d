//go:build linux

package upgrades

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/choria-io/go-choria/lifecycle"

	"github.com/choria-provisioner/provisioner/e2e/harness"
	"github.com/choria-provisioner/provisioner/internal/simfleet"
	"github.com/choria-provisioner/provisioner/version/ledger"
)

// In issuer mode waiting nodes and the fleet are in two accounts. Only who sees
// both can prove a version.
func testMainAccount(t *testing.T, bin harness.Binaries) {
	const trial = 15 * time.Second
	presumed := ledger.KnownGood{Version: after, Source: ledger.Presumed}
	dark := fate{state: ledger.Dark, good: firstSeen}
	settings := func() map[string]any {
		return map[string]any{"versions": map[string]any{"trial": trial.String(), "release_timeout": releaseTimeout.String()}}
	}

	t.Run("seen", func(t *testing.T) {
		t.Parallel()
		s := newSite(t, bin, simfleet.Issuer)
		joins := s.node(t, "joins.example.net", nil)
		silent := s.node(t, "silent.example.net", func(o *simfleet.NodeOptions) { o.Joins = false })
		s.upgrade(t, joins.Identity(), after)
		s.upgrade(t, silent.Identity(), after)

		token, seed, err := s.broker.EventsViewer()
		if err != nil {
			t.Fatal(err)
		}
		with := settings()
		with["state"] = map[string]any{"nats": map[string]any{"servers": []string{s.broker.URL()}, "token_file": token, "seed_file": seed}}
		daemon := s.start(t, with)
		// Whoever waits can say that of any node, and the main account hears it.
		everyFewSeconds(t, func(ctx context.Context) error {
			return s.fleet.AnnouncePresence(ctx, after, silent.Identity())
		})

		s.await(t, 40*time.Second, joins.Identity(), fate{state: ledger.Idle, good: proved}.wrong)
		// one that is configured and not seen is given up, until it is seen after all
		s.await(t, 60*time.Second, silent.Identity(), dark.wrong)
		if !said(daemon, silent.Identity(), "that is not believed") {
			t.Error("the log does not say that events were forged")
		}
		if err := silent.Appear(t.Context(), lifecycle.Alive); err != nil {
			t.Fatal(err)
		}
		s.await(t, 10*time.Second, silent.Identity(), fate{state: ledger.Idle, good: proved}.wrong)
		expectSent(t, joins, after)
		expectSent(t, silent, after)
	})
	t.Run("not seen", func(t *testing.T) {
		t.Parallel()
		s := newSite(t, bin, simfleet.Issuer)
		joins := s.node(t, "joins.example.net", nil)
		s.upgrade(t, joins.Identity(), after)
		s.start(t, settings())

		began := time.Now()
		s.await(t, 40*time.Second, joins.Identity(), func(rec ledger.Record) error {
			if rec.State != ledger.Trial {
				return errors.New("it is not on trial")
			}
			return nil
		})
		s.await(t, 60*time.Second, joins.Identity(), fate{state: ledger.Idle, good: presumed}.wrong)
		if took := time.Since(began); took < trial {
			t.Errorf("presumed after %v", took)
		}
		expectSent(t, joins, after)
	})
}
