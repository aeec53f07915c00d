package ledger

import (
	"fmt"
	"slices"
	"time"

	"github.com/choria-provisioner/provisioner/version"
)

// Step is what an event makes of a record. It is pure: what has to be done is in
// the result, and done after the record is stored by compare-and-swap on its
// revision. An event that says nothing new changes nothing, so it may be
// applied again after a write of unknown fate.
//
// The error is ErrStaleEpoch when a later leader wrote the record, and for what
// a person orders ErrNothingHeld, ErrUnderWay, ErrInvalidVersion or ErrNewer.
func Step(rec Record, ev Event, env Env) (Result, error) {
	if rec.Epoch > env.Epoch {
		return Result{Record: rec, Next: NextLeave}, fmt.Errorf("%s: %w: record of epoch %d, ours is %d", rec.Identity, ErrStaleEpoch, rec.Epoch, env.Epoch)
	}

	s := &step{rec: rec.clone(), env: &env, next: NextContinue}
	err := s.apply(ev)
	if err != nil {
		return Result{Record: rec, Next: NextContinue}, fmt.Errorf("%s: %w", rec.Identity, err)
	}
	if s.changed {
		s.rec.Epoch = env.Epoch
	} else {
		s.rec = rec
	}

	return Result{Record: s.rec, Changed: s.changed, Next: s.next, Ruling: s.ruling, Effects: s.effects}, nil
}

// Recover is what a new leader makes of a record it finds.
func Recover(rec Record, env Env) (Result, error) { return Step(rec, Found{}, env) }

// step is one event on its way through the rules.
type step struct {
	rec     Record
	env     *Env
	changed bool
	next    Next
	ruling  Ruling
	effects []Effect
}

func (s *step) apply(ev Event) error {
	switch ev := ev.(type) {
	case Inventory:
		s.inventory(ev)
	case Decision:
		s.decision(ev)
	case Reply:
		s.reply(ev)
	case Upgraded:
		s.upgraded(ev)
	case Answered:
		s.answered()
	case Configured:
		s.configured()
	case Refused:
		s.refused(ev)
	case SeenInMain:
		s.seenInMain(ev)
	case Tick:
		s.tick()
	case Found:
		s.found()
	case SetPin:
		return s.pin(ev)
	case Unpin:
		s.unpin(ev)
	case Release:
		return s.release(ev)
	case Expect:
		return s.expect(ev)
	case Restore:
		return s.restore(ev)
	default:
		return fmt.Errorf("unknown event %T", ev)
	}

	return nil
}

// to enters a state.
func (s *step) to(state State) {
	if s.rec.State != state {
		s.rec.Since = s.env.Wall
	}
	s.rec.State = state
	s.changed = true
}

func (s *step) do(e Effect) { s.effects = append(s.effects, e) }

// leave ends the pass and looks again later.
func (s *step) leave(after time.Duration) {
	s.next = NextLeave
	s.do(Look{After: after})
}

// show remembers the version a node showed.
func (s *step) show(v string) {
	if v == "" || v == s.rec.Seen.Version {
		return
	}
	s.rec.Seen = Seen{Version: v, At: s.env.Wall}
	s.changed = true
}

// send writes the intent. A release_update leaves once the record is stored.
func (s *step) send(why string) {
	t := s.rec.Trial
	t.Sends++
	t.Unanswered++
	t.AttemptID = t.ID
	if t.Sends > 1 {
		t.AttemptID = fmt.Sprintf("%s.%d", t.ID, t.Sends)
	}
	t.Epoch, t.Sent, t.SentAt = s.env.Epoch, s.env.Observed, s.env.Wall
	t.Deadline = s.env.Observed.Add(s.env.Policy.ReleaseTimeout)
	t.QuietUntil, t.Answered, t.FreeAt, t.Confirmed, t.Orphaned = 0, 0, 0, false, false
	s.to(Intent)
	s.note(Evidence{Kind: Intended, Version: t.Version, Text: fmt.Sprintf("%s to %s: %s", t.Direction, t.Version, why)})
	s.sendEffect()
}

func (s *step) sendEffect() {
	s.next = NextSend
	s.do(Send{Version: s.rec.Trial.Version, AttemptID: s.rec.Trial.AttemptID})
}

