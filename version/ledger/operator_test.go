package ledger_test

import (
	"errors"
	"testing"
	"time"

	"github.com/choria-provisioner/provisioner/version/ledger"
)

func TestOperator(t *testing.T) {
	for _, row := range []struct {
		why string
		run func(t *testing.T)
	}{
		{"a pin is said once", func(t *testing.T) {
			n := idle(t).apply(ledger.SetPin{Version: "1.0", Why: "freeze"})
			n.apply(ledger.SetPin{Version: "1.0", Why: "freeze"}).wantsUnchanged()
			n.apply(ledger.Unpin{})
			if n.rec.Pin != nil {
				t.Error("still pinned")
			}
			n.apply(ledger.Unpin{}).wantsUnchanged()
		}},
		{"a held node is released, and starts from what it shows", func(t *testing.T) {
			held(t).apply(ledger.Release{Why: "reinstalled"}).wants(ledger.Idle, ledger.NextContinue).
				apply(ledger.Inventory{Version: "1.5"}).wantsGood("1.5", ledger.FirstSeen)
		}},
		{"a dark node is released", func(t *testing.T) { dark(t).apply(ledger.Release{}).wants(ledger.Idle, ledger.NextContinue) }},
		{"a convicted node is released, its version stays barred", func(t *testing.T) {
			convicted(t).apply(ledger.Release{}).wants(ledger.Idle, ledger.NextContinue).wantsBarred("2.0")
		}},
		{"a released node may change again at once", func(t *testing.T) {
			held(t).apply(ledger.Release{}).apply(upgrade("2.0")).wants(ledger.Intent, ledger.NextSend)
		}},
		{"an expected version is known-good, and no surprise", func(t *testing.T) {
			heldThird(t).apply(ledger.Expect{Version: "1.7"}).wants(ledger.Idle, ledger.NextContinue).wantsGood("1.7", ledger.Operator).
				after(time.Minute).apply(ledger.Inventory{Version: "1.7"}).wantsUnchanged()
		}},
		{"a node that was never met is expected", func(t *testing.T) {
			newNode(t).apply(ledger.Expect{Version: "1.7"}).wantsGood("1.7", ledger.Operator)
		}},
	} {
		t.Run(row.why, row.run)
	}
}

func TestOperatorIsRefused(t *testing.T) {
	for _, row := range []struct {
		why  string
		node *node
		ev   ledger.Event
		want error
	}{
		{"nothing is held", idle(t), ledger.Release{}, ledger.ErrNothingHeld},
		{"an update is open", intent(t), ledger.Release{}, ledger.ErrNothingHeld},
		{"an update is open", swapped(t), ledger.Expect{Version: "2.0"}, ledger.ErrUnderWay},
		{"no version", idle(t), ledger.Expect{Version: "../1"}, ledger.ErrInvalidVersion},
		{"no version", idle(t), ledger.SetPin{}, ledger.ErrInvalidVersion},
	} {
		result, err := ledger.Step(row.node.rec, row.ev, row.node.env)
		if !errors.Is(err, row.want) || result.Changed {
			t.Errorf("%s: %T: %v, want %v", row.why, row.ev, err, row.want)
		}
	}
}
