package ledger_test

import (
	"errors"
	"testing"
	"time"

	"github.com/choria-provisioner/provisioner/version/ledger"
)

// encoded is the record as it is exported.
func (n *node) encoded() string {
	n.t.Helper()
	data, err := ledger.Encode(n.rec)
	if err != nil {
		n.t.Fatal(err)
	}

	return string(data)
}

func TestRestoreIntoAnotherLedger(t *testing.T) {
	for name, make := range map[string]func(t testing.TB) *node{
		"idle": idle, "intent": intent, "verify": verify, "swapped": swapped, "dark": dark, "trial": trial, "convicted": convicted, "held": held,
	} {
		t.Run(name, func(t *testing.T) {
			from := make(t)
			into := newNode(t)
			into.env.Observed = from.env.Observed.Add(100 * time.Hour)
			into.apply(ledger.Restore{Record: from.rec, Exported: from.env.Observed})
			if got := into.rec; got.State != from.rec.State {
				t.Errorf("state %s, want %s", got.State, from.rec.State)
			}
			if trial := into.rec.Trial; trial != nil {
				if left, want := trial.Deadline-into.env.Observed, from.rec.Trial.Deadline-from.env.Observed; left != want {
					t.Errorf("%s of the bound are left, want %s", left, want)
				}
				if trial.Epoch == into.env.Epoch {
					t.Error("a leader of this ledger is said to have sent it")
				}
				trial.Epoch = from.rec.Trial.Epoch
			}

			// And back, which moves it where it was.
			back := newNode(t)
			back.env.Observed = from.env.Observed
			back.apply(ledger.Restore{Record: into.rec, Exported: into.env.Observed})
			if trial := back.rec.Trial; trial != nil {
				trial.Epoch = from.rec.Trial.Epoch
			}
			if got, want := back.encoded(), from.encoded(); got != want {
				t.Errorf("came back as\n%s\nwant\n%s", got, want)
			}
		})
	}
}

func TestRestoredUpdateIsNotSentAgain(t *testing.T) {
	from := intent(t)
	newNode(t).apply(ledger.Restore{Record: from.rec, Exported: from.env.Observed}).
		apply(ledger.Found{}).wants(ledger.Verify, ledger.NextLeave)
}

// A bound that was over when the record was exported is over in a younger
// ledger, too.
func TestRestoredBoundIsNotLost(t *testing.T) {
	from := swapped(t).after(100 * time.Hour)
	into := newNode(t)
	into.env.Observed = 1
	into.apply(ledger.Restore{Record: from.rec, Exported: from.env.Observed})
	x := ledger.NewIndex(0)
	x.Put(into.rec)
	if due := x.Due(into.env.Observed); len(due) != 1 {
		t.Errorf("due are %v", due)
	}
}

func TestRestoreOverARecord(t *testing.T) {
	old := idle(t).rec
	other := idle(t).after(time.Minute).apply(ledger.SetPin{Version: "1.0"})
	for _, row := range []struct {
		why     string
		node    *node
		rec     ledger.Record
		force   bool
		want    error
		changed bool
	}{
		{"the same is left alone", idle(t), old, false, nil, false},
		{"an older one is replaced", idle(t), other.rec, false, nil, true},
		{"a newer one is not", other, old, false, ledger.ErrNewer, false},
		{"unless it has to be", other, old, true, nil, true},
		{"a change under way is not lost", swapped(t), other.rec, false, ledger.ErrUnderWay, false},
		{"unless it has to be", swapped(t), other.rec, true, nil, true},
		{"the same change under way is left alone", swapped(t), swapped(t).rec, false, nil, false},
		{"another node's", idle(t), ledger.New("other"), true, ledger.ErrCorrupt, false},
		{"one that makes no sense", idle(t), ledger.Record{Format: 1, Identity: "node.example.net", State: ledger.Trial}, true, ledger.ErrCorrupt, false},
	} {
		result, err := ledger.Step(row.node.rec, ledger.Restore{Record: row.rec, Force: row.force}, row.node.env)
		if !errors.Is(err, row.want) || result.Changed != row.changed {
			t.Errorf("%s: changed %v, %v; want %v", row.why, result.Changed, err, row.want)
		}
	}
}
