package ledger_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/choria-provisioner/provisioner/version/ledger"
)

// The rows of the state table of the design, in its order and words.
func TestTable(t *testing.T) {
	for _, row := range []struct {
		row string
		run func(t *testing.T)
	}{
		{"unknown, first inventory: known-good is the version shown", func(t *testing.T) {
			idle(t).wants(ledger.Idle, ledger.NextContinue).wantsGood("1.0", ledger.FirstSeen)
		}},
		{"unknown, first inventory: unless it is barred", func(t *testing.T) {
			n := newNode(t)
			n.rec.RolledBack = []ledger.RolledBack{{From: "v1.0", Barred: true, Outcome: ledger.OutcomeHalted}}
			n.apply(ledger.Inventory{Version: "1.0"}).wants(ledger.Idle, ledger.NextContinue)
			if n.rec.KnownGood != nil {
				t.Errorf("known-good %+v", n.rec.KnownGood)
			}
		}},
		{"unknown, first inventory: unless it is quarantined", func(t *testing.T) {
			n := newNode(t)
			n.env.Fleet = fleet{"1.0": {Quarantined: true}}
			n.apply(ledger.Inventory{Version: "1.0"}).wants(ledger.Idle, ledger.NextContinue)
			if n.rec.KnownGood != nil {
				t.Errorf("known-good %+v", n.rec.KnownGood)
			}
		}},
		{"idle, a decision passes the guards: the intent first, then the RPC", func(t *testing.T) {
			n := intent(t).wants(ledger.Intent, ledger.NextSend).wantsSends("2.0")
			if !n.last.Changed || n.rec.Trial.Version != "2.0" || n.rec.Trial.From != "1.0" || n.rec.Trial.Epoch != 1 {
				t.Errorf("changed %v, trial %+v", n.last.Changed, n.rec.Trial)
			}
		}},
		{"intent, reply OK: swapped, left alone for the restart", func(t *testing.T) {
			swapped(t).wants(ledger.Swapped, ledger.NextLeave).
				after(time.Second).apply(ledger.Inventory{Version: "1.0", LockFree: true}).
				wants(ledger.Swapped, ledger.NextLeave).wantsUnchanged()
		}},
		{"intent, an upgraded event: swapped", func(t *testing.T) {
			intent(t).apply(ledger.Upgraded{Version: "2.0"}).wants(ledger.Swapped, ledger.NextLeave)
		}},
		{"intent, an upgraded event for another version: nothing", func(t *testing.T) {
			intent(t).apply(ledger.Upgraded{Version: "3.0"}).wantsUnchanged()
		}},
		{"intent, reply lost: verify", func(t *testing.T) {
			verify(t).wants(ledger.Verify, ledger.NextLeave)
		}},
		{"intent, found by a new leader: verify", func(t *testing.T) {
			intent(t).leader().apply(ledger.Found{}).wants(ledger.Verify, ledger.NextLeave)
		}},
		{"intent, found by its own leader: nothing", func(t *testing.T) {
			intent(t).apply(ledger.Found{}).wantsUnchanged()
		}},
		{"intent, release rolled back: no verdict, backoff, idle", func(t *testing.T) {
			n := intent(t).reply(ledger.ReplyRolledBack).wants(ledger.Idle, ledger.NextContinue).
				wantsVerdicts().wantsBarred().wantsGood("1.0", ledger.FirstSeen)
			if n.apply(upgrade("2.0")).last.Ruling.Guard != ledger.GuardBackoff {
				t.Errorf("ruling %+v", n.last.Ruling)
			}
			n.after(time.Minute).apply(upgrade("2.0")).wants(ledger.Intent, ledger.NextSend)
		}},
		{"intent, rollback also failed: held, alert, never resent", func(t *testing.T) {
			held(t).wants(ledger.Held, ledger.NextDefer).wantsHold(ledger.HeldBroken).wantsBarred().
				after(time.Hour).apply(ledger.Inventory{Version: "1.0", LockFree: true}).wants(ledger.Held, ledger.NextDefer).
				apply(upgrade("2.0")).wants(ledger.Held, ledger.NextDefer).wantsSends("2.0")
		}},
		{"intent, another refusal: a configuration error, no verdict", func(t *testing.T) {
			n := intent(t).reply(ledger.ReplyRefused).wants(ledger.Idle, ledger.NextContinue).wantsVerdicts().wantsBarred()
			if a, ok := n.last.Effects[0].(ledger.Alert); !ok || a.Kind != ledger.AlertConfiguration {
				t.Errorf("effects %+v", n.last.Effects)
			}
			n.apply(upgrade("2.0")).wants(ledger.Intent, ledger.NextSend)
		}},
		{"verify, inventory shows the target: arrived", func(t *testing.T) {
			verify(t).apply(ledger.Inventory{Version: "2.0"}).wants(ledger.Arrived, ledger.NextContinue)
		}},
		{"verify, old version and #jwt answers: one resend", func(t *testing.T) {
			n := verify(t).after(30 * time.Second)
			n.apply(ledger.Inventory{Version: "1.0", LockFree: true}).wants(ledger.Verify, ledger.NextLeave)
			n.after(15*time.Second).apply(ledger.Inventory{Version: "1.0", LockFree: true}).
				wants(ledger.Intent, ledger.NextSend).wantsSends("2.0", "2.0")
			if n.rec.Trial.AttemptID != "up-2.0.2" {
				t.Errorf("attempt %s: a late reply to the first would be taken for its own", n.rec.Trial.AttemptID)
			}
		}},
		{"verify, the lock was free only once, between update and restart: no resend", func(t *testing.T) {
			verify(t).after(30*time.Second).apply(ledger.Inventory{Version: "1.0", LockFree: true}).
				after(3*time.Second).apply(ledger.Inventory{Version: "1.0", LockFree: true}).wants(ledger.Verify, ledger.NextLeave).
				after(20*time.Second).apply(ledger.Inventory{Version: "2.0"}).wants(ledger.Arrived, ledger.NextContinue).wantsSends("2.0")
		}},
		{"verify, old version and #jwt does not answer: nothing is sent", func(t *testing.T) {
			verify(t).after(30*time.Second).apply(ledger.Inventory{Version: "1.0"}).
				after(time.Minute).apply(ledger.Inventory{Version: "1.0"}).wants(ledger.Verify, ledger.NextLeave).wantsSends("2.0")
		}},
		{"verify, the resend was not taken either: held", func(t *testing.T) {
			n := verify(t).settle().reply(ledger.ReplyLost).settle()
			n.wants(ledger.Held, ledger.NextContinue).wantsHold(ledger.HeldUnsettled).wantsSends("2.0", "2.0").wantsBarred()
		}},
		{"swapped, inventory with the target: arrived, configured: on trial", func(t *testing.T) {
			arrived(t).wants(ledger.Arrived, ledger.NextContinue).apply(ledger.Configured{}).wants(ledger.Trial, ledger.NextContinue)
		}},
		{"swapped, old version after an OK reply: held, never resent", func(t *testing.T) {
			swapped(t).after(time.Minute).apply(ledger.Inventory{Version: "1.0", LockFree: true}).
				wants(ledger.Held, ledger.NextDefer).wantsHold(ledger.HeldExecFailed).wantsSends("2.0").wantsBarred()
		}},
		{"swapped by an event alone, old version: that may be forged, so verify's rules", func(t *testing.T) {
			n := intent(t).apply(ledger.Upgraded{Version: "2.0"}).settle()
			n.wants(ledger.Intent, ledger.NextSend).wantsSends("2.0", "2.0")
		}},
		{"swapped by an event, then the reply says that nothing was done", func(t *testing.T) {
			intent(t).apply(ledger.Upgraded{Version: "2.0"}).reply(ledger.ReplyRolledBack).wants(ledger.Idle, ledger.NextContinue)
		}},
		{"swapped, a third version: held, counts nothing", func(t *testing.T) {
			heldThird(t).wants(ledger.Held, ledger.NextContinue).wantsHold(ledger.HeldThirdVersion).
				wantsBarred().wantsVerdicts("inconclusive 2.0")
		}},
		{"swapped, nothing within the bound: dark, nothing in rolled_back", func(t *testing.T) {
			n := swapped(t).after(releaseBound - 1).apply(ledger.Tick{}).wantsUnchanged()
			n.after(1).apply(ledger.Tick{}).wants(ledger.Dark, ledger.NextContinue).wantsBarred().wantsVerdicts()
			if len(n.rec.RolledBack) != 0 {
				t.Errorf("rolled back %+v", n.rec.RolledBack)
			}
		}},
		{"swapped, an answer to discovery within the bound: not dark", func(t *testing.T) {
			swapped(t).after(releaseBound-time.Minute).apply(ledger.Answered{}).
				after(2*time.Minute).apply(ledger.Tick{}).wants(ledger.Swapped, ledger.NextContinue).
				after(releaseBound).apply(ledger.Tick{}).wants(ledger.Dark, ledger.NextContinue)
		}},
		{"swapped, forged answers for ever: held, not on trial for ever", func(t *testing.T) {
			n := swapped(t)
			for range 100 {
				n.after(time.Minute).apply(ledger.Answered{}).apply(ledger.Tick{})
			}
			n.wants(ledger.Held, ledger.NextContinue).wantsHold(ledger.HeldUnsettled)
		}},
		{"dark, comes back with the target: as swapped", func(t *testing.T) {
			dark(t).after(time.Hour).apply(ledger.Inventory{Version: "2.0"}).wants(ledger.Arrived, ledger.NextContinue)
		}},
		{"dark, comes back with the old version after an OK reply: as swapped", func(t *testing.T) {
			dark(t).apply(ledger.Inventory{Version: "1.0", LockFree: true}).wantsHold(ledger.HeldExecFailed)
		}},
		{"dark after a lost reply, comes back with the old version: as verify", func(t *testing.T) {
			n := verify(t).after(releaseBound).apply(ledger.Tick{}).wants(ledger.Dark, ledger.NextContinue)
			n.settle().wants(ledger.Intent, ledger.NextSend).wantsSends("2.0", "2.0")
		}},
		{"arrived, configure refused twice: convicted, verdict and intent in one write", func(t *testing.T) {
			n := arrived(t).refuse().wants(ledger.Arrived, ledger.NextDefer)
			n.refuse().wants(ledger.Intent, ledger.NextSend).wantsBarred("2.0").wantsSends("2.0", "1.0").wantsVerdicts("rolled-back 2.0")
			if n.rec.Trial.Version != "1.0" || n.rec.Trial.From != "2.0" || n.rec.Trial.Direction != ledger.Rollback {
				t.Errorf("trial %+v", n.rec.Trial)
			}
		}},
		{"arrived, lock, gate and network errors: do not count", func(t *testing.T) {
			n := arrived(t)
			for range 5 {
				n.apply(ledger.Refused{Action: "choria_provision#configure", Excused: true}).wantsUnchanged()
			}
			n.wants(ledger.Arrived, ledger.NextContinue)
		}},
		{"arrived, two refusals in one pass: one", func(t *testing.T) {
			n := arrived(t)
			refused := ledger.Refused{Action: "choria_provision#configure", Pass: "p"}
			n.apply(refused).apply(refused).wantsUnchanged().wants(ledger.Arrived, ledger.NextContinue)
		}},
		{"trial, seen in the main account: proved", func(t *testing.T) {
			trial(t).apply(ledger.SeenInMain{Version: "2.0"}).
				wants(ledger.Idle, ledger.NextContinue).wantsGood("2.0", ledger.Proved).wantsVerdicts("proved 2.0")
		}},
		{"trial, another version in the main account: no proof", func(t *testing.T) {
			trial(t).apply(ledger.SeenInMain{Version: "1.0"}).wantsUnchanged().wants(ledger.Trial, ledger.NextContinue)
		}},
		{"trial, the bound passes unseen: presumed", func(t *testing.T) {
			trial(t).after(trialBound).apply(ledger.Tick{}).wants(ledger.Trial, ledger.NextContinue).
				after(time.Minute).apply(ledger.Tick{}).
				wants(ledger.Idle, ledger.NextContinue).wantsGood("2.0", ledger.Presumed).wantsVerdicts("presumed 2.0")
		}},
		{"trial, the bound passes unseen where it would be seen: dark", func(t *testing.T) {
			n := trial(t)
			n.env.Policy.MainView = true
			n.after(trialBound+time.Minute).apply(ledger.Tick{}).wants(ledger.Dark, ledger.NextContinue).
				wantsGood("1.0", ledger.FirstSeen).wantsVerdicts().wantsBarred()
			n.apply(ledger.SeenInMain{Version: "2.0"}).wantsGood("2.0", ledger.Proved)
		}},
		{"trial, back in provisioning: counted, convicted at the limit", func(t *testing.T) {
			n := trial(t).after(time.Minute).apply(ledger.Inventory{Version: "2.0"}).wants(ledger.Arrived, ledger.NextContinue)
			n.apply(ledger.Inventory{Version: "2.0"}).wantsUnchanged()
			n.apply(ledger.Configured{}).after(time.Minute).apply(ledger.Inventory{Version: "2.0"}).
				wants(ledger.Intent, ledger.NextSend).wantsSends("2.0", "1.0").wantsBarred("2.0")
		}},
		{"trial, not restarted yet: not back", func(t *testing.T) {
			trial(t).after(2 * time.Second).apply(ledger.Inventory{Version: "2.0"}).wantsUnchanged()
		}},
		{"trial, back after the bound: the trial is over", func(t *testing.T) {
			trial(t).after(trialBound+time.Minute).apply(ledger.Inventory{Version: "2.0"}).
				wants(ledger.Idle, ledger.NextContinue).wantsGood("2.0", ledger.Presumed)
		}},
		{"convicted, not reversible: held", func(t *testing.T) {
			n := idle(t)
			d := upgrade("2.0")
			d.NotReversible = true
			n.apply(d).reply(ledger.ReplyOK).after(time.Minute).apply(ledger.Inventory{Version: "2.0"}).refuse().refuse().
				wants(ledger.Held, ledger.NextDefer).wantsHold(ledger.HeldConvicted).wantsSends("2.0").
				wantsBarred("2.0").wantsVerdicts("halted 2.0")
		}},
		{"convicted, no known-good: held", func(t *testing.T) {
			n := arrived(t)
			n.rec.KnownGood = nil
			n.refuse().refuse().wantsHold(ledger.HeldConvicted).wantsSends("2.0")
		}},
		{"convicted, known-good is barred: held", func(t *testing.T) {
			n := arrived(t)
			n.rec.RolledBack = []ledger.RolledBack{{From: "1.0", Barred: true}}
			n.refuse().refuse().wantsHold(ledger.HeldConvicted).wantsSends("2.0")
		}},
		{"convicted, known-good is quarantined: held", func(t *testing.T) {
			n := arrived(t)
			n.env.Fleet = fleet{"1.0": {Quarantined: true}}
			n.refuse().refuse().wantsHold(ledger.HeldConvicted).wantsSends("2.0")
		}},
		{"convicted, the second time for this version: held", func(t *testing.T) {
			n := arrived(t)
			n.rec.RolledBack = []ledger.RolledBack{{From: "2.0"}}
			n.refuse().refuse().wantsHold(ledger.HeldConvicted).wantsSends("2.0")
		}},
		{"convicted, pinned to it: held", func(t *testing.T) {
			arrived(t).apply(ledger.SetPin{Version: "2.0"}).refuse().refuse().wantsHold(ledger.HeldConvicted).wantsSends("2.0")
		}},
		{"convicted, upgrades were switched off: held", func(t *testing.T) {
			n := arrived(t)
			n.env.Policy.Upgrades = false
			n.refuse().refuse().wantsHold(ledger.HeldConvicted).wantsSends("2.0")
		}},
		{"convicted, what it went back to is convicted too: held, never flapped", func(t *testing.T) {
			n := arrived(t).refuse().refuse().reply(ledger.ReplyOK).after(time.Minute).apply(ledger.Inventory{Version: "1.0"})
			n.refuse().refuse().wantsHold(ledger.HeldConvicted).wantsSends("2.0", "1.0").wantsBarred("2.0", "1.0")
		}},
		{"convicted, the way back fails on the node: tried again, without an end and without a verdict", func(t *testing.T) {
			n := convicted(t).wants(ledger.Convicted, ledger.NextDefer)
			for i := range 4 {
				n.apply(ledger.Inventory{Version: "2.0"}).wants(ledger.Convicted, ledger.NextDefer).wantsUnchanged()
				n.after(2*time.Hour).apply(ledger.Tick{}).wantsUnchanged().
					apply(ledger.Inventory{Version: "2.0"}).wants(ledger.Intent, ledger.NextSend).reply(ledger.ReplyRolledBack)
				if n.rec.Retry.Failures != i+2 {
					t.Errorf("failures %d", n.rec.Retry.Failures)
				}
			}
			n.after(2*time.Hour).apply(ledger.Inventory{Version: "2.0"}).reply(ledger.ReplyOK).
				after(time.Minute).apply(ledger.Inventory{Version: "1.0"}).wants(ledger.Arrived, ledger.NextContinue).
				apply(ledger.Configured{}).apply(ledger.SeenInMain{Version: "1.0"}).
				wantsGood("1.0", ledger.Proved).wantsBarred("2.0").wantsVerdicts("rolled-back 2.0", "proved 1.0")
		}},
		{"convicted, a reply is lost after many refusals: verify's rules as for the first", func(t *testing.T) {
			n := convicted(t)
			for range 5 {
				n.after(2 * time.Hour).apply(ledger.Inventory{Version: "2.0"}).reply(ledger.ReplyRolledBack)
			}
			n.after(2 * time.Hour).apply(ledger.Inventory{Version: "2.0"}).reply(ledger.ReplyLost)
			look := ledger.Inventory{Version: "2.0", LockFree: true}
			n.after(30*time.Second).apply(look).after(15*time.Second).apply(look).wants(ledger.Intent, ledger.NextSend)
		}},
		{"convicted, shows the version it should go back to", func(t *testing.T) {
			convicted(t).apply(ledger.Inventory{Version: "1.0"}).wants(ledger.Arrived, ledger.NextContinue)
		}},
	} {
		t.Run(row.row, row.run)
	}
}

