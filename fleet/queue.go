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

// source is how a node was found.
type source int

const (
	// discovered is a node that answered a broadcast.
	discovered source = iota
	// announced is a node that nothing is known of but its startup event, which
	// any waiting node can publish for any name.
	announced
)

// state is where a node is on its way through the queue.
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
	source   source
	// finished is a resting node that does not wait any more.
	finished bool
	// found tells that a node announced itself while it was worked on, or was found
	// while it rested.
	found bool
	// unproven is an announced node that is worked on and has not answered.
	unproven bool
	// seen is when the node was last found.
	seen time.Time
	// until is when a resting node may be queued again.
	until time.Time
	wake  *time.Timer
}

// queue holds the nodes that wait, are worked on or rest. Adding never blocks.
// Nodes that were discovered go before those that were only announced, and as
// many as limit of the one and half as many of the other may wait.
type queue struct {
	limit int
	// unprovenLimit is how many announced nodes that have not answered yet may
	// be worked on.
	unprovenLimit int
	// stale is the age beyond which a waiting node is dropped.
	stale time.Duration
	// dropped is told of each node dropped because it was stale.
	dropped func(identity string)

	mu      sync.Mutex
	entries map[string]*entry
	// waiting are the queued nodes by source, in order, and nodes that were
	// queued; size counts without the latter. more is signalled when there may be
	// one to take.
	waiting  [2][]*entry
	size     [2]int
	unproven int
	picks    int
	more     chan struct{}
	// overflowed is set when a discovered node was refused.
	overflowed bool
}

func newQueue(limit, unprovenLimit int, stale time.Duration, dropped func(string)) *queue {
	return &queue{
		limit: limit, unprovenLimit: unprovenLimit, stale: stale, dropped: dropped,
		entries: map[string]*entry{}, more: make(chan struct{}, 1),
	}
}

// add takes a node that was found.
func (q *queue) add(identity string, from source) added {
	q.mu.Lock()
	defer q.mu.Unlock()

	now := time.Now()
	e := q.entries[identity]
	switch {
	case e == nil:
		e = &entry{identity: identity}
	case e.state == stateQueued && e.source == announced && from == discovered:
		// It is there after all. Its old place is passed over.
		q.size[announced]--
		if q.push(e, discovered, now) == refused {
			return refused
		}
		return known
	case e.state != stateResting:
		e.seen = now
		e.found = e.found || from == announced
		return known
	case now.Before(e.until):
		e.found = true
		return resting
	}

	return q.push(e, from, now)
}

// push queues e, or forgets it where there is no room.
func (q *queue) push(e *entry, from source, seen time.Time) added {
	if e.wake != nil {
		e.wake.Stop()
	}
	limit := q.limit
	if from == announced {
		limit /= 2
	}
	if q.size[from] >= limit {
		delete(q.entries, e.identity)
		e.state = stateResting // so that a place it still has is passed over
		q.overflowed = q.overflowed || from == discovered
		return refused
	}

	e.state, e.source, e.seen = stateQueued, from, seen
	q.entries[e.identity] = e
	q.waiting[from] = append(q.waiting[from], e)
	q.size[from]++
	q.signal()

	return queued
}

func (q *queue) signal() {
	select {
	case q.more <- struct{}{}:
	default:
	}
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

// announcedShare is that one node of so many is an announced one while
// discovered ones wait.
const announcedShare = 4

func (q *queue) pop() *entry {
	q.mu.Lock()
	defer q.mu.Unlock()

	q.picks++
	order := []source{discovered, announced}
	if q.picks%announcedShare == 0 {
		order = []source{announced, discovered}
	}
	for _, from := range order {
		if from == announced && q.unproven >= q.unprovenLimit {
			continue
		}
		if e := q.popFrom(from); e != nil {
			if from == announced {
				e.unproven = true
				q.unproven++
			}
			return e
		}
	}

	return nil
}

func (q *queue) popFrom(from source) *entry {
	for len(q.waiting[from]) > 0 {
		e := q.waiting[from][0]
		q.waiting[from][0] = nil
		q.waiting[from] = q.waiting[from][1:]
		if e.state != stateQueued || e.source != from {
			continue
		}
		q.size[from]--
		if time.Since(e.seen) > q.stale {
			delete(q.entries, e.identity)
			e.state = stateResting
			q.dropped(e.identity)
			continue
		}
		e.state, e.found = stateBusy, false
		return e
	}
	q.waiting[from] = nil

	return nil
}

// answered tells that a node that is worked on has answered, or is done with.
func (q *queue) answered(e *entry) {
	q.mu.Lock()
	defer q.mu.Unlock()

	q.prove(e)
}

func (q *queue) prove(e *entry) {
	if e.unproven {
		e.unproven = false
		q.unproven--
		q.signal()
	}
}

// crowded tells whether announced nodes wait because too many that have not
// answered are worked on.
func (q *queue) crowded() bool {
	q.mu.Lock()
	defer q.mu.Unlock()

	return q.size[announced] > 0 && q.unproven >= q.unprovenLimit
}

// afterRest is what becomes of a node that was left alone for a while.
type afterRest int

const (
	// findAgain is a node that still waits and has to be found anew; it counts as
	// waiting until it was not found for too long.
	findAgain afterRest = iota
	// queueAgain is a node that is queued by itself.
	queueAgain
	// awaited is a node that restarts: it is queued if it was found meanwhile, or
	// announced itself before the pass was over, and has to be found otherwise.
	awaited
	// finished is a node that was provisioned or shut down, or may never have
	// been there.
	finished
)

// rest leaves a node alone for d.
func (q *queue) rest(e *entry, d time.Duration, then afterRest) {
	q.mu.Lock()
	defer q.mu.Unlock()

	q.prove(e)
	if q.entries[e.identity] != e {
		return // the queue was emptied meanwhile; a newer entry stays
	}
	e.state = stateResting
	e.finished = then == finished
	e.until = time.Now().Add(d)
	e.wake = time.AfterFunc(d, func() { q.rested(e, then) })
}

func (q *queue) rested(e *entry, then afterRest) {
	q.mu.Lock()
	defer q.mu.Unlock()

	switch {
	case q.entries[e.identity] != e, e.state != stateResting, time.Now().Before(e.until):
		// found meanwhile, and perhaps back at rest already
	case then == queueAgain, then == awaited && e.found:
		q.push(e, e.source, time.Now())
	case then != finished && time.Since(e.seen) < q.stale:
		e.wake = time.AfterFunc(q.stale-time.Since(e.seen), func() { q.rested(e, finished) })
	default:
		delete(q.entries, e.identity)
	}
}

// forget ends a node's entry, so that it can be found anew at once.
func (q *queue) forget(e *entry) {
	q.mu.Lock()
	defer q.mu.Unlock()

	q.prove(e)
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
	q.waiting, q.size = [2][]*entry{}, [2]int{}
	q.overflowed = false
}

// drained tells, once, that discovered nodes were refused and there is room
// again.
func (q *queue) drained() bool {
	q.mu.Lock()
	defer q.mu.Unlock()

	if !q.overflowed || q.size[discovered] > q.limit/2 {
		return false
	}
	q.overflowed = false

	return true
}

// counts are how many nodes wait for a worker, how many of these were only
// announced, and how many are known in all but for those that are finished.
func (q *queue) counts() (waiting, onlyAnnounced, all int) {
	q.mu.Lock()
	defer q.mu.Unlock()

	for _, e := range q.entries {
		if e.state != stateResting || !e.finished {
			all++
		}
	}

	return q.size[discovered] + q.size[announced], q.size[announced], all
}
