package releases_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/choria-provisioner/provisioner/version/ledger"
	"github.com/choria-provisioner/provisioner/version/ledger/memstore"
)

// With the disk full, all nodes whose bound has passed fail in every look: that
// may neither fill the log, which may be on that disk, nor take the processor.
func TestFullDiskIsSaidInBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, &memstore.Memory{}, 0)
		defer func() { s.stop() }()
		const nodes = 300
		for i := range nodes {
			for _, ev := range []ledger.Event{
				ledger.Inventory{Version: "1.0"},
				ledger.Decision{Direction: ledger.Upgrade, Version: "2.0", Current: "1.0", Upgradable: true, AttemptID: "a"},
				ledger.Reply{AttemptID: "a", Result: ledger.ReplyOK},
			} {
				if _, err := s.Apply(t.Context(), fmt.Sprint(i), ev); err != nil {
					t.Fatal(err)
				}
			}
		}
		time.Sleep(9 * time.Minute)

		s.store.full.Store(true)
		time.Sleep(2 * time.Minute)
		if lines := strings.Count(s.logged(), "Could not record"); lines < 2 || lines > 13 {
			t.Errorf("%d lines", lines)
		}
		if tries := s.gauge(t, "ledger_errors_total"); tries > 130*120 {
			t.Errorf("%v tries to record what cannot be", tries)
		}

		s.store.full.Store(false)
		time.Sleep(5 * time.Second)
		if dark := s.gauge(t, "dark_nodes"); dark != nodes {
			t.Errorf("%v nodes are dark", dark)
		}
	})
}

// The disk is full when the reply to an update comes. Nothing may be made of the
// node without it: a broken one would be sent the update again, over its only
// backup.
func TestReplyOutlivesAFullDisk(t *testing.T) {
	for _, tc := range []struct {
		reply ledger.ReplyResult
		why   ledger.HoldReason
	}{
		{ledger.ReplyBroken, ledger.HeldBroken},
		{ledger.ReplyOK, ledger.HeldExecFailed},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newSite(t, &memstore.Memory{}, 0)
			defer func() { s.stop() }()
			s.apply(t, ledger.Inventory{Version: "1.0"})
			s.apply(t, ledger.Decision{Direction: ledger.Upgrade, Version: "2.0", Current: "1.0", Upgradable: true, AttemptID: "a"})
			s.store.full.Store(true)
			if _, err := s.Apply(t.Context(), crashNode, ledger.Reply{AttemptID: "a", Result: tc.reply}); err == nil {
				t.Fatal("it was recorded on a full disk")
			}
			if _, err := s.Apply(t.Context(), crashNode, ledger.Inventory{Version: "1.0", LockFree: true}); err == nil {
				t.Fatal("the node goes on without its reply")
			}

			s.store.full.Store(false)
			for range 60 {
				if res := s.apply(t, ledger.Inventory{Version: "1.0", LockFree: true}); res.Next == ledger.NextSend {
					t.Fatalf("the update is sent again after the reply %s", tc.reply)
				}
				time.Sleep(time.Minute)
			}
			if rec, err := s.store.Get(t.Context(), crashNode); err != nil || rec.Hold == nil || rec.Hold.Reason != tc.why {
				t.Errorf("%s: %+v, %v", tc.reply, rec.Hold, err)
			}
		})
	}
}

// A node that comes back while nothing can be recorded did come back: it may not
// go dark as soon as the disk has room, and put its version in quarantine.
func TestNoTimePassesOnAFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, &memstore.Memory{}, 0)
		defer func() { s.stop() }()
		s.sent(t)
		s.store.full.Store(true)
		for range 60 {
			time.Sleep(time.Minute)
			if _, err := s.Apply(t.Context(), crashNode, ledger.Inventory{Version: "2.0"}); err == nil {
				t.Fatal("it was recorded on a full disk")
			}
		}

		s.store.full.Store(false)
		time.Sleep(time.Minute)
		if s.State(crashNode) != ledger.Swapped || s.gauge(t, "quarantined_versions") != 0 {
			t.Errorf("%s, %v versions in quarantine", s.State(crashNode), s.gauge(t, "quarantined_versions"))
		}
		if res := s.apply(t, ledger.Inventory{Version: "2.0"}); res.Record.State != ledger.Arrived {
			t.Errorf("%s", res.Record.State)
		}

		// Nothing more is tried, and time goes on.
		s.store.full.Store(true)
		if _, err := s.Apply(t.Context(), crashNode, ledger.Configured{}); err == nil {
			t.Fatal("it was recorded on a full disk")
		}
		s.store.full.Store(false)
		time.Sleep(16 * time.Minute)
		if state := s.State(crashNode); state != ledger.Idle {
			t.Errorf("%s after its bound", state)
		}
	})
}
