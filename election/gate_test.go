package election_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/choria-provisioner/provisioner/election"
)

func TestGate(t *testing.T) {
	for _, tc := range []struct {
		why    string
		do     func(*election.Gate)
		open   bool
		reason string
	}{
		{"paused until someone opens it", func(*election.Gate) {}, false, "not opened yet"},
		{"open", func(g *election.Gate) { g.Open() }, true, ""},
		{"paused again", func(g *election.Gate) { g.Open(); g.Pause("lost") }, false, "lost"},
		{"the latest reason counts", func(g *election.Gate) { g.Pause("no bucket"); g.Pause("no streams") }, false, "no streams"},
		{"valid lease", func(g *election.Gate) { g.OpenWhile(func() bool { return true }) }, true, ""},
		{"a lease that ran out with nobody looking", func(g *election.Gate) { g.OpenWhile(func() bool { return false }) }, false, "the lease ran out"},
		{"opened anew without a lease, the old one no longer counts", func(g *election.Gate) { g.OpenWhile(func() bool { return false }); g.Open() }, true, ""},
	} {
		t.Run(tc.why, func(t *testing.T) {
			g := election.NewGate()
			tc.do(g)

			if got := g.IsOpen(); got != tc.open {
				t.Errorf("IsOpen is %v", got)
			}
			if got := g.Reason(); got != tc.reason {
				t.Errorf("reason %q, want %q", got, tc.reason)
			}
			err := g.Err()
			if tc.open && err != nil || !tc.open && (!errors.Is(err, election.ErrPaused) || err.Error() != "paused: "+tc.reason) {
				t.Errorf("Err is %v", err)
			}
		})
	}
}

func TestGate_Session(t *testing.T) {
	t.Run("ends before Pause returns, with the reason", func(t *testing.T) {
		g := election.NewGate()
		g.Open()
		ctx, cancel := g.Session(t.Context())
		defer cancel()
		if ctx.Err() != nil {
			t.Fatal("over before it began")
		}

		g.Pause("the lease is lost")
		if err := context.Cause(ctx); !errors.Is(err, election.ErrPaused) || err.Error() != "paused: the lease is lost" {
			t.Errorf("cause %v", err)
		}
	})

	t.Run("is over at once on a paused gate", func(t *testing.T) {
		ctx, cancel := election.NewGate().Session(t.Context())
		defer cancel()
		if err := context.Cause(ctx); !errors.Is(err, election.ErrPaused) {
			t.Errorf("cause %v", err)
		}
	})

	t.Run("ends as soon as anyone notices that the lease ran out", func(t *testing.T) {
		var valid atomic.Bool
		valid.Store(true)
		g := election.NewGate()
		g.OpenWhile(valid.Load)
		ctx, cancel := g.Session(t.Context())
		defer cancel()

		valid.Store(false)
		if g.IsOpen() {
			t.Error("still open")
		}
		if !errors.Is(context.Cause(ctx), election.ErrPaused) {
			t.Errorf("cause %v", context.Cause(ctx))
		}
	})

	t.Run("does not come back with the gate", func(t *testing.T) {
		g := election.NewGate()
		g.Open()
		ctx, cancel := g.Session(t.Context())
		defer cancel()
		g.Pause("")
		g.Open()
		if ctx.Err() == nil {
			t.Error("alive")
		}
	})

	t.Run("ends with its parent and keeps that cause", func(t *testing.T) {
		g := election.NewGate()
		g.Open()
		why := errors.New("enough")
		parent, stop := context.WithCancelCause(t.Context())
		ctx, cancel := g.Session(parent)
		defer cancel()
		stop(why)
		g.Pause("later")
		if err := context.Cause(ctx); err != why {
			t.Errorf("cause %v", err)
		}
	})
}

func TestGate_Wait(t *testing.T) {
	g := election.NewGate()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := g.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("a wait without end: %v", err)
	}

	waited := make(chan error)
	go func() { waited <- g.Wait(t.Context()) }()
	g.Open()
	if err := <-waited; err != nil {
		t.Error(err)
	}
	if err := g.Wait(t.Context()); err != nil {
		t.Errorf("an open gate: %v", err)
	}
}

func TestGate_OnChange(t *testing.T) {
	g := election.NewGate()
	var got []bool
	g.OnChange(func(open bool) {
		got = append(got, open)
		g.IsOpen() // an observer may ask
	})
	g.Pause("still")
	g.Open()
	g.Open()
	g.Pause("now")

	if want := []bool{false, true, false}; !slices.Equal(got, want) {
		t.Errorf("told %v, want %v", got, want)
	}
}

// An observer that makes a change itself is told of it after the one it is at.
func TestGate_OnChange_reentrant(t *testing.T) {
	g := election.NewGate()
	var got []bool
	g.OnChange(func(open bool) {
		if open {
			g.Pause("no")
		}
		got = append(got, open)
	})
	g.Open()

	if want := []bool{false, true, false}; !slices.Equal(got, want) {
		t.Errorf("told %v, want %v", got, want)
	}
}

// Many at once: each session ends, and observers see changes alternate.
func TestGate_concurrent(t *testing.T) {
	g := election.NewGate()
	var last atomic.Bool
	var wrong atomic.Int32
	first := true
	g.OnChange(func(open bool) {
		if !first && last.Load() == open {
			wrong.Add(1)
		}
		first = false
		last.Store(open)
	})

	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 200 {
				g.Open()
				ctx, cancel := g.Session(t.Context())
				g.Pause("")
				select {
				case <-ctx.Done():
				case <-time.After(10 * time.Second):
					t.Error("a session outlived the pause")
				}
				cancel()
			}
		})
	}
	wg.Wait()

	if wrong.Load() > 0 {
		t.Errorf("%d changes told that were none", wrong.Load())
	}
	if g.IsOpen() || last.Load() {
		t.Error("observers and gate do not agree")
	}
}
