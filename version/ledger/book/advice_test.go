package book_test

import (
	"strings"
	"testing"
	"time"

	"github.com/choria-provisioner/provisioner/version/ledger"
	"github.com/choria-provisioner/provisioner/version/ledger/book"
)

// No state and no reason leaves a person without a word, and whatever they are
// told to type is a command that the rules accept there.
func TestAdviceForEveryStateAndReason(t *testing.T) {
	var all []ledger.Record
	for _, state := range ledger.States() {
		rec := ledger.New("node")
		rec.State = state
		if state.UnderWay() {
			rec.Trial = &ledger.Change{Direction: ledger.Upgrade, Version: "2.0", From: "1.0", Deadline: ledger.Observed(time.Hour)}
		}
		if state == ledger.Held {
			for _, reason := range ledger.HoldReasons() {
				rec.Hold = &ledger.Hold{Reason: reason, Why: "some sentence", From: "1.0", Version: "2.0"}
				all = append(all, rec)
			}
			continue
		}
		all = append(all, rec)
	}

	env := ledger.Env{Wall: time.Now(), Epoch: 1}
	for _, rec := range all {
		name := string(rec.State)
		if rec.Hold != nil {
			name += " " + string(rec.Hold.Reason)
		}
		for _, live := range []bool{true, false} {
			a := book.Advise(rec, book.Standing{Live: live})
			if a.Now == "" || len(a.Next) == 0 || strings.Contains(a.Now, "not known to this build") {
				t.Errorf("%s: %+v", name, a)
			}
			if waits := rec.State == ledger.Held || rec.State == ledger.Dark || rec.State == ledger.Convicted; waits && len(a.Do) == 0 {
				t.Errorf("%s: nothing can be done", name)
			}
			do := strings.Join(a.Do, "\n")
			for command, ev := range map[string]ledger.Event{
				"nodes release": ledger.Release{}, "nodes expect": ledger.Expect{Version: "1.0"}, "nodes pin": ledger.SetPin{Version: "1.0"},
			} {
				if _, err := ledger.Step(rec, ev, env); strings.Contains(do, command) && err != nil {
					t.Errorf("%s: %q is advised, and refused: %v", name, command, err)
				}
			}
		}
	}
}

func TestAdviceCounts(t *testing.T) {
	rec := ledger.New("node")
	rec.State = ledger.Trial
	rec.Trial = &ledger.Change{Direction: ledger.Upgrade, Version: "2.0", From: "1.0", Deadline: ledger.Observed(time.Hour), Returns: 1}
	standing := book.Standing{Live: true, Observed: ledger.Observed(50 * time.Minute)}
	for _, row := range []struct {
		why  string
		set  func()
		want string
	}{
		{"what is left is of observed time", func() {}, "presumed good, in 10m0s of listening"},
		{"the second return convicts", func() {}, "1 so far"},
		{"where the main account is seen, who is not is dark", func() { standing.Policy.MainView = true }, "dark, in 10m0s"},
		{"a bound that is over", func() { standing.Observed = ledger.Observed(2 * time.Hour) }, "dark, at once"},
		{"no daemon, no policy", func() { standing.Live = false }, "dark where the main account is seen, else presumed"},
		{"and nothing moves", func() {}, "no daemon runs"},
		{"a time to be healthy", func() { rec.Trial.MinHealthy = ledger.Observed(time.Minute) }, "healthy for 1m0s"},
		{"a pin is said of an idle node", func() {
			rec.State, rec.Trial, rec.Pin = ledger.Idle, nil, &ledger.Pin{Version: "1.5"}
		}, "no change but one to 1.5"},
		{"a pause after a failure", func() { rec.Retry = &ledger.Retry{Failures: 3, NotBefore: ledger.Observed(3 * time.Hour)} }, "3 in a row: the next is allowed in 1h0m0s"},
	} {
		row.set()
		if got := strings.Join(book.Advise(rec, standing).Next, "\n"); !strings.Contains(got, row.want) {
			t.Errorf("%s: %q is not in\n%s", row.why, row.want, got)
		}
	}
}
