package supervisor

import "time"

// Restart says how a helper that failed is started again. A zero field takes
// its default.
type Restart struct {
	// Min and Max bound the wait before an attempt, which doubles with each
	// failure within Window; 250ms and 10s.
	Min, Max time.Duration
	// Limit failures within Window make a crash loop, in which Pause passes
	// before each attempt; 5, 5m and 1m.
	Limit  int
	Window time.Duration
	Pause  time.Duration
}

func (r Restart) withDefaults() Restart {
	setDefault(&r.Min, 250*time.Millisecond)
	setDefault(&r.Max, 10*time.Second)
	setDefault(&r.Limit, 5)
	setDefault(&r.Window, 5*time.Minute)
	setDefault(&r.Pause, time.Minute)

	return r
}

func setDefault[T comparable](v *T, to T) {
	var zero T
	if *v == zero {
		*v = to
	}
}

// failures remembers when a helper failed, for as long as it matters.
type failures struct {
	policy Restart
	at     []time.Time
}

// add records a failure and returns the wait before the next attempt, and
// whether this is a crash loop.
func (f *failures) add(now time.Time) (wait time.Duration, loop bool) {
	f.at = append(f.at, now)
	for now.Sub(f.at[0]) > f.policy.Window {
		f.at = f.at[1:]
	}

	n := len(f.at)
	if n >= f.policy.Limit {
		f.at = f.at[n-f.policy.Limit:]
		return f.policy.Pause, true
	}

	wait = f.policy.Min
	for range n - 1 {
		wait = min(2*wait, f.policy.Max)
	}

	return wait, false
}
