package fleet

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/choria-provisioner/provisioner/host"
)

const (
	// firstLend is how soon a node that has not answered yet gives its worker to
	// others. A healthy one answers its first call within milliseconds; with
	// hundreds of silent ones every moment they hold a worker counts.
	firstLend = 250 * time.Millisecond
	// evictAfter is the least that a node that has not answered yet may wait for
	// its answer, when others wait for its place.
	evictAfter = time.Second
	// lookAgain is how often a node looks whether others wait for its place, or
	// whether there is a place for it.
	lookAgain = 250 * time.Millisecond
)

// slots are the workers. A node whose call takes long lends its worker to others
// and waits outside, where there is only so much room: a call in flight holds
// 1.6 MiB (go-choria v0.30.2, client.New). When it is full, nodes that have not
// answered at all are sent away to make room; those that have keep their
// worker.
type slots struct {
	workers *semaphore.Weighted
	outside *semaphore.Weighted
	// busy is told of each change in the number of workers in use.
	busy func(delta float64)
	// pressed is when somebody last found no room outside, in Unix nanoseconds.
	pressed atomic.Int64
}

func newSlots(workers, outside int, busy func(float64)) *slots {
	return &slots{workers: semaphore.NewWeighted(int64(workers)), outside: semaphore.NewWeighted(int64(outside)), busy: busy}
}

// acquire waits for a worker. The error is that of ctx.
func (s *slots) acquire(ctx context.Context) error {
	if err := s.workers.Acquire(ctx, 1); err != nil {
		return context.Cause(ctx)
	}
	s.busy(1)

	return nil
}

func (s *slots) release() {
	s.busy(-1)
	s.workers.Release(1)
}

// isPressed tells whether somebody waits for room outside.
func (s *slots) isPressed() bool {
	return time.Since(time.Unix(0, s.pressed.Load())) <= 2*lookAgain
}

// slot is one node's worker, held from the start.
type slot struct {
	pool *slots
	// answered is called once, when the node's first call has ended.
	answered func()
	// inTheWay tells whether others wait for the place of this node for another
	// reason than a lack of room outside.
	inTheWay func() bool
	// evict ends the pass.
	evict context.CancelCauseFunc

	mu sync.Mutex
	// held is a worker, lent a place outside; both are false once released.
	held   bool
	lent   bool
	proven bool
}

// Lend gives the worker to others when back is not called within after; for the
// first call, sooner.
func (s *slot) Lend(after time.Duration) (back func(ctx context.Context) error) {
	// The timers' functions take the lock first: they find what is set here.
	s.mu.Lock()
	defer s.mu.Unlock()

	over := false
	first := !s.proven
	if first {
		after = min(after, firstLend)
	}

	var lend, evict *time.Timer
	lend = time.AfterFunc(after, func() {
		s.mu.Lock()
		defer s.mu.Unlock()

		switch {
		case over || !s.held:
		case s.pool.outside.TryAcquire(1):
			s.held, s.lent = false, true
			s.pool.release()
		default:
			s.pool.pressed.Store(time.Now().UnixNano())
			lend.Reset(lookAgain)
		}
	})
	if first {
		evict = time.AfterFunc(evictAfter, func() {
			s.mu.Lock()
			defer s.mu.Unlock()

			switch {
			case over || !s.held && !s.lent:
			case s.pool.isPressed() || s.inTheWay():
				s.evict(host.ErrEvicted)
			default:
				evict.Reset(lookAgain)
			}
		})
	}

	return func(ctx context.Context) error {
		s.mu.Lock()
		defer s.mu.Unlock()

		over = true
		lend.Stop()
		if first {
			evict.Stop()
			s.proven = true
			s.answered()
		}
		if s.held {
			return nil
		}
		s.lent = false
		s.pool.outside.Release(1)
		if err := s.pool.acquire(ctx); err != nil {
			return err
		}
		s.held = true

		return nil
	}
}

// release ends the use of the slot, also of one that a panic left lent.
func (s *slot) release() {
	s.mu.Lock()
	defer s.mu.Unlock()

	switch {
	case s.held:
		s.pool.release()
	case s.lent:
		s.pool.outside.Release(1)
	}
	s.held, s.lent = false, false
}
