package ledger_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/choria-provisioner/provisioner/version/ledger"
)

const (
	trialBound   = 10 * time.Minute
	releaseBound = 20 * time.Minute
)

// node is a record and the world around it. It stores every record as a store
// would: through its JSON.
type node struct {
	t   testing.TB
	rec ledger.Record
	env ledger.Env
	// last is what the last event came to.
	last ledger.Result
	// all are all effects so far.
	all []ledger.Effect
}

func newNode(t testing.TB) *node {
	return &node{
		t:   t,
		rec: ledger.New("node.example.net"),
		env: ledger.Env{
			Wall:  time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
			Epoch: 1,
			// Ledgers are older than their records.
			Observed: ledger.Observed(time.Hour),
			Policy: ledger.Policy{
				Upgrades: true, Optional: true, Repository: true,
				Trial: trialBound, ReleaseTimeout: releaseBound,
			},
		},
	}
}

// apply lets an event happen, and checks what holds for all of them.
func (n *node) apply(ev ledger.Event) *node {
	n.t.Helper()
	before, err := ledger.Encode(n.rec)
	if err != nil {
		n.t.Fatal(err)
	}
	result, err := ledger.Step(n.rec, ev, n.env)
	if err != nil {
		n.t.Fatalf("%T: %v", ev, err)
	}
	after, err := ledger.Encode(n.rec)
	if err != nil || string(after) != string(before) {
		n.t.Fatalf("%T changed the record it was given: %v\n%s\n%s", ev, err, before, after)
	}

	data, err := ledger.Encode(result.Record)
	if err != nil {
		n.t.Fatalf("%T: %v", ev, err)
	}
	if changed := string(data) != string(before); changed != result.Changed {
		n.t.Fatalf("%T: changed is %v\n%s\n%s", ev, result.Changed, before, data)
	}
	for _, e := range result.Effects {
		if _, send := e.(ledger.Send); send != (result.Next == ledger.NextSend) && send {
			n.t.Fatalf("%T sends, and the pass goes on with %s", ev, result.Next)
		}
	}
	if n.rec, err = ledger.Decode("", data); err != nil {
		n.t.Fatal(err)
	}
	n.last = result
	n.all = append(n.all, result.Effects...)

	return n
}

// after lets observed time pass.
func (n *node) after(d time.Duration) *node {
	n.env.Observed = n.env.Observed.Add(d)
	n.env.Wall = n.env.Wall.Add(d)

	return n
}

// leader begins another epoch.
func (n *node) leader() *node {
	n.env.Epoch++

	return n
}

// The ways to the states.

func idle(t testing.TB) *node {
	return newNode(t).apply(ledger.Inventory{Version: "1.0"})
}

func upgrade(to string) ledger.Decision {
	return ledger.Decision{Direction: ledger.Upgrade, Version: to, AttemptID: "up-" + to, Current: "1.0", Upgradable: true}
}

func rollback(from, to string) ledger.Decision {
	return ledger.Decision{Direction: ledger.Rollback, Version: to, AttemptID: "back-from-" + from, Current: from, Upgradable: true}
}

func intent(t testing.TB) *node { return idle(t).apply(upgrade("2.0")) }

func (n *node) reply(r ledger.ReplyResult) *node {
	n.t.Helper()

	return n.apply(ledger.Reply{AttemptID: n.rec.Trial.AttemptID, Result: r, Text: "text of the reply"})
}

func verify(t testing.TB) *node  { return intent(t).reply(ledger.ReplyLost) }
func swapped(t testing.TB) *node { return intent(t).reply(ledger.ReplyOK) }
func dark(t testing.TB) *node    { return swapped(t).after(releaseBound).apply(ledger.Tick{}) }

func arrived(t testing.TB) *node {
	return swapped(t).after(15 * time.Second).apply(ledger.Inventory{Version: "2.0"})
}

func trial(t testing.TB) *node { return arrived(t).apply(ledger.Configured{}) }

// refuse is a node that refuses its configuration in one pass more.
func (n *node) refuse() *node {
	n.t.Helper()

	return n.apply(ledger.Refused{Action: "choria_provision#configure", Text: "no", Pass: n.env.Observed.String()}).after(time.Second)
}

// convicted is a node whose way back failed on the node.
func convicted(t testing.TB) *node {
	return arrived(t).refuse().refuse().reply(ledger.ReplyRolledBack)
}

func held(t testing.TB) *node { return intent(t).reply(ledger.ReplyBroken) }

// heldThird is held, and may be provisioned.
func heldThird(t testing.TB) *node {
	return swapped(t).after(time.Minute).apply(ledger.Inventory{Version: "1.7"})
}

// What a test looks at.

func (n *node) wants(state ledger.State, next ledger.Next) *node {
	n.t.Helper()
	if n.rec.State != state || n.last.Next != next {
		n.t.Errorf("state %s, next %s; want %s, %s", n.rec.State, n.last.Next, state, next)
	}

	return n
}

func (n *node) wantsGood(v string, source ledger.Source) *node {
	n.t.Helper()
	if good := n.rec.KnownGood; good == nil || good.Version != v || good.Source != source {
		n.t.Errorf("known-good %+v, want %s, %s", good, v, source)
	}

	return n
}

func (n *node) wantsHold(reason ledger.HoldReason) *node {
	n.t.Helper()
	if n.rec.Hold == nil || n.rec.Hold.Reason != reason {
		n.t.Errorf("hold %+v, want %s", n.rec.Hold, reason)
	}
	if !slices.ContainsFunc(n.all, func(e ledger.Effect) bool {
		a, ok := e.(ledger.Alert)

		return ok && a.Kind == ledger.AlertHeld
	}) {
		n.t.Error("nobody is told")
	}

	return n
}

func (n *node) wantsBarred(versions ...string) *node {
	n.t.Helper()
	if got := n.rec.Barred(); !slices.Equal(got, versions) {
		n.t.Errorf("barred are %q, want %q", got, versions)
	}

	return n
}

// wantsSends compares all versions that were sent so far.
func (n *node) wantsSends(versions ...string) *node {
	n.t.Helper()
	var got []string
	for _, e := range n.all {
		if s, ok := e.(ledger.Send); ok {
			got = append(got, s.Version)
		}
	}
	if !slices.Equal(got, versions) {
		n.t.Errorf("sent were %q, want %q", got, versions)
	}

	return n
}

// wantsVerdicts compares all verdicts so far, each as "outcome version".
func (n *node) wantsVerdicts(verdicts ...string) *node {
	n.t.Helper()
	var got []string
	for _, e := range n.all {
		if v, ok := e.(ledger.Verdict); ok {
			got = append(got, fmt.Sprintf("%s %s", v.Outcome, v.Version))
		}
	}
	if !slices.Equal(got, verdicts) {
		n.t.Errorf("verdicts were %q, want %q", got, verdicts)
	}

	return n
}

func (n *node) wantsUnchanged() *node {
	n.t.Helper()
	if n.last.Changed {
		n.t.Error("the record changed")
	}

	return n
}
