package ledger_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/choria-provisioner/provisioner/version/ledger"
)

// wall is a clock that people and suspended machines set.
type wall struct{ at time.Time }

func (w *wall) now() time.Time { return w.at }

func TestObservedTime(t *testing.T) {
	const start = ledger.Observed(time.Hour)
	for _, row := range []struct {
		why  string
		run  func(w *wall, c *ledger.Clock)
		want time.Duration
	}{
		{"nobody listens", func(w *wall, c *ledger.Clock) { run(w, c, 10) }, 0},
		{"a leader listens", func(w *wall, c *ledger.Clock) { c.Listen(true); run(w, c, 10) }, 10 * time.Second},
		{"between two leaderships nothing counts", func(w *wall, c *ledger.Clock) {
			c.Listen(true)
			run(w, c, 3)
			c.Listen(false)
			run(w, c, 3600)
			c.Listen(true)
			run(w, c, 4)
		}, 7 * time.Second},
		{"told twice", func(w *wall, c *ledger.Clock) {
			c.Listen(true)
			run(w, c, 2)
			c.Listen(true)
			run(w, c, 2)
		}, 4 * time.Second},
		{"hours forward are one step", func(w *wall, c *ledger.Clock) {
			c.Listen(true)
			run(w, c, 2)
			w.at = w.at.Add(7 * time.Hour)
			run(w, c, 2)
		}, 2*time.Second + 5*time.Second + time.Second},
		{"hours back are nothing", func(w *wall, c *ledger.Clock) {
			c.Listen(true)
			run(w, c, 2)
			w.at = w.at.Add(-7 * time.Hour)
			run(w, c, 2)
		}, 3 * time.Second},
		{"forward and back in turn go on as time does", func(w *wall, c *ledger.Clock) {
			c.Listen(true)
			for range 3 {
				w.at = w.at.Add(7 * time.Hour)
				c.Observed()
				w.at = w.at.Add(-7 * time.Hour)
				c.Observed()
				run(w, c, 10)
			}
		}, 3 * (5 + 10) * time.Second},
		{"a jump while nobody listens", func(w *wall, c *ledger.Clock) {
			w.at = w.at.Add(7 * time.Hour)
			c.Listen(true)
			run(w, c, 1)
		}, time.Second},
	} {
		t.Run(row.why, func(t *testing.T) {
			// Without a monotonic reading, which would hide the jumps.
			w := &wall{at: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
			c := ledger.NewClock(start, w.now)
			row.run(w, c)
			if got := c.Observed() - start; got != ledger.Observed(row.want) {
				t.Errorf("%s were observed, want %s", got, row.want)
			}
		})
	}
}

// run reads the clock every second.
func run(w *wall, c *ledger.Clock, seconds int) {
	for range seconds {
		w.at = w.at.Add(time.Second)
		c.Observed()
	}
}

// A wall clock that is hours off, either way, changes no verdict.
func TestWallClockChangesNoVerdict(t *testing.T) {
	for _, jump := range []time.Duration{-7 * time.Hour, 7 * time.Hour, -48 * time.Hour, 10 * 365 * 24 * time.Hour} {
		for state, n := range map[ledger.State]*node{
			ledger.Swapped: swapped(t), ledger.Verify: verify(t), ledger.Arrived: arrived(t), ledger.Trial: trial(t),
			ledger.Convicted: convicted(t), ledger.Dark: dark(t),
		} {
			n.env.Wall = n.env.Wall.Add(jump)
			n.apply(ledger.Tick{}).wantsUnchanged()
			if n.rec.State != state {
				t.Errorf("%s became %s by a jump of %s", state, n.rec.State, jump)
			}
		}
	}
}

func TestObservedIsReadable(t *testing.T) {
	data, err := json.Marshal(ledger.Observed(90 * time.Minute))
	if err != nil || string(data) != `"1h30m0s"` {
		t.Errorf("%s, %v", data, err)
	}
	var o ledger.Observed
	if err := json.Unmarshal(data, &o); err != nil || o != ledger.Observed(90*time.Minute) {
		t.Errorf("%s, %v", o, err)
	}
	if err := json.Unmarshal([]byte(`"soon"`), &o); err == nil {
		t.Error("soon is no time")
	}
}
