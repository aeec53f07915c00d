package ledger

import (
	"fmt"

	"github.com/choria-provisioner/provisioner/version"
)

// convict is the verdict against the version on trial. The way back begins in
// the same write, so that no crash comes between them.
func (s *step) convict(why string) {
	t := *s.rec.Trial
	obstacle := s.obstacle(&t)
	if obstacle != "" {
		s.left(RolledBack{From: t.Version, Outcome: OutcomeHalted, Why: why, Barred: true})
		s.hold(HeldConvicted, OutcomeHalted, fmt.Sprintf("%s; not rolled back: %s", why, obstacle))
		return
	}

	back := s.rec.KnownGood.Version
	id := t.ID + ".back"
	s.left(RolledBack{From: t.Version, To: back, Outcome: OutcomeRolledBack, Why: why, Barred: true, Change: id})
	s.judge(OutcomeRolledBack, t.Version, why)
	s.begin(Change{Direction: Rollback, Version: back, From: t.Version, ID: id, Reversible: true, Convicted: true}, why)
}

// obstacle is why a convicted version cannot be left, or empty.
func (s *step) obstacle(t *Change) string {
	good := s.rec.KnownGood
	switch {
	case good == nil:
		return "no version is known as good"
	case version.Same(good.Version, t.Version):
		return fmt.Sprintf("%s is the version known as good", t.Version)
	case s.rec.IsBarred(good.Version):
		return fmt.Sprintf("%s is barred", good.Version)
	case s.rec.left(t.Version) != nil:
		return fmt.Sprintf("%s was left once before", t.Version)
	case s.rec.noWayBack(t.Version, good.Version) != "":
		return fmt.Sprintf("there is no way back from %s", s.rec.noWayBack(t.Version, good.Version))
	default:
		return s.forbidden(good.Version)
	}
}

// forbidden is why a version may not be sent to the node now, or empty: what a
// person, the settings or the fleet say may have changed since it was chosen.
func (s *step) forbidden(v string) string {
	switch {
	case !version.Valid(v):
		return fmt.Sprintf("%q may not be sent", clip(v))
	case s.rec.Pin != nil && !version.Same(s.rec.Pin.Version, v):
		return fmt.Sprintf("the node is pinned to %s", s.rec.Pin.Version)
	case !s.env.Policy.maySend():
		return "upgrades are off, or there is no repository"
	default:
		return quarantined(s.env, v)
	}
}

// judge records and reports a verdict.
func (s *step) judge(o Outcome, v, why string) {
	s.note(Evidence{Kind: Judged, Outcome: o, Version: v, Text: why})
	s.do(Verdict{Outcome: o, Version: v, Why: why})
}

// hold stops everything until a person looks. The outcome is that of the change
// under way, if there is one.
func (s *step) hold(reason HoldReason, o Outcome, why string) {
	h := &Hold{Reason: reason, Why: why, At: s.env.Wall}
	if t := s.rec.Trial; t != nil {
		h.From, h.Version = t.From, t.Version
	}
	s.rec.Hold, s.rec.Trial = h, nil
	s.to(Held)
	s.next = s.env.Policy.skip()
	if h.Blocks() {
		s.next = NextDefer
	}
	if h.Version != "" {
		s.judge(o, h.Version, why)
	}
	s.do(Alert{Kind: AlertHeld, Text: why})
}

// accept ends a trial well.
func (s *step) accept(source Source, o Outcome, why string) {
	v := s.rec.Trial.Version
	s.rec.KnownGood = &KnownGood{Version: v, Source: source}
	s.show(v)
	s.rec.Trial, s.rec.Retry = nil, nil
	s.to(Idle)
	s.judge(o, v, why)
}

// abandon ends a change without a verdict on its version.
func (s *step) abandon(why string) {
	v := s.rec.Trial.Version
	s.rec.Trial = nil
	s.to(Idle)
	s.next = s.env.Policy.skip()
	s.judge(OutcomeInconclusive, v, why)
}
