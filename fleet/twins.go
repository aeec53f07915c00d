package fleet

import (
	"sync"
	"time"
)

// heldLimit bounds the memory of a network on which somebody answers for
// everybody. Beyond it another is forgotten: it is seen again when it is called.
const heldLimit = 10_000

// twins remembers the identities for which more than one machine answered.
type twins struct {
	// hold is how long an identity is held after the last time.
	hold time.Duration

	mu   sync.Mutex
	held map[string]time.Time
}

func newTwins(hold time.Duration) *twins {
	return &twins{hold: hold, held: map[string]time.Time{}}
}

// seen holds identity from now on; first is false while it is held already.
func (t *twins) seen(identity string) (first bool) {
	t.mu.Lock()
	defer t.mu.Unlock()

	now := time.Now()
	last, known := t.held[identity]
	if !known && len(t.held) >= heldLimit {
		for any := range t.held {
			delete(t.held, any)
			break
		}
	}
	t.held[identity] = now

	return !known || now.Sub(last) >= t.hold
}

// holds tells whether identity is held.
func (t *twins) holds(identity string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()

	last, known := t.held[identity]
	if known && time.Since(last) >= t.hold {
		delete(t.held, identity)
		return false
	}

	return known
}
