package fleet

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// slots are the workers. A node whose call takes long lends its slot to others
// and waits outside; only so many may be outside, then the next keeps its slot.
type slots struct {
	workers *semaphore.Weighted
	outside *semaphore.Weighted
	// busy is told of each change in the number of slots in use.
	busy func(delta float64)
}

func newSlots(workers, outside int, busy func(float64)) *slots {
	return &slots{workers: semaphore.NewWeighted(int64(workers)), outside: semaphore.NewWeighted(int64(outside)), busy: busy}
}

// acquire waits for a slot. The error is that of ctx.
func (s *slots) acquire(ctx context.Context) (*slot, error) {
	if err := s.workers.Acquire(ctx, 1); err != nil {
		return nil, context.Cause(ctx)
	}

	return &slot{pool: s, held: true}, nil
}

// slot is one node's worker.
type slot struct {
	pool *slots

	mu   sync.Mutex
	held bool
}

// Lend gives the slot to others when back is not called within after.
func (s *slot) Lend(after time.Duration) (back func(ctx context.Context) error) {
	over := false
	lend := time.AfterFunc(after, func() {
		s.mu.Lock()
		defer s.mu.Unlock()

		if over || !s.held || !s.pool.outside.TryAcquire(1) {
			return
		}
		s.held = false
		s.pool.busy(-1)
		s.pool.workers.Release(1)
	})

	return func(ctx context.Context) error {
		lend.Stop()
		s.mu.Lock()
		defer s.mu.Unlock()

		over = true
		if s.held {
			return nil
		}
		s.pool.outside.Release(1)
		if err := s.pool.workers.Acquire(ctx, 1); err != nil {
			return context.Cause(ctx)
		}
		s.held = true
		s.pool.busy(1)

		return nil
	}
}

// release ends the use of the slot.
func (s *slot) release() {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.held {
		s.held = false
		s.pool.busy(-1)
		s.pool.workers.Release(1)
	}
}
