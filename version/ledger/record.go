// Package ledger is the memory of what every node ran, and the rules that go
// with it: a version is on trial until it proves itself, a bad one is left once
// and never tried again. The rules are pure functions; see Step.
package ledger

import (
	"fmt"
	"slices"
	"time"

	"github.com/choria-provisioner/provisioner/version"
)

// Format is the version of a record's JSON, which is also the export format.
// Fields are added without a new one; a reader refuses formats it does not know.
const Format = 1

// State is where a node stands.
type State string

// The states of a record. A record of nothing is Unknown.
const (
	// Unknown is a node without a record.
	Unknown State = "unknown"
	// Idle is a node with nothing under way.
	Idle State = "idle"
	// Intent is a node to which an update is being sent, or was when the daemon
	// died.
	Intent State = "intent"
	// Verify is a node that may or may not have got an update.
	Verify State = "verify"
	// Swapped is a node that took an update and restarts.
	Swapped State = "swapped"
	// Dark is a node that was sent an update and not seen since.
	Dark State = "dark"
	// Arrived is a node that came back with the target version and is about to
	// be configured.
	Arrived State = "arrived"
	// Trial is a node that was configured at its target version and has not
	// proved it.
	Trial State = "trial"
	// Convicted is a node that has to leave its version, while the update back
	// could not be done yet.
	Convicted State = "convicted"
	// Held is a node that waits for a person.
	Held State = "held"
)

// States are all states.
func States() []State {
	return []State{Unknown, Idle, Intent, Verify, Swapped, Dark, Arrived, Trial, Convicted, Held}
}

// Source tells why a version is known as good.
type Source string

const (
	// FirstSeen is a version the node ran when it was first met.
	FirstSeen Source = "first-seen"
	// Proved is a version that was seen in the main account.
	Proved Source = "proved"
	// Presumed is a version whose trial passed unseen.
	Presumed Source = "presumed"
	// Operator is a version a person named.
	Operator Source = "operator"
)

// Outcome is the verdict on a change.
type Outcome string

// The verdicts. Proved and presumed carry the names of their sources.
const (
	OutcomeProved       Outcome = "proved"
	OutcomePresumed     Outcome = "presumed"
	OutcomeRolledBack   Outcome = "rolled-back"
	OutcomeHalted       Outcome = "halted"
	OutcomeInconclusive Outcome = "inconclusive"
)

// Outcomes are all verdicts.
func Outcomes() []Outcome {
	return []Outcome{OutcomeProved, OutcomePresumed, OutcomeRolledBack, OutcomeHalted, OutcomeInconclusive}
}

// Record is what is remembered of one node.
type Record struct {
	Format   int    `json:"format"`
	Identity string `json:"identity"`
	// Revision is the store's, 0 for a record that is in none.
	Revision uint64 `json:"-"`
	State    State  `json:"state"`
	// Since is when State was entered.
	Since time.Time `json:"since"`
	// Epoch is that of the leader that wrote the record last.
	Epoch uint64 `json:"epoch"`
	// Seen is the version the node showed last.
	Seen Seen `json:"seen"`
	// KnownGood is nil when no version is.
	KnownGood *KnownGood `json:"known_good,omitempty"`
	// Trial is the change under way, nil in Unknown, Idle and Held.
	Trial *Change `json:"trial,omitempty"`
	// RolledBack holds one entry for each version that was left.
	RolledBack []RolledBack `json:"rolled_back,omitempty"`
	// NotReversible are versions from which there is no way back.
	NotReversible []string `json:"not_reversible,omitempty"`
	Pin           *Pin     `json:"pin,omitempty"`
	// Hold is set in Held.
	Hold *Hold `json:"hold,omitempty"`
	// Recent are the changes begun within the last bound, oldest first.
	Recent []Begun `json:"recent,omitempty"`
	// Retry paces updates that failed on the node.
	Retry *Retry `json:"retry,omitempty"`
	// Evidence is the chain of what led here, oldest first, at most
	// EvidenceLimit entries.
	Evidence []Evidence `json:"evidence,omitempty"`
}

// Seen is what a node showed.
type Seen struct {
	Version string    `json:"version,omitempty"`
	At      time.Time `json:"at,omitzero"`
}

// KnownGood is the version a node goes back to.
type KnownGood struct {
	Version string `json:"version"`
	Source  Source `json:"source"`
}

// Direction is the way a change goes.
type Direction string

const (
	Upgrade  Direction = "upgrade"
	Rollback Direction = "rollback"
)