// begin is a change that was allowed.
func (s *step) begin(c Change, why string) {
	c.Why = why
	s.rec.Trial = &c
	s.rec.Recent = append(recent(&s.rec, s.env), Begun{Change: c.ID, Version: c.Version, At: s.env.Observed})
	if !c.Reversible && !slices.Contains(s.rec.NotReversible, c.Version) {
		s.rec.NotReversible = append(s.rec.NotReversible, c.Version)
	}
	s.send(why)
}

// decision asks the guards about what a helper wants, and begins it.
func (s *step) decision(d Decision) {
	if t := s.rec.Trial; s.rec.State == Intent && t.AttemptID == d.AttemptID && d.AttemptID != "" && t.Epoch == s.env.Epoch {
		// The same decision again: its write was of unknown fate.
		s.ruling = Ruling{Allowed: true, Target: t.Version, Sentence: "was allowed before", Next: NextSend}
		s.sendEffect()
		return
	}
	if s.rec.State == Unknown && d.Current != "" {
		s.inventory(Inventory{Version: d.Current})
	}

	s.ruling = Judge(s.rec, d, *s.env)
	s.next = s.ruling.Next
	switch {
	case d.Direction == "":
		return
	case s.ruling.Guard == GuardThirdChange:
		s.guarded(s.ruling.Guard, s.ruling.Target, fmt.Sprintf("%s stopped: %s", d.Direction, s.ruling.Sentence))
		s.hold(HeldThirdChange, OutcomeInconclusive, fmt.Sprintf("%s to %s was asked for: %s", d.Direction, s.ruling.Target, s.ruling.Sentence))
	case s.ruling.Guard == GuardSameVersion, s.ruling.Guard == GuardFeatureOff:
		return
	case !s.ruling.Allowed:
		s.guarded(s.ruling.Guard, clip(s.ruling.Target), fmt.Sprintf("%s stopped: %s", d.Direction, s.ruling.Sentence))
	default:
		s.allow(d)
	}
}

// allow begins what the guards let pass.
func (s *step) allow(d Decision) {
	target := s.ruling.Target
	why := clip(d.Reason)
	if why == "" {
		why = "asked for by the helper"
	}
	s.note(Evidence{Kind: Decided, Version: target, Text: fmt.Sprintf("%s from %s to %s: %s", d.Direction, d.Current, target, why)})

	if s.rec.State == Arrived {
		s.judge(OutcomeRolledBack, s.rec.Trial.Version, why)
	}
	if d.Direction == Rollback {
		s.left(RolledBack{From: d.Current, To: target, Outcome: OutcomeRolledBack, Why: why, Barred: d.Bar, Change: d.AttemptID})
	}
	s.begin(Change{
		Direction: d.Direction, Version: target, From: d.Current, ID: d.AttemptID,
		MinHealthy: Observed(d.MinHealthy), Reversible: !d.NotReversible,
		Convicted: d.Direction == Rollback && d.Bar,
	}, why)
}

// left remembers that a version was left.
func (s *step) left(b RolledBack) {
	b.At = s.env.Wall
	s.changed = true
	if before := s.rec.left(b.From); before != nil {
		b.Barred = b.Barred || before.Barred
		*before = b
		return
	}
	s.rec.RolledBack = append(s.rec.RolledBack, b)
}

// reply is how the update ended on the node.
func (s *step) reply(ev Reply) {
	t := s.rec.Trial
	if t == nil || t.AttemptID != ev.AttemptID {
		return
	}
	// The event of its update may be faster than the reply, or forged.
	open := s.rec.State == Intent || s.rec.State == Verify || s.rec.State == Swapped && !t.Confirmed
	text := clip(ev.Text)
	switch {
	case !s.rec.State.inFlight() || t.Reached:
		return
	case ev.Result == ReplyOK && !t.Confirmed:
		t.Confirmed = true
		s.swap(Replied, "took the update: "+text)
	case ev.Result == ReplyLost && s.rec.State == Intent:
		s.to(Verify)
		t.QuietUntil = s.env.Observed.Add(RestartSettles)
		s.note(Evidence{Kind: Replied, Version: t.Version, Text: "no reply: " + text})
		s.leave(RestartSettles)
	case ev.Result == ReplyLost:
		s.next = NextLeave
	case !open:
		return
	case ev.Result == ReplyBroken:
		s.note(Evidence{Kind: Replied, Version: t.Version, Text: text})
		s.hold(HeldBroken, OutcomeInconclusive, "could neither take the update nor restore its own binary: "+text)
	case ev.Result == ReplyRolledBack:
		s.note(Evidence{Kind: Replied, Version: t.Version, Text: text})
		s.do(Alert{Kind: AlertFailed, Text: fmt.Sprintf("the %s to %s failed on the node: %s", t.Direction, t.Version, text)})
		s.retryLater()
		s.notChanged()
	case ev.Result == ReplyNotDone:
		s.note(Evidence{Kind: Replied, Version: t.Version, Text: "was not sent: " + text})
		s.notChanged()
		s.next = NextDefer
	case ev.Result == ReplyRefused:
		s.note(Evidence{Kind: Replied, Version: t.Version, Text: text})
		s.do(Alert{Kind: AlertConfiguration, Text: fmt.Sprintf("the node refuses to be updated, which says nothing about %s: %s", t.Version, text)})
		s.notChanged()
	}
}

