package ledger_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/choria-provisioner/provisioner/version"
	"github.com/choria-provisioner/provisioner/version/ledger"
)

// FuzzStep lets anything happen in any order, and checks what must hold
// whatever does. apply checks more.
func FuzzStep(f *testing.F) {
	f.Add([]byte("\x00\x00\x01\x11\x02\x00\x00\x01\x06\x00\x08\x01"))
	f.Add([]byte("\x00\x00\x01\x11\x02\x01\x0b\x03\x00\x80\x0b\x03\x00\x80\x02\x00\x00\x01\x07\x00\x07\x10"))
	f.Add([]byte("\x00\x00\x01\x11\x0d\x00\x00\x80\x0b\x03\x00\x80\x0d\x00\x00\x80\x0b\x03\x00\x80"))
	f.Add([]byte("\x00\x00\x01\x11\x02\x00\x00\x01\x07\x00\x07\x10\x02\x02\x0b\x09\x00\x01\x02\x01\x0a\x00\x0b\x09"))
	f.Fuzz(func(t *testing.T, data []byte) {
		n := newNode(t)
		changes := map[string]int{}
		for i := 0; i+1 < len(data) && i < 400; i += 2 {
			barred := n.rec.Barred()
			what, arg := data[i], data[i+1]
			n.last = ledger.Result{}
			n.anything(what, arg, i)
			for _, e := range n.last.Effects {
				send, ok := e.(ledger.Send)
				if !ok {
					continue
				}
				if !n.last.Changed && n.rec.State != ledger.Intent {
					t.Errorf("%s is sent without an intent", send.Version)
				}
				if !version.Valid(send.Version) || send.Version != n.rec.Trial.Version || send.AttemptID != n.rec.Trial.AttemptID {
					t.Errorf("sent is %+v, intended %+v", send, n.rec.Trial)
				}
				for _, b := range barred {
					if version.Same(b, send.Version) {
						t.Errorf("%s is barred, and sent", b)
					}
				}
				if n.rec.Trial.Unanswered > 3 {
					t.Errorf("%s is sent for the %dth time", send.Version, n.rec.Trial.Unanswered)
				}
				if n.last.Changed && n.rec.Trial.Sends == 1 && n.rec.Trial.Direction == ledger.Rollback {
					changes[n.rec.Trial.ID]++
				}
			}
			left := map[string]bool{}
			for _, b := range n.rec.RolledBack {
				if v := version.Normalise(b.From); left[v] {
					t.Errorf("%s was left twice", v)
				} else {
					left[v] = true
				}
			}
		}
		for id, times := range changes {
			if times > 1 {
				t.Errorf("rollback %s began %d times", id, times)
			}
		}
	})
}

// anything makes an event of two bytes.
func (n *node) anything(what, arg byte, i int) {
	v := []string{"1.0", "2.0", "2.0.0", "v2.0", "0.9", "3.0", "", "../x"}[arg&7]
	high := arg>>4&1 == 1
	attempt := ""
	if n.rec.Trial != nil {
		attempt = n.rec.Trial.AttemptID
	}
	current := n.rec.Seen.Version
	switch what % 15 {
	case 0:
		n.apply(ledger.Inventory{Version: v, LockFree: arg&128 != 0})
	case 1:
		n.apply(ledger.Decision{
			Direction: ledger.Upgrade, Version: v, AttemptID: fmt.Sprint("u", i), Current: current, Upgradable: high,
			NotReversible: arg&32 != 0, MinHealthy: time.Duration(arg>>6) * time.Hour,
		})
	case 2:
		n.apply(ledger.Reply{AttemptID: attempt, Result: []ledger.ReplyResult{
			ledger.ReplyOK, ledger.ReplyLost, ledger.ReplyRolledBack, ledger.ReplyBroken, ledger.ReplyRefused, "unknown",
		}[arg%6]})
	case 3:
		n.apply(ledger.Decision{Direction: ledger.Rollback, Version: v, AttemptID: fmt.Sprint("r", i), Current: current, Upgradable: high, Bar: arg&32 != 0})
	case 4:
		n.apply(ledger.Upgraded{Version: v})
	case 5:
		n.apply(ledger.Answered{})
	case 6:
		n.apply(ledger.Configured{})
	case 7:
		n.apply(ledger.Refused{Action: "configure", Pass: fmt.Sprint(arg), Excused: arg&128 != 0})
	case 8:
		n.apply(ledger.SeenInMain{Version: v})
	case 9:
		n.apply(ledger.Tick{})
	case 10:
		n.leader().apply(ledger.Found{})
	case 11:
		n.after(time.Duration(arg) * 10 * time.Second)
	case 12:
		n.env.Policy.Optional, n.env.Policy.Upgrades, n.env.Policy.MainView = arg&1 == 1, arg&6 != 0, high
	case 13:
		n.apply(ledger.Unpin{})
		if version.Valid(v) && high {
			n.apply(ledger.SetPin{Version: v})
		}
	case 14:
		switch n.rec.State {
		case ledger.Held, ledger.Dark, ledger.Convicted:
			n.apply(ledger.Release{})
		}
	}
}
