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
// a person orders ErrNothingHeld or ErrUnderWay.
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
	case !s.env.Policy.maySend():
		s.saw(ev.Version, "still runs %s; not sent again, upgrades are off", ev.Version)
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
	case s.rec.Retry != nil && s.env.Observed < s.rec.Retry.NotBefore, !s.env.Policy.maySend():
		s.next = NextDefer
	default:
		s.send("rollback tried again")
	}
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
	case !version.Valid(good.Version):
		return fmt.Sprintf("%q may not be sent", clip(good.Version))
	case s.rec.left(t.Version) != nil:
		return fmt.Sprintf("%s was left once before", t.Version)
	case s.rec.noWayBack(t.Version, good.Version) != "":
		return fmt.Sprintf("there is no way back from %s", s.rec.noWayBack(t.Version, good.Version))
	case s.rec.Pin != nil && !version.Same(s.rec.Pin.Version, good.Version):
		return fmt.Sprintf("the node is pinned to %s", s.rec.Pin.Version)
	case !s.env.Policy.maySend():
		return "upgrades are off, or there is no repository"
	default:
		return quarantined(s.env, good.Version)
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
			s.abandon(fmt.Sprintf("seen in the main account with %s", ev.Version))
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
		// It answers, so it is not dark; it has some more time.
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