// settle looks at a node with the old version and a free lock, twice.
func (n *node) settle() *node {
	n.t.Helper()
	look := ledger.Inventory{Version: "1.0", LockFree: true}

	return n.after(30 * time.Second).apply(look).after(15 * time.Second).apply(look)
}

// What the table leaves open.
func TestBesideTheTable(t *testing.T) {
	for _, row := range []struct {
		why string
		run func(t *testing.T)
	}{
		{"an idle node that nothing new is seen of costs no write", func(t *testing.T) {
			idle(t).apply(ledger.Inventory{Version: "1.0"}).wantsUnchanged().
				apply(ledger.Decision{Current: "1.0", Upgradable: true}).wantsUnchanged().wants(ledger.Idle, ledger.NextContinue).
				apply(upgrade("1.0")).wantsUnchanged().apply(ledger.Tick{}).wantsUnchanged().
				apply(ledger.Answered{}).wantsUnchanged().apply(ledger.Configured{}).wantsUnchanged().
				apply(ledger.Upgraded{Version: "2.0"}).wantsUnchanged().leader().apply(ledger.Found{}).wantsUnchanged()
		}},
		{"a node that others changed starts from there", func(t *testing.T) {
			idle(t).apply(ledger.Inventory{Version: "1.5"}).wantsGood("1.5", ledger.FirstSeen)
		}},
		{"a node without a version is nobody yet", func(t *testing.T) {
			newNode(t).apply(ledger.Inventory{}).wantsUnchanged().wants(ledger.Unknown, ledger.NextContinue)
		}},
		{"no version shown while an update is open says nothing", func(t *testing.T) {
			swapped(t).after(time.Minute).apply(ledger.Inventory{}).wantsUnchanged().wants(ledger.Swapped, ledger.NextLeave)
		}},
		{"the reply to another attempt is ignored", func(t *testing.T) {
			intent(t).apply(ledger.Reply{AttemptID: "another", Result: ledger.ReplyBroken}).wantsUnchanged()
		}},
		{"a late reply to the attempt before the resend is ignored", func(t *testing.T) {
			verify(t).settle().apply(ledger.Reply{AttemptID: "up-2.0", Result: ledger.ReplyBroken}).wantsUnchanged()
		}},
		{"the reply comes after the node", func(t *testing.T) {
			intent(t).apply(ledger.Inventory{Version: "2.0"}).wants(ledger.Arrived, ledger.NextContinue).
				reply(ledger.ReplyLost).wantsUnchanged().reply(ledger.ReplyOK).wantsUnchanged()
		}},
		{"an inventory while the call is out decides nothing", func(t *testing.T) {
			intent(t).apply(ledger.Inventory{Version: "1.0", LockFree: true}).wantsUnchanged().wants(ledger.Intent, ledger.NextLeave)
		}},
		{"a new leader's first look settles what it finds, without Found", func(t *testing.T) {
			intent(t).leader().apply(ledger.Inventory{Version: "2.0"}).wants(ledger.Arrived, ledger.NextContinue)
		}},
		{"the same decision again sends again: its write was of unknown fate", func(t *testing.T) {
			intent(t).apply(upgrade("2.0")).wantsUnchanged().wants(ledger.Intent, ledger.NextSend)
		}},
		{"another decision while the call is out is left alone", func(t *testing.T) {
			n := intent(t).apply(upgrade("3.0")).wants(ledger.Intent, ledger.NextLeave).wantsSends("2.0")
			if n.last.Ruling.Guard != ledger.GuardTrialRunning {
				t.Errorf("ruling %+v", n.last.Ruling)
			}
		}},
		{"a decision on an unknown node meets it first", func(t *testing.T) {
			newNode(t).apply(upgrade("2.0")).wants(ledger.Intent, ledger.NextSend).wantsGood("1.0", ledger.FirstSeen)
		}},
		{"arrived, and never configured: inconclusive", func(t *testing.T) {
			arrived(t).after(trialBound).apply(ledger.Tick{}).wants(ledger.Idle, ledger.NextContinue).
				wantsGood("1.0", ledger.FirstSeen).wantsVerdicts("inconclusive 2.0")
		}},
		{"arrived, and another version afterwards: held", func(t *testing.T) {
			arrived(t).apply(ledger.Inventory{Version: "1.0"}).wantsHold(ledger.HeldThirdVersion).wantsBarred()
		}},
		{"on trial, and back with another version: held", func(t *testing.T) {
			trial(t).after(time.Minute).apply(ledger.Inventory{Version: "1.0"}).wantsHold(ledger.HeldThirdVersion).wantsBarred()
		}},
		{"a dark node that lives with another version: inconclusive", func(t *testing.T) {
			dark(t).apply(ledger.SeenInMain{Version: "1.5"}).wants(ledger.Idle, ledger.NextContinue).wantsVerdicts("inconclusive 2.0")
		}},
		{"not sent once more what was quarantined since", func(t *testing.T) {
			n := verify(t)
			n.env.Fleet = fleet{"2.0": {Quarantined: true}}
			n.settle().wants(ledger.Idle, ledger.NextContinue).wantsSends("2.0")
		}},
		{"not sent once more past a pin that was set since", func(t *testing.T) {
			verify(t).apply(ledger.SetPin{Version: "1.0", Why: "stay"}).settle().wants(ledger.Idle, ledger.NextContinue).wantsSends("2.0")
		}},
		{"not sent once more what a record that came from elsewhere names", func(t *testing.T) {
			n := verify(t)
			n.rec.Trial.Version = "2.0/../../other"
			n.settle().wants(ledger.Idle, ledger.NextContinue).wantsSends("2.0")
		}},
		{"an owed rollback waits for a pin that was set since, and goes on without", func(t *testing.T) {
			n := convicted(t).apply(ledger.SetPin{Version: "2.0", Why: "I look at it"}).after(time.Hour).
				apply(ledger.Inventory{Version: "2.0", LockFree: true}).wants(ledger.Convicted, ledger.NextDefer).wantsSends("2.0", "1.0")
			n.apply(ledger.Unpin{}).apply(ledger.Inventory{Version: "2.0", LockFree: true}).wantsSends("2.0", "1.0", "1.0")
		}},
		{"an owed rollback waits while its version is quarantined", func(t *testing.T) {
			n := convicted(t).after(time.Hour)
			n.env.Fleet = fleet{"1.0": {Quarantined: true}}
			n.apply(ledger.Inventory{Version: "2.0", LockFree: true}).wants(ledger.Convicted, ledger.NextDefer).wantsSends("2.0", "1.0")
		}},
		{"what the main account says fills no record", func(t *testing.T) {
			n := dark(t).apply(ledger.SeenInMain{Version: strings.Repeat("9", 900_000)}).wants(ledger.Idle, ledger.NextContinue)
			if data, err := ledger.Encode(n.rec); err != nil || len(data) > 10_000 {
				t.Errorf("%d bytes, %v", len(data), err)
			}
		}},
		{"configured by others: proved by what is seen", func(t *testing.T) {
			swapped(t).apply(ledger.SeenInMain{Version: "2.0"}).wantsGood("2.0", ledger.Proved)
		}},
		{"a presumed version is proved late", func(t *testing.T) {
			trial(t).after(trialBound+time.Minute).apply(ledger.Tick{}).apply(ledger.SeenInMain{Version: "2.0"}).
				wantsGood("2.0", ledger.Proved).apply(ledger.SeenInMain{Version: "2.0"}).wantsUnchanged()
		}},
		{"min_healthy: seen at once is not enough", func(t *testing.T) {
			n := idle(t)
			d := upgrade("2.0")
			d.MinHealthy = time.Hour
			n.apply(d).reply(ledger.ReplyOK).after(time.Minute).apply(ledger.Inventory{Version: "2.0"}).apply(ledger.Configured{})
			n.after(time.Minute).apply(ledger.SeenInMain{Version: "2.0"}).wants(ledger.Trial, ledger.NextContinue)
			n.apply(ledger.SeenInMain{Version: "2.0"}).wantsUnchanged()
			n.after(50*time.Minute).apply(ledger.Tick{}).wants(ledger.Trial, ledger.NextContinue)
			n.after(10*time.Minute).apply(ledger.Tick{}).wantsGood("2.0", ledger.Proved)
		}},
		{"min_healthy: back in provisioning before, and it has to be seen anew", func(t *testing.T) {
			n := idle(t)
			d := upgrade("2.0")
			d.MinHealthy = time.Hour
			n.apply(d).reply(ledger.ReplyOK).after(time.Minute).apply(ledger.Inventory{Version: "2.0"}).apply(ledger.Configured{}).
				after(time.Minute).apply(ledger.SeenInMain{Version: "2.0"}).
				after(time.Minute).apply(ledger.Inventory{Version: "2.0"}).wants(ledger.Arrived, ledger.NextContinue).
				apply(ledger.Configured{}).after(2 * time.Hour).apply(ledger.Tick{}).wantsVerdicts("presumed 2.0")
		}},
		{"min_healthy: seen without having been configured by us", func(t *testing.T) {
			n := idle(t)
			d := upgrade("2.0")
			d.MinHealthy = time.Hour
			n.apply(d).reply(ledger.ReplyOK).after(time.Minute).apply(ledger.SeenInMain{Version: "2.0"}).wants(ledger.Trial, ledger.NextContinue).
				after(time.Hour).apply(ledger.Tick{}).wantsGood("2.0", ledger.Proved)
		}},
		{"a helper's rollback bars what it leaves when it says so", func(t *testing.T) {
			d := rollback("2.0", "")
			d.Bar, d.Reason = true, "leaks memory"
			n := arrived(t).apply(d).wants(ledger.Intent, ledger.NextSend).wantsBarred("2.0").wantsSends("2.0", "1.0").wantsVerdicts("rolled-back 2.0")
			if why := n.rec.RolledBack[0].Why; why != "leaks memory" {
				t.Errorf("why %q", why)
			}
		}},
		{"a rollback that bars, and that the node could not do, is owed", func(t *testing.T) {
			d := rollback("2.0", "")
			d.Bar = true
			arrived(t).apply(d).reply(ledger.ReplyRolledBack).wants(ledger.Convicted, ledger.NextDefer).wantsBarred("2.0").
				after(time.Hour).apply(ledger.Inventory{Version: "2.0"}).wants(ledger.Intent, ledger.NextSend)
		}},
		{"an exec helper's does not", func(t *testing.T) {
			n := arrived(t).apply(rollback("2.0", "1.0")).wants(ledger.Intent, ledger.NextSend).wantsBarred()
			if len(n.rec.RolledBack) != 1 || n.rec.RolledBack[0].From != "2.0" {
				t.Errorf("rolled back %+v", n.rec.RolledBack)
			}
		}},
		{"a helper's rollback that the node could not do may be asked for again", func(t *testing.T) {
			n := trial(t).apply(ledger.SeenInMain{Version: "2.0"}).after(time.Hour)
			n.apply(rollback("2.0", "1.0")).reply(ledger.ReplyRolledBack).wants(ledger.Idle, ledger.NextContinue)
			n.after(time.Hour).apply(rollback("2.0", "1.0")).wants(ledger.Intent, ledger.NextSend)
		}},
		{"a helper that flaps: there and back once, then held", func(t *testing.T) {
			n := trial(t).apply(ledger.SeenInMain{Version: "2.0"})
			n.apply(rollback("2.0", "1.0")).reply(ledger.ReplyOK).after(time.Minute).apply(ledger.Inventory{Version: "1.0"}).
				apply(ledger.Configured{}).apply(ledger.SeenInMain{Version: "1.0"}).wantsSends("2.0", "1.0")
			n.apply(upgrade("2.0")).wants(ledger.Held, ledger.NextContinue).wantsHold(ledger.HeldThirdChange).wantsSends("2.0", "1.0")
		}},
		{"a helper that flaps slowly: no version is left twice", func(t *testing.T) {
			n := trial(t).apply(ledger.SeenInMain{Version: "2.0"}).after(time.Hour)
			n.apply(rollback("2.0", "1.0")).reply(ledger.ReplyOK).after(time.Minute).apply(ledger.Inventory{Version: "1.0"}).
				apply(ledger.Configured{}).apply(ledger.SeenInMain{Version: "1.0"}).after(time.Hour)
			d := upgrade("2.0")
			d.AttemptID = "again"
			n.apply(d).reply(ledger.ReplyOK).after(time.Minute).apply(ledger.Inventory{Version: "2.0"}).
				apply(ledger.Configured{}).apply(ledger.SeenInMain{Version: "2.0"}).after(time.Hour)
			n.apply(rollback("2.0", "1.0"))
			if n.last.Ruling.Guard != ledger.GuardSecondRollback {
				t.Errorf("ruling %+v", n.last.Ruling)
			}
			n.wantsSends("2.0", "1.0", "2.0")
		}},
		{"a refused rollback is not held by the pace of the upgrade before it", func(t *testing.T) {
			arrived(t).refuse().refuse().reply(ledger.ReplyRefused).wants(ledger.Convicted, ledger.NextDefer).
				apply(ledger.Inventory{Version: "2.0"}).wants(ledger.Intent, ledger.NextSend)
		}},
		{"upgrades switched off while a reply is lost: not sent again", func(t *testing.T) {
			n := verify(t)
			n.env.Policy.Upgrades = false
			n.settle().wants(ledger.Idle, ledger.NextContinue).wantsSends("2.0")
		}},
		{"an optional update that failed: configured; else refused", func(t *testing.T) {
			n := intent(t)
			n.env.Policy.Optional = false
			n.reply(ledger.ReplyRolledBack).wants(ledger.Idle, ledger.NextDefer)
		}},
	} {
		t.Run(row.why, row.run)
	}
}

