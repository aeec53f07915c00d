package supervisor

import (
	"testing"
	"time"
)

func TestFailures(t *testing.T) {
	policy := Restart{Min: time.Second, Max: 5 * time.Second, Limit: 5, Window: time.Minute, Pause: time.Hour}
	cases := []struct {
		why      string
		apart    time.Duration
		failures int
		wait     time.Duration
		loop     bool
	}{
		{"the first is tried again soon", time.Second, 1, time.Second, false},
		{"the wait doubles", time.Second, 3, 4 * time.Second, false},
		{"up to its limit", time.Second, 4, 5 * time.Second, false},
		{"many in a short time are a loop", time.Second, 5, time.Hour, true},
		{"and stay one", time.Second, 50, time.Hour, true},
		{"rare ones are forgotten", 2 * time.Minute, 50, time.Second, false},
		{"so is the start of a slow series", 20 * time.Second, 50, 5 * time.Second, false},
	}

	for _, c := range cases {
		t.Run(c.why, func(t *testing.T) {
			f := failures{policy: policy}
			now := time.Unix(0, 0)
			var wait time.Duration
			var loop bool
			for range c.failures {
				wait, loop = f.add(now)
				now = now.Add(c.apart)
			}
			if wait != c.wait || loop != c.loop {
				t.Errorf("got %v %v, want %v %v", wait, loop, c.wait, c.loop)
			}
			if len(f.at) > policy.Limit {
				t.Errorf("%d failures are remembered", len(f.at))
			}
		})
	}
}