// swap is a node that took the update, or whose event says so.
func (s *step) swap(kind EvidenceKind, text string) {
	t := s.rec.Trial
	t.QuietUntil = s.env.Observed.Add(RestartSettles)
	t.Deadline = s.env.Observed.Add(s.env.Policy.ReleaseTimeout)
	s.to(Swapped)
	s.note(Evidence{Kind: kind, Version: t.Version, Text: text})
	s.leave(RestartSettles)
}

// retryLater spaces updates that fail on the node.
func (s *step) retryLater() {
	failures := 1
	if s.rec.Retry != nil {
		failures = s.rec.Retry.Failures + 1
	}
	wait := retryLongest
	// 2^6 minutes are more than the longest.
	if failures <= 6 {
		wait = min(retryFirst<<(failures-1), retryLongest)
	}
	s.rec.Retry = &Retry{Failures: failures, NotBefore: s.env.Observed.Add(wait)}
}

// notChanged is an update that the node did not take and said so: the version
// was not tried, so nothing about it is remembered.
func (s *step) notChanged() {
	t := s.rec.Trial
	if t.Convicted {
		t.Resent, t.Unanswered = false, 0
		s.to(Convicted)
		s.next = NextDefer
		return
	}
	s.rec.Recent = slices.DeleteFunc(s.rec.Recent, func(b Begun) bool { return b.Change == t.ID })
	s.rec.RolledBack = slices.DeleteFunc(s.rec.RolledBack, func(b RolledBack) bool { return b.Change == t.ID })
	s.rec.Trial = nil
	s.to(Idle)
	s.next = s.env.Policy.skip()
}

// upgraded is a hint: the node may have taken the update.
func (s *step) upgraded(ev Upgraded) {
	t := s.rec.Trial
	if s.rec.State != Intent && s.rec.State != Verify || !version.Same(ev.Version, t.Version) {
		return
	}
	s.swap(Observation, "an event says that it took the update")
}

// answered is a hint: the node may be there.
func (s *step) answered() {
	switch s.rec.State {
	case Verify, Swapped, Dark:
	default:
		return
	}
	t := s.rec.Trial
	// Anybody can send these, as often as they like.
	if t.Answered == 0 || s.env.Observed >= t.Answered.Add(30*time.Second) {
		s.heard()
	}
	s.leave(time.Duration(max(t.QuietUntil-s.env.Observed, 0)))
}

// configured is a node that goes into the fleet with its target version.
func (s *step) configured() {
	if s.rec.State != Arrived {
		return
	}
	t := s.rec.Trial
	t.QuietUntil = s.env.Observed.Add(RestartSettles)
	t.Deadline = t.QuietUntil.Add(max(s.env.Policy.Trial, time.Duration(t.MinHealthy)))
	t.Refusals, t.RefusedPass = 0, ""
	s.to(Trial)
	s.saw(t.Version, "configured, on trial with %s", t.Version)
}

// refused is a node that does not accept its configuration.
func (s *step) refused(ev Refused) {
	t := s.rec.Trial
	if s.rec.State != Arrived || ev.Excused || ev.Pass != "" && ev.Pass == t.RefusedPass {
		return
	}
	t.Refusals++
	t.RefusedPass = ev.Pass
	s.changed = true
	s.next = NextDefer
	s.saw(t.Version, "%s refused, %d of %d: %s", ev.Action, t.Refusals, refusalLimit, clip(ev.Text))
	if t.Refusals >= refusalLimit {
		s.convict(fmt.Sprintf("refused %s %d times with %s: %s", ev.Action, t.Refusals, t.Version, clip(ev.Text)))
	}
}