func TestStaleEpochIsRefused(t *testing.T) {
	n := intent(t)
	n.env.Epoch = 0
	for _, ev := range []ledger.Event{
		ledger.Inventory{Version: "2.0"}, upgrade("2.0"), ledger.Reply{AttemptID: "up-2.0", Result: ledger.ReplyOK},
		ledger.Tick{}, ledger.Found{}, ledger.SetPin{Version: "1.0"},
	} {
		result, err := ledger.Step(n.rec, ev, n.env)
		if !errors.Is(err, ledger.ErrStaleEpoch) || result.Changed || len(result.Effects) > 0 || result.Next != ledger.NextLeave {
			t.Errorf("%T: %v, %+v", ev, err, result)
		}
	}
}

// Recover is what a new leader does with any record, as often as it likes.
func TestRecover(t *testing.T) {
	for state, n := range map[ledger.State]*node{
		ledger.Idle: idle(t), ledger.Verify: intent(t), ledger.Swapped: swapped(t), ledger.Dark: dark(t), ledger.Arrived: arrived(t),
		ledger.Trial: trial(t), ledger.Convicted: convicted(t), ledger.Held: held(t),
	} {
		n.leader()
		for range 2 {
			result, err := ledger.Recover(n.rec, n.env)
			if err != nil || result.Record.State != state {
				t.Errorf("%s became %s, %v", state, result.Record.State, err)
			}
			for _, e := range result.Effects {
				if _, look := e.(ledger.Look); !look {
					t.Errorf("%s: %+v", state, e)
				}
			}
			n.rec = result.Record
		}
	}
}

