package fleet

import (
	"context"
	"sync"
	"time"
)

// added says what became of a node that was found.
type added int

const (
	// queued is a node that now waits for a worker.
	queued added = iota + 1
	// known is a node that waits already or is being worked on.
	known
	// resting is a node that is left alone for now.
	resting
	// refused is a node for which there was no room. Nothing of it is kept, so
	// that the next discovery brings it back.
	refused
	// held is a node whose identity more than one machine answered for.
	held
)

type state int

const (
	stateQueued state = iota
	stateBusy
	stateResting
)

// entry is a node from when it is found until it needs no attention any more.
type entry struct {
	identity string
	state    state
	// seen is when the node was last found.
	seen time.Time
	// until is when a resting node may be queued again.
	until time.Time
	wake  *time.Timer
}

// queue holds the nodes that wait, are worked on or rest. Adding never blocks;
// at most limit nodes wait.
type queue struct {
	limit int
	// stale is the age beyond which a waiting node is dropped.
	stale time.Duration
	// dropped is told of each node dropped because it was stale.
	dropped func(identity string)

	mu      sync.Mutex
	entries map[string]*entry
	// waiting are the queued nodes in order; more is signalled when it grows.
	waiting []*entry
	more    chan struct{}
	// overflowed is set when a node was refused.
	overflowed bool
}

func newQueue(limit int, stale time.Duration, dropped func(string)) *queue {
	return &queue{limit: limit, stale: stale, dropped: dropped, entries: map[string]*entry{}, more: make(chan struct{}, 1)}
}

// add takes a node that was found.
func (q *queue) add(identity string) added {
	q.mu.Lock()
	defer q.mu.Unlock()

	now := time.Now()
	e := q.entries[identity]
	switch {
	case e == nil:
		e = &entry{identity: identity}
	case e.state != stateResting:
		e.seen = now
		return known
	case now.Before(e.until):
		return resting
	}
	e.seen = now

	return q.push(e)
}

// push queues e, or forgets it where there is no room.
func (q *queue) push(e *entry) added {
	if e.wake != nil {
		e.wake.Stop()
	}
	if len(q.waiting) >= q.limit {
		delete(q.entries, e.identity)
		q.overflowed = true
		return refused
	}

	e.state = stateQueued
	q.entries[e.identity] = e
	q.waiting = append(q.waiting, e)
	select {
	case q.more <- struct{}{}:
	default:
	}

	return queued
}

// next waits for a node and marks it as worked on. Stale ones are dropped on
// the way. The error is that of ctx.
func (q *queue) next(ctx context.Context) (*entry, error) {
	for {
		if e := q.pop(); e != nil {
			return e, nil
		}
		select {
		case <-q.more:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (q *queue) pop() *entry {
	q.mu.Lock()
	defer q.mu.Unlock()

	for len(q.waiting) > 0 {
		e := q.waiting[0]
		q.waiting[0] = nil
		q.waiting = q.waiting[1:]
		if time.Since(e.seen) > q.stale {
			delete(q.entries, e.identity)
			q.dropped(e.identity)
			continue
		}
		e.state = stateBusy
		return e
	}
	q.waiting = nil

	return nil
}

// rest leaves a node alone for d. With again it is then queued by itself,
// without it has to be found anew.
func (q *queue) rest(e *entry, d time.Duration, again bool) {
	q.mu.Lock()
	defer q.mu.Unlock()

	if q.entries[e.identity] != e {
		return // the queue was emptied meanwhile; a newer entry stays
	}
	e.state = stateResting
	e.until = time.Now().Add(d)
	e.wake = time.AfterFunc(d, func() {
		q.mu.Lock()
		defer q.mu.Unlock()

		switch {
		case q.entries[e.identity] != e, e.state != stateResting, time.Now().Before(e.until):
			// found meanwhile, and perhaps back at rest already
		case again:
			e.seen = time.Now()
			q.push(e)
		default:
			delete(q.entries, e.identity)
		}
	})
}

// forget ends a node's entry, so that it can be found anew at once.
func (q *queue) forget(e *entry) {
	q.mu.Lock()
	defer q.mu.Unlock()

	if q.entries[e.identity] == e {
		delete(q.entries, e.identity)
	}
}

// clear empties the queue. What is being worked on ends by itself.
func (q *queue) clear() {
	q.mu.Lock()
	defer q.mu.Unlock()

	for _, e := range q.entries {
		if e.wake != nil {
			e.wake.Stop()
		}
	}
	q.entries = map[string]*entry{}
	q.waiting = nil
	q.overflowed = false
}

// drained tells, once, that nodes were refused and there is room again.
func (q *queue) drained() bool {
	q.mu.Lock()
	defer q.mu.Unlock()

	if !q.overflowed || len(q.waiting) > q.limit/2 {
		return false
	}
	q.overflowed = false

	return true
}

// size is how many nodes wait for a worker, and how many are known in all but
// for those that are finished with and rest.
func (q *queue) size() (waiting, all int) {
	q.mu.Lock()
	defer q.mu.Unlock()

	for _, e := range q.entries {
		if e.state != stateResting {
			all++
		}
	}

	return len(q.waiting), all
}
