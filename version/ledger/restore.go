package ledger

import (
	"errors"
	"fmt"
	"time"
)

// ErrNewer is returned for a Restore over a record that was written later.
var ErrNewer = errors.New("the ledger holds a newer record")

// Restore puts back a record that was exported, over what is older and has
// nothing under way. Restoring what is there already changes nothing.
type Restore struct {
	Record Record
	// Exported is the observed time at the export. What was left of a bound then
	// is left of it now.
	Exported Observed
	// Force replaces also what is newer, or under way.
	Force bool
}

func (Restore) event() {}

func (s *step) restore(ev Restore) error {
	if err := ev.Record.Check(); err != nil {
		return fmt.Errorf("restoring: %w", err)
	}
	if ev.Record.Identity != s.rec.Identity {
		return fmt.Errorf("restoring: %w: it is that of %q", ErrCorrupt, ev.Record.Identity)
	}
	was, is := ev.Record.ChangedAt(), s.rec.ChangedAt()
	switch {
	case ev.Force:
	case s.rec.State == ev.Record.State && is.Equal(was) && !is.IsZero():
		return nil
	case s.rec.State.UnderWay():
		return fmt.Errorf("restoring: %w: it is %s", ErrUnderWay, s.rec.State)
	case is.After(was):
		return fmt.Errorf("restoring: %w: of %s, the other is of %s", ErrNewer, is.UTC().Format(time.RFC3339), was.UTC().Format(time.RFC3339))
	}

	revision := s.rec.Revision
	s.rec = ev.Record.clone()
	s.rec.Revision = revision
	s.rec.move(s.env.Observed - ev.Exported)
	if s.rec.Trial != nil {
		// No leader of this ledger has sent it.
		s.rec.Trial.Epoch = 0
	}
	s.changed = true

	return nil
}

// ChangedAt is when the record was changed last, by the clock on the wall and as
// far as it tells.
func (r *Record) ChangedAt() time.Time {
	last := r.Since
	later := func(t time.Time) {
		if t.After(last) {
			last = t
		}
	}
	later(r.Seen.At)
	if r.Trial != nil {
		later(r.Trial.SentAt)
	}
	if r.Pin != nil {
		later(r.Pin.At)
	}
	for _, b := range r.RolledBack {
		later(b.At)
	}
	for _, e := range r.Evidence {
		later(e.At)
	}

	return last
}

// move shifts all observed times from one ledger's into another's.
func (r *Record) move(by Observed) {
	// 0 is none, and nothing is due before the beginning.
	shift := func(o *Observed) {
		if *o != 0 {
			*o = max(*o+by, 1)
		}
	}
	if t := r.Trial; t != nil {
		for _, o := range []*Observed{&t.Sent, &t.Deadline, &t.QuietUntil, &t.Answered, &t.FreeAt} {
			shift(o)
		}
	}
	for i := range r.Recent {
		shift(&r.Recent[i].At)
	}
	if r.Retry != nil {
		shift(&r.Retry.NotBefore)
	}
	for i := range r.Evidence {
		r.Evidence[i].Observed += by
	}
}
