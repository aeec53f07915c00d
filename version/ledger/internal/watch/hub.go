// Package watch hands the writes to a store to those who watch it.
package watch

import (
	"context"
	"sync"

	"github.com/choria-provisioner/provisioner/version/ledger"
)

// Hub sends every update to every watcher, in order, and never waits for one.
// The zero value is ready.
type Hub struct {
	mu       sync.Mutex
	watchers map[*watcher]struct{}
	closed   bool
}

// watcher has what was sent and not read yet.
type watcher struct {
	mu      sync.Mutex
	waiting []ledger.Update
	// more holds one token when there may be something waiting.
	more chan struct{}
}

// Watch is Store.Watch.
func (h *Hub) Watch(ctx context.Context) (<-chan ledger.Update, error) {
	h.mu.Lock()
	defer h.mu.Unlock()

	if h.closed {
		return nil, ledger.ErrClosed
	}
	if h.watchers == nil {
		h.watchers = map[*watcher]struct{}{}
	}
	w := &watcher{more: make(chan struct{}, 1)}
	h.watchers[w] = struct{}{}

	out := make(chan ledger.Update)
	go func() {
		defer close(out)
		w.run(ctx, out)
		h.mu.Lock()
		delete(h.watchers, w)
		h.mu.Unlock()
	}()

	return out, nil
}

// Send hands updates to all watchers. Its caller calls it in the order of the
// writes.
func (h *Hub) Send(updates ...ledger.Update) {
	h.mu.Lock()
	defer h.mu.Unlock()

	for w := range h.watchers {
		w.add(updates)
	}
}

// Close ends all watchers once they have read what was sent.
func (h *Hub) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()

	if h.closed {
		return
	}
	h.closed = true
	for w := range h.watchers {
		close(w.more)
	}
	h.watchers = nil
}

func (w *watcher) add(updates []ledger.Update) {
	w.mu.Lock()
	w.waiting = append(w.waiting, updates...)
	w.mu.Unlock()

	select {
	case w.more <- struct{}{}:
	default:
	}
}

func (w *watcher) run(ctx context.Context, out chan<- ledger.Update) {
	for open := true; open; {
		select {
		case <-ctx.Done():
			return
		case _, open = <-w.more:
		}
		for _, u := range w.take() {
			select {
			case <-ctx.Done():
				return
			case out <- u:
			}
		}
	}
}

func (w *watcher) take() []ledger.Update {
	w.mu.Lock()
	defer w.mu.Unlock()

	waiting := w.waiting
	w.waiting = nil

	return waiting
}
