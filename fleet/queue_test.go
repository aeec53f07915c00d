package fleet

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

func newTestQueue(limit int, dropped func(string)) *queue {
	if dropped == nil {
		dropped = func(string) {}
	}

	return newQueue(limit, 3, 2*time.Minute, dropped)
}

func (q *queue) mustNext(t *testing.T) *entry {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	e, err := q.next(ctx)
	if err != nil {
		t.Fatal("no node is queued")
	}

	return e
}

func (q *queue) mustAdd(t *testing.T, identity string, want added) {
	t.Helper()
	if got := q.add(identity, discovered); got != want {
		t.Fatalf("adding %s answers %d, want %d", identity, got, want)
	}
}

// One startup event a thousand times is one node, while it waits and while it
// is worked on.
func TestQueueTakesANodeOnce(t *testing.T) {
	q := newTestQueue(10, nil)
	q.mustAdd(t, "n1", queued)
	for range 1000 {
		q.mustAdd(t, "n1", known)
	}
	q.mustNext(t)
	for range 1000 {
		q.mustAdd(t, "n1", known)
	}
	if waiting, _, all := q.counts(); waiting != 0 || all != 1 {
		t.Errorf("%d wait of %d, want none of 1", waiting, all)
	}
}

// The older one tested the age of the new entry and so never refreshed the old.
func TestQueueRefreshesAKnownNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dropped []string
		q := newTestQueue(10, func(identity string) { dropped = append(dropped, identity) })
		q.mustAdd(t, "refreshed", queued)
		q.mustAdd(t, "gone", queued)
		for range 3 {
			time.Sleep(time.Minute)
			q.mustAdd(t, "refreshed", known)
		}

		if e := q.mustNext(t); e.identity != "refreshed" {
			t.Errorf("got %s", e.identity)
		}
		q.mustAdd(t, "new", queued)
		if e := q.mustNext(t); e.identity != "new" || fmt.Sprint(dropped) != "[gone]" {
			t.Errorf("got %s, dropped %v: a node that was not found for longer than two intervals costs no call", e.identity, dropped)
		}
	})
}

// The older one counted a refused node as known and never took it again.
func TestQueueForgetsARefusedNode(t *testing.T) {
	q := newTestQueue(2, nil)
	q.mustAdd(t, "n1", queued)
	q.mustAdd(t, "n2", queued)
	q.mustAdd(t, "n3", refused)
	if q.drained() {
		t.Error("there is no room yet")
	}
	q.mustNext(t)
	if !q.drained() || q.drained() {
		t.Error("that there is room again must be told, and once")
	}
	q.mustAdd(t, "n3", queued)
}

// A finished node is left alone during its restart splay; after that a fresh
// event counts.
func TestQueueRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue(10, nil)
		q.mustAdd(t, "n1", queued)
		q.rest(q.mustNext(t), time.Minute, finished)
		time.Sleep(59 * time.Second)
		q.mustAdd(t, "n1", resting)
		time.Sleep(2 * time.Second)
		q.mustAdd(t, "n1", queued)
	})
}

// A node that is deferred for a time comes back by itself, and not before.
func TestQueueRestAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue(10, nil)
		q.mustAdd(t, "n1", queued)
		began := time.Now()
		q.rest(q.mustNext(t), time.Hour, queueAgain)
		e, err := q.next(t.Context())
		if err != nil || e.identity != "n1" || time.Since(began) != time.Hour {
			t.Errorf("got %v, %v after %v", e, err, time.Since(began))
		}
	})
}

// A node that restarts is looked at when it was found meanwhile, and not before
// the end of its rest. Its event may be faster than the end of the pass.
func TestQueueAwaited(t *testing.T) {
	for name, tc := range map[string]struct {
		during, after func(q *queue)
		queued        bool
	}{
		"not seen":                   {},
		"announced during the pass":  {during: func(q *queue) { q.add("n1", announced) }, queued: true},
		"discovered during the pass": {during: func(q *queue) { q.add("n1", discovered) }},
		"announced during the rest":  {after: func(q *queue) { q.add("n1", announced) }, queued: true},
		"discovered during the rest": {after: func(q *queue) { q.add("n1", discovered) }, queued: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := newTestQueue(10, nil)
				q.mustAdd(t, "n1", queued)
				q.add("n1", announced) // of the start before
				e := q.mustNext(t)
				if tc.during != nil {
					tc.during(q)
				}
				q.rest(e, 10*time.Second, awaited)
				if tc.after != nil {
					tc.after(q)
				}
				time.Sleep(9 * time.Second)
				if q.pop() != nil {
					t.Fatal("queued before the end of its rest")
				}
				time.Sleep(2 * time.Second)
				if got := q.pop() != nil; got != tc.queued {
					t.Errorf("queued: %v, want %v", got, tc.queued)
				}
			})
		})
	}
}