// Change is a change of version from its intent to its verdict.
type Change struct {
	Direction Direction `json:"direction"`
	// Version is the target.
	Version string `json:"version"`
	// From is what the node ran before.
	From string `json:"from"`
	Why  string `json:"why,omitempty"`
	// ID names the change. AttemptID names the release_update of it that was
	// sent last; replies to an earlier one are ignored.
	ID        string `json:"id"`
	AttemptID string `json:"attempt_id"`
	// Sends is how often release_update was sent, or was about to be.
	Sends int `json:"sends"`
	// Unanswered is how many of them the node did not answer with a refusal.
	Unanswered int `json:"unanswered,omitempty"`
	// Epoch is that of the leader that sent it last.
	Epoch uint64 `json:"epoch"`
	// SentAt is for people; nothing is computed from it.
	SentAt time.Time `json:"sent_at"`
	// Sent is SentAt in observed time.
	Sent Observed `json:"sent"`
	// Deadline is when the bound of the present state passes.
	Deadline Observed `json:"deadline"`
	// QuietUntil is when the node's restart is over; until then an old version
	// says nothing.
	QuietUntil Observed `json:"quiet_until,omitempty"`
	// Answered is when the node was last heard, 0 for not since it was sent.
	Answered Observed `json:"answered,omitempty"`
	// MinHealthy is how long after its restart the node has to be healthy
	// before it proves itself; 0 is until it is seen.
	MinHealthy Observed `json:"min_healthy,omitempty"`
	// Reversible is false for a version from which there is no way back.
	Reversible bool `json:"reversible"`
	// Convicted is a rollback from a version that it bars: it is owed, and tried
	// again until it is done.
	Convicted bool `json:"convicted,omitempty"`
	// Confirmed is set once the node said that it took the update.
	Confirmed bool `json:"confirmed,omitempty"`
	// Reached is set once the node showed the target.
	Reached bool `json:"reached,omitempty"`
	// FreeAt is when the old version was seen with the update lock free.
	FreeAt Observed `json:"free_at,omitempty"`
	// Resent is set with the one resend after a lost reply.
	Resent bool `json:"resent,omitempty"`
	// Orphaned is set while the last send may never have left a leader that
	// died. It does not use up the one resend.
	Orphaned bool `json:"orphaned,omitempty"`
	// Refusals counts passes in which the node refused to be configured.
	Refusals int `json:"refusals,omitempty"`
	// RefusedPass is the last of them.
	RefusedPass string `json:"refused_pass,omitempty"`
	// Returns counts how often the node came back during its trial.
	Returns int `json:"returns,omitempty"`
	// SeenInMain is set when it was seen in the main account before MinHealthy
	// had passed.
	SeenInMain bool `json:"seen_in_main,omitempty"`
}

// RolledBack is a version that was left, or should have been.
type RolledBack struct {
	From string `json:"from"`
	// To is empty when there was nothing to go back to.
	To      string    `json:"to"`
	At      time.Time `json:"at"`
	Outcome Outcome   `json:"outcome"`
	Why     string    `json:"why"`
	// Barred tells that From is never tried again. It is false for a rollback
	// that a helper asked for without saying so.
	Barred bool `json:"barred"`
	// Change is the ID of the one that left From.
	Change string `json:"change,omitempty"`
}

// Pin is a version a person chose.
type Pin struct {
	Version string    `json:"version"`
	At      time.Time `json:"at"`
	Why     string    `json:"why,omitempty"`
}

// Hold is why a node waits for a person.
type Hold struct {
	Reason HoldReason `json:"reason"`
	// Why is a sentence.
	Why string `json:"why"`
	// From and Version are those of the change that ended so.
	From    string    `json:"from,omitempty"`
	Version string    `json:"version,omitempty"`
	At      time.Time `json:"at"`
}

// HoldReason is a kind of hold.
type HoldReason string

const (
	// HeldBroken is a node that could not restore its own binary.
	HeldBroken HoldReason = "broken"
	// HeldExecFailed is a node that took an update and still runs the old one.
	HeldExecFailed HoldReason = "exec-failed"
	// HeldUnsettled is a node that took no update, resent or over a long time.
	HeldUnsettled HoldReason = "unsettled"
	// HeldThirdVersion is a node that showed neither the old nor the new one.
	HeldThirdVersion HoldReason = "third-version"
	// HeldThirdChange is a node for which too many changes were asked.
	HeldThirdChange HoldReason = "third-change"
	// HeldConvicted is a node with a bad version and no way back.
	HeldConvicted HoldReason = "convicted"
)

