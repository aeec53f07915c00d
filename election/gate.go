package election

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// ErrPaused is the cause of a session that ended, or never began, because the
// gate is paused; the error's text adds why.
var ErrPaused = errors.New("paused")

// Gate says whether anything may be sent to nodes. It is open or paused; while
// it is paused it knows the reason. All its methods may be used at once.
type Gate struct {
	mu       sync.Mutex
	open     bool
	valid    func() bool // nil when nothing but Pause ends the opening
	reason   string
	opened   chan struct{} // closed while the gate is open
	sessions map[*session]struct{}

	observers []func(open bool)
	calls     []func() // to observers, in the order of the changes
	calling   bool
}

type session struct{ cancel context.CancelCauseFunc }

// NewGate makes a gate that is paused.
func NewGate() *Gate {
	return &Gate{
		reason:   "not opened yet",
		opened:   make(chan struct{}),
		sessions: map[*session]struct{}{},
	}
}

// Open opens the gate until it is paused.
func (g *Gate) Open() { g.OpenWhile(nil) }

// OpenWhile opens the gate until it is paused or valid says false, which the
// gate asks whenever someone wants to know: a process that was stopped for
// longer than its lease finds the gate paused before any timer has fired.
// valid must not block, nor call the gate.
func (g *Gate) OpenWhile(valid func() bool) {
	g.mu.Lock()
	g.valid = valid
	if !g.open {
		g.open = true
		g.reason = ""
		close(g.opened)
		g.changed()
	}
	g.unlockAndCall()
}

// Pause pauses the gate and ends every session before it returns. A gate that
// is paused already takes the new reason.
func (g *Gate) Pause(reason string) {
	g.mu.Lock()
	g.pause(reason)
	g.unlockAndCall()
}

func (g *Gate) pause(reason string) {
	g.reason = reason
	if !g.open {
		return
	}

	g.open = false
	g.valid = nil
	g.opened = make(chan struct{})
	cause := g.cause()
	for s := range g.sessions {
		s.cancel(cause)
		delete(g.sessions, s)
	}
	g.changed()
}

func (g *Gate) cause() error { return fmt.Errorf("%w: %s", ErrPaused, g.reason) }

// check pauses a gate whose opening is no longer valid.
func (g *Gate) check() bool {
	if g.open && g.valid != nil && !g.valid() {
		g.pause("the lease ran out")
	}

	return g.open
}

// IsOpen says whether something may be sent now.
func (g *Gate) IsOpen() bool {
	g.mu.Lock()
	open := g.check()
	g.unlockAndCall()

	return open
}

// Reason says why the gate is paused; it is empty while the gate is open.
func (g *Gate) Reason() string {
	g.mu.Lock()
	g.check()
	reason := g.reason
	g.unlockAndCall()

	return reason
}

// Err is nil while the gate is open, else ErrPaused with the reason.
func (g *Gate) Err() error {
	g.mu.Lock()
	defer g.unlockAndCall()

	if g.check() {
		return nil
	}

	return g.cause()
}

// Session is a context that ends with ctx or when the gate pauses, then with
// ErrPaused as its cause. On a paused gate it has ended already. The caller
// must call the cancel function.
func (g *Gate) Session(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	s := &session{cancel}

	g.mu.Lock()
	if g.check() {
		g.sessions[s] = struct{}{}
	} else {
		cancel(g.cause())
	}
	g.unlockAndCall()

	return ctx, func() {
		g.mu.Lock()
		delete(g.sessions, s)
		g.mu.Unlock()
		cancel(context.Canceled)
	}
}

// Wait returns nil as soon as the gate is open, or ctx's cause when it ends
// first.
func (g *Gate) Wait(ctx context.Context) error {
	for {
		g.mu.Lock()
		open, opened := g.check(), g.opened
		g.unlockAndCall()
		if open {
			return nil
		}

		select {
		case <-opened:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// OnChange calls f with the state of now and after each change, one call after
// the other and in the order of the changes, on the goroutine of whoever made
// one. f may call the gate; while it runs, later changes wait to be told.
func (g *Gate) OnChange(f func(open bool)) {
	g.mu.Lock()
	open := g.check()
	g.observers = append(g.observers, f)
	g.calls = append(g.calls, func() { f(open) })
	g.unlockAndCall()
}

func (g *Gate) changed() {
	open := g.open
	for _, f := range g.observers {
		g.calls = append(g.calls, func() { f(open) })
	}
}

// unlockAndCall ends every method that may have changed the state: observers
// are called without the lock, and by one goroutine at a time.
func (g *Gate) unlockAndCall() {
	if g.calling {
		g.mu.Unlock()
		return
	}

	g.calling = true
	for len(g.calls) > 0 {
		call := g.calls[0]
		g.calls = g.calls[1:]
		g.mu.Unlock()
		call()
		g.mu.Lock()
	}
	g.calling = false
	g.mu.Unlock()
}