// The older one removed a finished node after a while by name, and with it a
// newer entry of that name.
func TestQueueOldEntryDoesNotRemoveTheNew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue(10, nil)
		q.mustAdd(t, "n1", queued)
		old := q.mustNext(t)
		q.clear() // the lease was lost, and won again
		q.mustAdd(t, "n1", queued)
		q.rest(old, time.Second, finished)
		q.forget(old)
		time.Sleep(time.Minute)
		if waiting, _, all := q.counts(); waiting != 1 || all != 1 {
			t.Errorf("%d wait of %d, the newer entry is gone", waiting, all)
		}
	})
}

func TestQueueNextEndsWithItsContext(t *testing.T) {
	lost := errors.New("lost")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(lost)
	if _, err := newTestQueue(1, nil).next(ctx); !errors.Is(err, lost) {
		t.Errorf("error %v", err)
	}
}

// A node that was only announced and then answers a discovery goes with the
// discovered ones; it is taken once.
func TestQueuePromotes(t *testing.T) {
	q := newTestQueue(10, nil)
	for _, identity := range []string{"a1", "a2", "a3"} {
		if got := q.add(identity, announced); got != queued {
			t.Fatalf("adding %s answers %d", identity, got)
		}
	}
	q.mustAdd(t, "a3", known)
	var order []string
	for range 3 {
		order = append(order, q.mustNext(t).identity)
	}
	if fmt.Sprint(order) != "[a3 a1 a2]" {
		t.Errorf("taken in the order %v", order)
	}
	if waiting, onlyAnnounced, all := q.counts(); waiting != 0 || onlyAnnounced != 0 || all != 3 {
		t.Errorf("%d wait, %d only announced, of %d", waiting, onlyAnnounced, all)
	}
}

// Only so many announced nodes are worked on before they have answered.
func TestQueueUnproven(t *testing.T) {
	q := newTestQueue(20, nil)
	for i := range 5 {
		q.add(fmt.Sprintf("a%d", i), announced)
	}
	first := q.mustNext(t)
	q.mustNext(t)
	q.mustNext(t)
	if e := q.pop(); e != nil || !q.crowded() {
		t.Fatalf("took %v beyond the limit", e)
	}
	q.mustAdd(t, "d", queued)
	if e := q.mustNext(t); e.identity != "d" {
		t.Errorf("took %s, a discovered node is not held up", e.identity)
	}
	q.answered(first)
	q.mustNext(t)
	q.forget(first)
	if q.unproven != 3 {
		t.Errorf("%d unproven, want 3", q.unproven)
	}
}

// A node that failed, is deferred or locked still waits, and counts so until it
// was not found for two intervals; a finished one does not.
func TestQueueCountsWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newTestQueue(10, nil)
		for _, identity := range []string{"failed", "deferred", "done"} {
			q.mustAdd(t, identity, queued)
		}
		q.rest(q.mustNext(t), 10*time.Second, findAgain)
		q.rest(q.mustNext(t), time.Hour, queueAgain)
		q.rest(q.mustNext(t), time.Minute, finished)
		for at, want := range []int{2, 2, 1, 1} {
			if _, _, all := q.counts(); all != want {
				t.Errorf("%d nodes wait after %d minutes, want %d", all, at, want)
			}
			time.Sleep(time.Minute + time.Second)
		}
		q.mustAdd(t, "failed", queued)
	})
}

// Announced nodes have half the room, so that invented ones keep no discovered
// one out.
func TestQueueLimits(t *testing.T) {
	q := newTestQueue(4, nil)
	for i, want := range []added{queued, queued, refused} {
		if got := q.add(fmt.Sprintf("a%d", i), announced); got != want {
			t.Errorf("announced node %d: %d, want %d", i, got, want)
		}
	}
	for i, want := range []added{queued, queued, queued, queued, refused} {
		q.mustAdd(t, fmt.Sprintf("d%d", i), want)
	}
}
