package ledger

import (
	"errors"
	"fmt"

	"github.com/choria-provisioner/provisioner/version"
)

// ErrNothingHeld is returned for a Release of a node that waits for nobody.
var ErrNothingHeld = errors.New("the node is not held, dark or convicted")

// ErrUnderWay is returned for an Expect of a node whose change has no verdict.
var ErrUnderWay = errors.New("a change of the node is under way")

// ErrInvalidVersion is returned for what version.Valid refuses.
var ErrInvalidVersion = errors.New("not a version")

func (s *step) ordered(v, what, why string) {
	text := what
	if why != "" {
		text += ": " + clip(why)
	}
	s.note(Evidence{Kind: Ordered, Version: v, Text: text})
}

func (s *step) pin(ev SetPin) error {
	if !version.Valid(ev.Version) {
		return fmt.Errorf("pinning: %w: %q", ErrInvalidVersion, clip(ev.Version))
	}
	if p := s.rec.Pin; p != nil && p.Version == ev.Version && p.Why == ev.Why {
		return nil
	}
	s.rec.Pin = &Pin{Version: ev.Version, At: s.env.Wall, Why: ev.Why}
	s.ordered(ev.Version, "pinned to "+ev.Version, ev.Why)

	return nil
}

func (s *step) unpin(ev Unpin) {
	if s.rec.Pin == nil {
		return
	}
	v := s.rec.Pin.Version
	s.rec.Pin = nil
	s.ordered(v, "unpinned from "+v, ev.Why)
}

// release starts a node afresh at what it shows.
func (s *step) release(ev Release) error {
	switch s.rec.State {
	case Held, Dark, Convicted:
	default:
		return fmt.Errorf("releasing: %w: it is %s", ErrNothingHeld, s.rec.State)
	}
	s.freshStart()
	s.ordered("", "released", ev.Why)

	return nil
}

// expect makes a version known-good by a person's word.
func (s *step) expect(ev Expect) error {
	if !version.Valid(ev.Version) {
		return fmt.Errorf("expecting: %w: %q", ErrInvalidVersion, clip(ev.Version))
	}
	switch s.rec.State {
	case Unknown, Idle, Held, Dark, Convicted:
	default:
		return fmt.Errorf("expecting %s: %w: it is %s", ev.Version, ErrUnderWay, s.rec.State)
	}
	s.freshStart()
	s.rec.KnownGood = &KnownGood{Version: ev.Version, Source: Operator}
	// Else the version it shows next would count as another's change.
	s.rec.Seen = Seen{Version: ev.Version, At: s.env.Wall}
	s.ordered(ev.Version, "expected with "+ev.Version, ev.Why)

	return nil
}

// freshStart forgets what is under way, and nothing that was learned about
// versions.
func (s *step) freshStart() {
	s.rec.Trial, s.rec.Hold, s.rec.Retry, s.rec.Recent = nil, nil, nil, nil
	s.to(Idle)
}