// seenInMain is a node that runs in the fleet.
func (s *step) seenInMain(ev SeenInMain) {
	switch {
	case ev.Version == "":
		return
	case s.rec.State == Idle:
		if good := s.rec.KnownGood; good != nil && good.Source != Proved && good.Source != Operator && version.Same(good.Version, ev.Version) {
			good.Source = Proved
			s.changed = true
			s.saw(ev.Version, "seen in the main account with %s", ev.Version)
		}

		return
	case !s.rec.State.UnderWay(), s.rec.State == Convicted:
		return
	case !version.Same(ev.Version, s.rec.Trial.Version):
		// A node that went dark and lives with another version, changed by
		// others; before that it is a twin's, or older than the update.
		if s.rec.State == Dark {
			s.abandon(fmt.Sprintf("seen in the main account with %s", clip(ev.Version)))
		}

		return
	}

	t := s.rec.Trial
	why := fmt.Sprintf("seen in the main account with %s", ev.Version)
	if t.MinHealthy == 0 {
		s.accept(Proved, OutcomeProved, why)
		return
	}
	if s.rec.State != Trial {
		// It was configured after all.
		t.Reached, t.QuietUntil = true, s.env.Observed
		t.Deadline = t.QuietUntil.Add(max(s.env.Policy.Trial, time.Duration(t.MinHealthy)))
		s.to(Trial)
	}
	if !t.SeenInMain {
		t.SeenInMain = true
		s.changed = true
		s.saw(ev.Version, "%s; has to stay healthy for %s", why, t.MinHealthy)
	}
	s.tick()
}

// tick is time that passed.
func (s *step) tick() {
	if !s.rec.State.UnderWay() {
		return
	}
	t, now := s.rec.Trial, s.env.Observed
	if s.rec.State == Trial && t.SeenInMain && now >= t.healthyAt() {
		s.accept(Proved, OutcomeProved, fmt.Sprintf("seen in the main account, and healthy for %s", t.MinHealthy))
		return
	}
	if now < t.Deadline {
		return
	}

	switch s.rec.State {
	case Intent, Verify, Swapped:
		s.overdue()
	case Arrived:
		s.abandon("was not configured within the bound")
	case Trial:
		if s.env.Policy.MainView {
			s.dark("configured, and not seen in the main account within the bound")
			return
		}
		s.accept(Presumed, OutcomePresumed, "the bound passed, and it did not come back")
	}
}

// healthyAt is when MinHealthy has passed since the node's restart.
func (c *Change) healthyAt() Observed {
	return c.QuietUntil + c.MinHealthy
}

// overdue is an update of which nothing was seen within its bound.
func (s *step) overdue() {
	t, now, bound := s.rec.Trial, s.env.Observed, s.env.Policy.ReleaseTimeout
	switch {
	case t.Answered == 0 || now >= t.Answered.Add(bound):
		s.dark("not seen within the bound")
	case now < t.Sent.Add(patience*bound):
		// It answers, so it is not dark; it has some more time. Nothing is due
		// before that is over.
		t.Deadline = min(t.Answered.Add(bound), t.Sent.Add(patience*bound))
		s.changed = true
	default:
		s.hold(HeldUnsettled, OutcomeInconclusive, fmt.Sprintf("was sent %s, answers, and does not settle", t.Version))
	}
}

func (s *step) dark(why string) {
	t := s.rec.Trial
	s.to(Dark)
	s.saw(t.Version, "%s: dark", why)
	s.do(Alert{Kind: AlertDark, Text: fmt.Sprintf("sent to %s, %s", t.Version, why)})
}

// found is a record that another leader left.
func (s *step) found() {
	s.takeOver()
	switch s.rec.State {
	case Verify, Swapped, Dark, Arrived, Convicted:
		s.leave(0)
	}
}

// takeOver settles what another leader was about to send: nobody knows whether
// it left.
func (s *step) takeOver() {
	t := s.rec.Trial
	if s.rec.State != Intent || t.Epoch == s.env.Epoch {
		return
	}
	t.Orphaned = true
	s.to(Verify)
	s.saw(t.Version, "found by a new leader, which cannot know whether %s was sent", t.Version)
}
