package ledger_test

import (
	"strings"
	"testing"
	"time"

	"github.com/choria-provisioner/provisioner/version/ledger"
)

// fleet is what is known of other nodes.
type fleet map[string]ledger.Candidate

func (f fleet) Candidate(v string) ledger.Candidate { return f[v] }

func (f fleet) OnTrial() int {
	n := 0
	for _, c := range f {
		n += c.OnTrial
	}

	return n
}

// Every guard stops what it is for, and what becomes of the node depends on
// upgrades_optional.
func TestGuards(t *testing.T) {
	const on, off = ledger.NextContinue, ledger.NextDefer
	seen := map[ledger.Guard]bool{}
	for _, row := range []struct {
		guard ledger.Guard
		why   string
		node  func(t testing.TB) *node
		wish  ledger.Decision
		// optional and strict are what becomes of the node with
		// upgrades_optional on and off.
		optional, strict ledger.Next
	}{
		{ledger.GuardStaleEpoch, "a later leader has taken over", func(t testing.TB) *node {
			n := idle(t)
			n.env.Epoch = 0
			return n
		}, upgrade("2.0"), ledger.NextLeave, ledger.NextLeave},
		{ledger.GuardFeatureOff, "nothing is asked of a site without upgrades", func(t testing.TB) *node {
			n := idle(t)
			n.env.Policy.Upgrades = false
			return n
		}, upgrade("2.0"), on, on},
		{ledger.GuardNoKnownGood, "nothing to go back to", func(t testing.TB) *node {
			n := idle(t)
			n.rec.KnownGood = nil
			return n
		}, rollback("1.0", ""), on, off},
		{ledger.GuardInvalidVersion, "it would leave the repository's URL", idle, upgrade("../2.0"), on, off},
		{ledger.GuardInvalidVersion, "no version at all", idle, upgrade(""), on, off},
		{ledger.GuardNoVersion, "the inventory shows none", idle, ledger.Decision{Direction: ledger.Upgrade, Version: "2.0", Upgradable: true}, on, off},
		{ledger.GuardSameVersion, "where it should be: nothing is left undone", idle, upgrade("1.0"), on, on},
		{ledger.GuardSameVersion, "a leading v is ignored", idle, upgrade("v1.0"), on, on},
		{ledger.GuardSameVersion, "equal to RPM", idle, upgrade("1.00"), on, on},
		{ledger.GuardAmbiguous, "1.0 or 1.0.0", idle, upgrade("1.0.0"), on, off},
		{ledger.GuardHeld, "a third version was shown", heldThird, upgrade("2.0"), on, off},
		{ledger.GuardHeld, "a restart would start a broken binary", held, upgrade("2.0"), off, off},
		{ledger.GuardTrialRunning, "arrived, and not judged yet", arrived, ledger.Wish("2.0", "3.0"), on, off},
		{ledger.GuardTrialRunning, "the node may be updating itself", swapped, upgrade("3.0"), ledger.NextLeave, ledger.NextLeave},
		{ledger.GuardTrialRunning, "it has to go back first", convicted, ledger.Wish("2.0", "3.0"), off, off},
		{ledger.GuardNotUpgradable, "the node says so", idle, ledger.Wish("1.0", "2.0"), on, off},
		{ledger.GuardNoRepository, "nowhere to get it from", func(t testing.TB) *node {
			n := idle(t)
			n.env.Policy.Repository = false
			return n
		}, upgrade("2.0"), on, off},
		{ledger.GuardOlderThanCurrent, "that is a rollback", idle, upgrade("0.9"), on, off},
		{ledger.GuardOlderThanCurrent, "a pre-release is older", idle, upgrade("1.0~rc1"), on, off},
		{ledger.GuardNewerThanCurrent, "that is an upgrade", idle, rollback("1.0", "2.0"), on, off},
		{ledger.GuardBarred, "left for good", func(t testing.TB) *node {
			n := idle(t)
			n.rec.RolledBack = []ledger.RolledBack{{From: "2.0", Barred: true}}
			return n
		}, upgrade("v2.0"), on, off},
		{ledger.GuardQuarantined, "left by too many", func(t testing.TB) *node {
			n := idle(t)
			n.env.Fleet = fleet{"2.0": {Quarantined: true}}
			return n
		}, upgrade("2.0"), on, off},
		{ledger.GuardPinned, "a person said so", func(t testing.TB) *node { return idle(t).apply(ledger.SetPin{Version: "1.0"}) }, upgrade("2.0"), on, off},
		{ledger.GuardNotReversible, "no way back from it", func(t testing.TB) *node {
			n := idle(t)
			n.rec.NotReversible = []string{"1.0"}
			return n
		}, rollback("1.0", "0.9"), on, off},
		{ledger.GuardNotReversible, "no way back past it", func(t testing.TB) *node {
			n := idle(t)
			n.rec.NotReversible = []string{"0.8"}
			return n
		}, rollback("1.0", "0.7"), on, off},
		{ledger.GuardSecondRollback, "it was left once", func(t testing.TB) *node {
			n := idle(t)
			n.rec.RolledBack = []ledger.RolledBack{{From: "1.0"}}
			return n
		}, rollback("1.0", "0.9"), on, off},
		{ledger.GuardBackoff, "the last one failed on the node", func(t testing.TB) *node {
			return intent(t).reply(ledger.ReplyRolledBack).after(59 * time.Second)
		}, upgrade("2.0"), on, off},
		{ledger.GuardThirdChange, "two within the bound are enough", func(t testing.TB) *node {
			n := idle(t)
			n.rec.Recent = []ledger.Begun{{At: n.env.Observed}, {At: n.env.Observed}}
			return n
		}, upgrade("2.0"), on, off},
		{ledger.GuardMaxInTrial, "the budget is used up", func(t testing.TB) *node {
			n := idle(t)
			n.env.Policy.MaxInTrial = 3
			n.env.Fleet = fleet{"2.0": {OnTrial: 1}, "3.0": {OnTrial: 2}}
			return n
		}, upgrade("2.0"), on, off},
		{ledger.GuardMaxDark, "the budget of this version is used up", func(t testing.TB) *node {
			n := idle(t)
			n.env.Policy.MaxDark = 2
			n.env.Fleet = fleet{"2.0": {Dark: 2}}
			return n
		}, upgrade("2.0"), on, off},
	} {
		seen[row.guard] = true
		for _, optional := range []bool{true, false} {
			name := string(row.guard) + ", " + row.why + ", strict"
			want := row.strict
			if optional {
				name, want = strings.TrimSuffix(name, "strict")+"optional", row.optional
			}
			t.Run(name, func(t *testing.T) {
				n := row.node(t)
				n.env.Policy.Optional = optional
				ruling := ledger.Judge(n.rec, row.wish, n.env)
				if ruling.Allowed || ruling.Guard != row.guard || ruling.Next != want || ruling.Sentence == "" {
					t.Errorf("ruling %+v, want %s, %s", ruling, row.guard, want)
				}
				counted := want == on && row.guard != ledger.GuardSameVersion && row.guard != ledger.GuardFeatureOff
				if ruling.Skipped() != counted {
					t.Errorf("counted as skipped: %v", ruling.Skipped())
				}

				// Step says the same, and sends nothing.
				sent := len(n.all)
				result, err := ledger.Step(n.rec, row.wish, n.env)
				if (err != nil) != (row.guard == ledger.GuardStaleEpoch) {
					t.Fatal(err)
				}
				if err == nil && (result.Ruling != ruling || result.Next != want) {
					t.Errorf("step rules %+v, next %s; judge %+v", result.Ruling, result.Next, ruling)
				}
				for _, e := range append(n.all[sent:], result.Effects...) {
					if _, send := e.(ledger.Send); send {
						t.Error("it was sent")
					}
				}
			})
		}
	}
	for _, g := range ledger.Guards() {
		if !seen[g] {
			t.Errorf("no test of %s", g)
		}
	}
}

