package ledger_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/choria-provisioner/provisioner/version/ledger"
)

// named gives a node's record another identity.
func named(n *node, identity string) ledger.Record {
	n.rec.Identity = identity

	return n.rec
}

func TestIndexCounts(t *testing.T) {
	x := ledger.NewIndex(3)
	x.Put(named(idle(t), "first-seen"))
	x.Put(named(trial(t).apply(ledger.SeenInMain{Version: "2.0"}), "proved"))
	x.Put(named(trial(t).after(time.Hour).apply(ledger.Tick{}), "presumed"))
	x.Put(named(intent(t), "intent"))
	x.Put(named(trial(t), "trial"))
	x.Put(named(dark(t), "dark"))
	x.Put(named(convicted(t), "convicted"))
	x.Put(named(arrived(t).apply(rollback("2.0", "1.0")), "left without a bar"))
	x.Put(named(heldThird(t), "held"))

	if got, want := x.Candidate("v2.0"), (ledger.Candidate{Version: "2.0", Proved: 1, Presumed: 1, OnTrial: 2, RolledBack: 1, Dark: 1}); got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	// The convicted and the one that left are on their way back to it.
	if got, want := x.Candidate("1.0"), (ledger.Candidate{Version: "1.0", OnTrial: 2}); got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if got := x.OnTrial(); got != 4 {
		t.Errorf("%d nodes on trial", got)
	}
	if got := x.InState(ledger.Held); got != 1 {
		t.Errorf("%d nodes held", got)
	}
	var versions []string
	for _, c := range x.Candidates() {
		versions = append(versions, c.Version)
	}
	if !slices.Equal(versions, []string{"2.0", "1.0"}) {
		t.Errorf("candidates %q", versions)
	}

	x.Put(named(dark(t), "dark too"))
	if c := x.Candidate("2.0"); !c.Quarantined {
		t.Errorf("not quarantined: %+v", c)
	}
	x.Remove("dark too")
	if c := x.Candidate("2.0"); c.Quarantined {
		t.Errorf("quarantined: %+v", c)
	}
	x.Remove("dark too")
}

// Writers tell the index of their writes in any order.
func TestIndexKeepsTheLaterRevision(t *testing.T) {
	x := ledger.NewIndex(0)
	later, earlier := named(dark(t), "node"), named(trial(t), "node")
	later.Revision, earlier.Revision = 2, 1
	x.Put(later)
	x.Put(earlier)
	if got, want := x.Candidate("2.0"), (ledger.Candidate{Version: "2.0", Dark: 1}); got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestIndexKnowsWhoseTimePassed(t *testing.T) {
	x := ledger.NewIndex(0)
	n := trial(t)
	x.Put(named(n, "trial"))
	x.Put(named(dark(t), "dark"))
	x.Put(named(convicted(t), "convicted"))
	x.Put(named(idle(t), "idle"))
	if due := x.Due(n.env.Observed); len(due) != 0 {
		t.Errorf("due are %q", due)
	}
	later := n.env.Observed.Add(time.Hour)
	if due := x.Due(later); !slices.Equal(due, []string{"trial"}) {
		t.Errorf("due are %q", due)
	}
	n.apply(ledger.SeenInMain{Version: "2.0"})
	x.Put(n.rec)
	if due := x.Due(later); len(due) != 0 {
		t.Errorf("due are %q", due)
	}
}

// Kept write by write, the counts are those of counting once.
func TestIndexIsIncremental(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	kept := ledger.NewIndex(2)
	last := map[string]ledger.Record{}
	for range 500 {
		ways := []func(testing.TB) *node{idle, intent, verify, swapped, dark, arrived, trial, convicted, held}
		rec := named(ways[random.IntN(len(ways))](t), fmt.Sprint(random.IntN(20)))
		if random.IntN(10) == 0 {
			kept.Remove(rec.Identity)
			delete(last, rec.Identity)
			continue
		}
		kept.Put(rec)
		last[rec.Identity] = rec
	}
	fresh := ledger.NewIndex(2)
	for _, rec := range last {
		fresh.Put(rec)
	}
	if got, want := kept.Candidates(), fresh.Candidates(); !slices.Equal(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	for _, s := range ledger.States() {
		if kept.InState(s) != fresh.InState(s) {
			t.Errorf("%s: %d nodes, want %d", s, kept.InState(s), fresh.InState(s))
		}
	}
}

// A node that answers, and does not settle, is due again when that says more, and
// not in every look: there may be thousands of them.
func TestNodeThatAnswersIsNotAlwaysDue(t *testing.T) {
	n := verify(t)
	x := ledger.NewIndex(0)
	looks := 0
	for n.rec.State == ledger.Verify {
		n.after(time.Second)
		if n.env.Observed%ledger.Observed(time.Minute) == 0 {
			n.apply(ledger.Answered{})
		}
		x.Put(n.rec)
		for range x.Due(n.env.Observed) {
			n.apply(ledger.Tick{})
			looks++
		}
	}
	n.wantsHold(ledger.HeldUnsettled)
	if looks > 6 {
		t.Errorf("looked at %d times within three bounds", looks)
	}
}