func TestEvidenceTellsTheChain(t *testing.T) {
	n := trial(t).apply(ledger.SeenInMain{Version: "2.0"})
	var kinds []string
	for _, e := range n.rec.Evidence {
		kinds = append(kinds, string(e.Kind))
		if e.Text == "" || e.At.IsZero() || e.Observed == 0 || e.Epoch != 1 || e.State == "" {
			t.Errorf("incomplete: %+v", e)
		}
	}
	if got, want := strings.Join(kinds, " "), "event decision intent reply event event verdict"; got != want {
		t.Errorf("chain %q, want %q", got, want)
	}
}

func TestEvidenceIsBounded(t *testing.T) {
	n := idle(t)
	for range ledger.EvidenceLimit {
		n.apply(ledger.SetPin{Version: "1.0"}).apply(ledger.Unpin{})
	}
	if got := len(n.rec.Evidence); got != ledger.EvidenceLimit {
		t.Errorf("%d entries", got)
	}
}

func TestGuardInEveryCycleIsSaidOnce(t *testing.T) {
	n := idle(t).apply(ledger.SetPin{Version: "1.0"})
	n.apply(upgrade("2.0")).apply(upgrade("3.0"))
	for range 5 {
		n.apply(upgrade("2.0")).wantsUnchanged().apply(upgrade("3.0")).wantsUnchanged()
	}
}
