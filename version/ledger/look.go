package ledger

import (
	"fmt"
	"time"

	"github.com/choria-provisioner/provisioner/version"
)

// inventory is what a node shows of itself in provisioning mode.
func (s *step) inventory(ev Inventory) {
	// A bound that passed unnoticed, or a leader that did, comes first.
	s.tick()
	s.takeOver()
	s.next = s.rec.standstill()
	if ev.Version == "" {
		if s.next == NextLeave {
			s.leave(RestartSettles)
		}
		return
	}

	before := s.rec.Seen.Version
	s.show(ev.Version)
	switch s.rec.State {
	case Unknown:
		s.to(Idle)
		s.baseline(ev.Version, "first met with")
	case Idle:
		if before != ev.Version {
			s.baseline(ev.Version, "changed by others to")
		}
	case Intent, Verify, Swapped, Dark:
		s.lookedAt(ev)
	case Arrived:
		if !version.Same(ev.Version, s.rec.Trial.Version) {
			s.strayed(ev.Version)
		}
	case Trial:
		s.cameBack(ev.Version)
	case Convicted:
		s.stillConvicted(ev.Version)
	}
}

// baseline takes what a node shows while nothing is under way as known-good.
func (s *step) baseline(v, how string) {
	if s.rec.KnownGood != nil && version.Same(s.rec.KnownGood.Version, v) {
		return
	}
	switch {
	case s.rec.IsBarred(v):
		s.saw(v, "%s %s, which is barred: not known as good", how, v)
	case quarantined(s.env, v) != "":
		s.saw(v, "%s %s, which is quarantined: not known as good", how, v)
	default:
		s.rec.KnownGood = &KnownGood{Version: v, Source: FirstSeen}
		s.changed = true
		s.saw(v, "%s %s", how, v)
	}
}

// lookedAt settles an update whose end is open, by what the node shows.
func (s *step) lookedAt(ev Inventory) {
	t := s.rec.Trial
	switch {
	case version.Same(ev.Version, t.Version):
		s.arrive(ev.Version)
	case !version.Same(ev.Version, t.From), t.Reached:
		s.strayed(ev.Version)
	case s.rec.State == Intent:
		// The call is still out; its reply or its end decides.
		s.next = NextLeave
	case s.env.Observed < t.QuietUntil:
		s.leave(time.Duration(t.QuietUntil - s.env.Observed))
	case t.Confirmed:
		s.hold(HeldExecFailed, OutcomeInconclusive, fmt.Sprintf("took %s and still runs %s: its restart failed", t.Version, ev.Version))
	default:
		s.settle(ev)
	}
}

// settle is an old version where it is open whether the update was taken. It is
// sent once more when the node's lock was found free twice, a restart apart: a
// question that waited behind the update is answered between the update and
// the restart, and would be free once.
func (s *step) settle(ev Inventory) {
	t := s.rec.Trial
	if s.rec.State == Dark {
		s.to(Verify)
		t.Deadline = s.env.Observed.Add(s.env.Policy.ReleaseTimeout)
		s.saw(ev.Version, "is back with %s", ev.Version)
	}
	switch {
	case !ev.LockFree:
		s.heard()
		s.leave(RestartSettles)
	case t.FreeAt == 0:
		s.heard()
		t.FreeAt = t.Answered
		s.saw(ev.Version, "still runs %s and its update lock is free; looked at once more", ev.Version)
		s.leave(RestartSettles)
	case s.env.Observed < t.FreeAt.Add(RestartSettles):
		s.leave(time.Duration(t.FreeAt.Add(RestartSettles) - s.env.Observed))
	case t.Resent && !t.Orphaned, t.Unanswered >= sendLimit:
		s.hold(HeldUnsettled, OutcomeInconclusive, fmt.Sprintf("was sent %s %d times and still runs %s", t.Version, t.Unanswered, ev.Version))
	case s.forbidden(t.Version) != "":
		s.saw(ev.Version, "still runs %s; not sent again: %s", ev.Version, s.forbidden(t.Version))
		s.notChanged()
	case t.Orphaned:
		s.send("was not taken, and may never have left the leader that died; sent again")
	default:
		t.Resent = true
		s.send("got no reply and was not taken; sent once more")
	}
}

// heard notes that the node answered.
func (s *step) heard() {
	t, now := s.rec.Trial, max(s.env.Observed, 1)
	s.changed = s.changed || t.Answered != now
	t.Answered = now
}

// arrive is a node that shows the target.
func (s *step) arrive(v string) {
	t := s.rec.Trial
	t.Reached, t.FreeAt = true, 0
	t.Deadline = s.env.Observed.Add(s.env.Policy.Trial)
	s.rec.Retry = nil
	s.to(Arrived)
	s.next = NextContinue
	s.saw(v, "arrived with %s", v)
}

// strayed is a node that shows neither what it had nor what it was sent, or left
// what it had reached. That says nothing about the target.
func (s *step) strayed(v string) {
	t := s.rec.Trial
	s.hold(HeldThirdVersion, OutcomeInconclusive, fmt.Sprintf("shows %s after the %s from %s to %s", v, t.Direction, t.From, t.Version))
}

// cameBack is a node in provisioning mode during its trial.
func (s *step) cameBack(v string) {
	t := s.rec.Trial
	switch {
	case !version.Same(v, t.Version):
		s.strayed(v)
	case s.env.Observed < t.QuietUntil:
		// It has not restarted yet.
		s.next = NextLeave
	default:
		t.Returns++
		if t.Returns >= returnLimit {
			s.convict(fmt.Sprintf("came back to provisioning %d times during the trial of %s", t.Returns, t.Version))
			return
		}
		t.Deadline = s.env.Observed.Add(s.env.Policy.Trial)
		t.SeenInMain = false
		s.to(Arrived)
		s.saw(v, "came back to provisioning during its trial")
	}
}

// stillConvicted is a node that has to leave its version and could not yet.
func (s *step) stillConvicted(v string) {
	t := s.rec.Trial
	switch {
	case version.Same(v, t.Version):
		s.arrive(v)
	case !version.Same(v, t.From):
		s.strayed(v)
	case s.rec.Retry != nil && s.env.Observed < s.rec.Retry.NotBefore, s.forbidden(t.Version) != "":
		s.next = NextDefer
	default:
		s.send("rollback tried again")
	}
}
