package ledger

import (
	"fmt"
	"sync"
	"time"
)

// Observed is time in which a leader was listening, counted from the beginning
// of the ledger. Bounds are measured in it: a node is not judged for a time in
// which nobody would have seen it, and no clock that jumps moves it.
type Observed time.Duration

// Add is o later by d.
func (o Observed) Add(d time.Duration) Observed { return o + Observed(d) }

// String is the time as Go prints a duration.
func (o Observed) String() string { return time.Duration(o).String() }

// MarshalText implements encoding.TextMarshaler.
func (o Observed) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (o *Observed) UnmarshalText(text []byte) error {
	d, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("observed time: %w", err)
	}
	*o = Observed(d)

	return nil
}

// longestStep is how much one look at the clock can count. A process that was
// stopped, or a clock that jumped, adds no more than that.
const longestStep = 5 * time.Second

// Clock counts observed time. It has to be read at least every few seconds
// while it listens; what passes between two reads further apart is not counted.
type Clock struct {
	mu        sync.Mutex
	now       func() time.Time
	total     Observed
	read      time.Time
	listening bool
}

// NewClock returns a clock that goes on from a time read from a store and does
// not run until Listen. now is time.Now outside of tests.
func NewClock(from Observed, now func() time.Time) *Clock {
	return &Clock{now: now, total: from}
}

// Listen starts or stops the clock: it runs while the lease is held and the
// connections over which nodes are seen are up.
func (c *Clock) Listen(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()

	c.advance()
	c.listening, c.read = on, c.now()
}

// Observed is the time counted so far.
func (c *Clock) Observed() Observed {
	c.mu.Lock()
	defer c.mu.Unlock()

	c.advance()

	return c.total
}

func (c *Clock) advance() {
	if !c.listening {
		return
	}
	now := c.now()
	c.total = c.total.Add(min(max(now.Sub(c.read), 0), longestStep))
	c.read = now
}