// HoldReasons are all reasons.
func HoldReasons() []HoldReason {
	return []HoldReason{HeldBroken, HeldExecFailed, HeldUnsettled, HeldThirdVersion, HeldThirdChange, HeldConvicted}
}

// Blocks tells whether the node must not be provisioned either, whatever
// upgrades_optional says: what lies on its disk may not start, so that a restart
// would lose it, or it was convicted of being no good in the fleet.
func (h *Hold) Blocks() bool {
	if h == nil {
		return false
	}
	switch h.Reason {
	case HeldBroken, HeldExecFailed, HeldConvicted:
		return true
	default:
		return false
	}
}

// Begun is a change in observed time.
type Begun struct {
	Change  string   `json:"change"`
	Version string   `json:"version"`
	At      Observed `json:"at"`
}

// Retry is the pace of updates that failed on the node.
type Retry struct {
	Failures int `json:"failures"`
	// NotBefore is the earliest time of the next.
	NotBefore Observed `json:"not_before"`
}

// New is the record of a node that was never met.
func New(identity string) Record {
	return Record{Format: Format, Identity: identity, State: Unknown}
}

// Check tells what makes a record unusable; it wraps ErrCorrupt.
func (r *Record) Check() error {
	switch {
	case r.Format != Format:
		return fmt.Errorf("%w: format %d, this build reads %d", ErrCorrupt, r.Format, Format)
	case r.Identity == "":
		return fmt.Errorf("%w: no identity", ErrCorrupt)
	case !slices.Contains(States(), r.State):
		return fmt.Errorf("%w: state %q", ErrCorrupt, r.State)
	case r.State.UnderWay() != (r.Trial != nil):
		return fmt.Errorf("%w: state %s and trial do not fit", ErrCorrupt, r.State)
	case (r.State == Held) != (r.Hold != nil):
		return fmt.Errorf("%w: state %s and hold do not fit", ErrCorrupt, r.State)
	}

	return nil
}

// UnderWay tells whether a change has begun and has no verdict yet.
func (s State) UnderWay() bool {
	switch s {
	case Intent, Verify, Swapped, Dark, Arrived, Trial, Convicted:
		return true
	default:
		return false
	}
}

// inFlight tells whether the node may be updating itself or restarting, so that
// nothing but a look at it is allowed.
func (s State) inFlight() bool {
	switch s {
	case Intent, Verify, Swapped, Dark:
		return true
	default:
		return false
	}
}

// standstill is what becomes of a node that must not be provisioned in its
// state, and NextContinue for one that may be.
func (r *Record) standstill() Next {
	switch {
	case r.State.inFlight():
		return NextLeave
	case r.State == Convicted, r.Hold.Blocks():
		return NextDefer
	default:
		return NextContinue
	}
}

// Barred are the versions that are never tried again on this node.
func (r *Record) Barred() []string {
	var barred []string
	for _, b := range r.RolledBack {
		if b.Barred {
			barred = append(barred, b.From)
		}
	}

	return barred
}

// IsBarred tells whether v is never tried again on this node.
func (r *Record) IsBarred(v string) bool {
	b := r.left(v)

	return b != nil && b.Barred
}

// left is the entry for v, nil when it was never left.
func (r *Record) left(v string) *RolledBack {
	for i := range r.RolledBack {
		if version.Same(r.RolledBack[i].From, v) {
			return &r.RolledBack[i]
		}
	}

	return nil
}

// noWayBack is the version that forbids a rollback from one to another, empty
// for none: one that may not be left, or would be passed on the way.
func (r *Record) noWayBack(from, to string) string {
	for _, n := range r.NotReversible {
		if version.Same(n, from) || version.Older(to, n) && version.Older(n, from) {
			return n
		}
	}

	return ""
}

// clone is a copy that shares nothing that Step changes.
func (r *Record) clone() Record {
	c := *r
	c.KnownGood = clonePtr(r.KnownGood)
	c.Trial = clonePtr(r.Trial)
	c.Pin = clonePtr(r.Pin)
	c.Hold = clonePtr(r.Hold)
	c.Retry = clonePtr(r.Retry)
	c.RolledBack = slices.Clone(r.RolledBack)
	c.NotReversible = slices.Clone(r.NotReversible)
	c.Recent = slices.Clone(r.Recent)
	c.Evidence = slices.Clone(r.Evidence)

	return c
}

func clonePtr[T any](p *T) *T {
	if p == nil {
		return nil
	}
	c := *p

	return &c
}