func TestGuardsLetPass(t *testing.T) {
	for _, row := range []struct {
		why  string
		node func(t testing.TB) *node
		wish ledger.Decision
	}{
		{"an upgrade", idle, upgrade("2.0")},
		{"a rollback", idle, rollback("1.0", "0.9")},
		{"an exec helper's wish for something older is a rollback", idle, func() ledger.Decision {
			d := ledger.Wish("1.0", "v0.9")
			d.Upgradable = true
			return d
		}()},
		{"a pin to the target", func(t testing.TB) *node { return idle(t).apply(ledger.SetPin{Version: "v2.0"}) }, upgrade("2.0")},
		{"a budget that is not used up", func(t testing.TB) *node {
			n := idle(t)
			n.env.Policy.MaxInTrial, n.env.Policy.MaxDark = 3, 3
			n.env.Fleet = fleet{"2.0": {OnTrial: 2, Dark: 2}}
			return n
		}, upgrade("2.0")},
		{"another version's dark nodes", func(t testing.TB) *node {
			n := idle(t)
			n.env.Policy.MaxDark = 1
			n.env.Fleet = fleet{"1.9": {Dark: 9}}
			return n
		}, upgrade("2.0")},
		{"a way back to a version from which there is none", func(t testing.TB) *node {
			n := idle(t)
			n.rec.NotReversible = []string{"0.9", "2.0"}
			return n
		}, rollback("1.0", "0.9")},
		{"changes from before the bound", func(t testing.TB) *node {
			n := idle(t)
			n.rec.Recent = []ledger.Begun{{At: n.env.Observed}, {At: n.env.Observed}}
			return n.after(trialBound)
		}, upgrade("2.0")},
		{"a helper takes back what arrived", arrived, rollback("2.0", "")},
	} {
		t.Run(row.why, func(t *testing.T) {
			n := row.node(t)
			if ruling := ledger.Judge(n.rec, row.wish, n.env); !ruling.Allowed || ruling.Next != ledger.NextSend {
				t.Errorf("ruling %+v", ruling)
			}
		})
	}
}

// A version marked once has no way back, whatever is said of it later.
func TestNotReversibleIsSticky(t *testing.T) {
	d := upgrade("2.0")
	d.NotReversible = true
	n := idle(t).apply(d).reply(ledger.ReplyRolledBack).after(time.Hour)
	d.NotReversible, d.AttemptID = false, "again"
	n.apply(d).reply(ledger.ReplyOK).after(time.Minute).apply(ledger.Inventory{Version: "2.0"}).
		apply(rollback("2.0", "1.0"))
	if n.last.Ruling.Guard != ledger.GuardNotReversible {
		t.Errorf("ruling %+v", n.last.Ruling)
	}
}
