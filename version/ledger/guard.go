package ledger

import (
	"fmt"

	"github.com/choria-provisioner/provisioner/version"
)

// Guard is the name of a rule that stops a change, whatever the helper says.
type Guard string

// The guards, in the order in which they are asked; the first that stops a
// change names why.
const (
	// GuardStaleEpoch stops a leader that was deposed.
	GuardStaleEpoch Guard = "stale-epoch"
	// GuardFeatureOff stops everything while features.upgrades is off.
	GuardFeatureOff Guard = "feature-off"
	// GuardNoKnownGood stops a rollback to a version nobody knows.
	GuardNoKnownGood Guard = "no-known-good"
	// GuardInvalidVersion keeps from a node what may not stand in a URL.
	GuardInvalidVersion Guard = "invalid-version"
	// GuardNoVersion stops a change from an unknown version.
	GuardNoVersion Guard = "no-version"
	// GuardSameVersion sends nothing to a node that is where it should be.
	GuardSameVersion Guard = "same-version"
	// GuardAmbiguous stops 1.2 on a node that says 1.2.0.
	GuardAmbiguous Guard = "ambiguous"
	// GuardHeld stops changes on a node that waits for a person.
	GuardHeld Guard = "held"
	// GuardTrialRunning stops a second change before the first has a verdict.
	GuardTrialRunning Guard = "trial-running"
	// GuardNotUpgradable stops a change on a node that cannot update itself.
	GuardNotUpgradable Guard = "not-upgradable"
	// GuardNoRepository stops a change when there is nowhere to get it from.
	GuardNoRepository Guard = "no-repository"
	// GuardOlderThanCurrent stops an upgrade that goes back.
	GuardOlderThanCurrent Guard = "older-than-current"
	// GuardNewerThanCurrent stops a rollback that goes forward.
	GuardNewerThanCurrent Guard = "newer-than-current"
	// GuardBarred stops a version this node left.
	GuardBarred Guard = "barred"
	// GuardQuarantined stops a version that too many nodes left.
	GuardQuarantined Guard = "quarantined"
	// GuardPinned stops a change away from the version a person chose.
	GuardPinned Guard = "pinned"
	// GuardNotReversible stops a rollback where there is no way back.
	GuardNotReversible Guard = "not-reversible"
	// GuardSecondRollback stops leaving the same version a second time.
	GuardSecondRollback Guard = "second-rollback"
	// GuardBackoff waits after an update that failed on the node.
	GuardBackoff Guard = "backoff"
	// GuardThirdChange holds a node for which a third change is asked within the
	// bound.
	GuardThirdChange Guard = "third-change"
	// GuardMaxInTrial is the budget of nodes on trial.
	GuardMaxInTrial Guard = "max-in-trial"
	// GuardMaxDark is the budget of dark nodes at the target version.
	GuardMaxDark Guard = "max-dark"
)

// Ruling is what the guards say to a decision.
type Ruling struct {
	// Allowed is true for a decision that keeps, too.
	Allowed bool
	// Guard stopped the change; empty when Allowed.
	Guard Guard
	// Sentence says why, for people.
	Sentence string
	// Target is the version meant, also where the decision named none.
	Target string
	// Next is what becomes of the node.
	Next Next
}

// Skipped tells whether the node goes on without the change that was asked for.
func (r Ruling) Skipped() bool {
	return r.Guard != "" && r.Next == NextContinue && r.Guard != GuardSameVersion && r.Guard != GuardFeatureOff
}

// Judge asks the guards about a decision and changes nothing.
func Judge(rec Record, d Decision, env Env) Ruling {
	q := question{rec: &rec, decision: &d, env: &env, target: d.Version}
	if d.Direction == Rollback && d.Version == "" && rec.KnownGood != nil {
		q.target = rec.KnownGood.Version
	}
	if d.Direction == "" {
		return Ruling{Allowed: true, Sentence: "nothing is asked", Next: rec.standstill()}
	}
	for _, g := range guards() {
		if sentence := g.stops(&q); sentence != "" {
			return Ruling{Guard: g.name, Sentence: sentence, Target: q.target, Next: q.stopped(g.name)}
		}
	}

	return Ruling{
		Allowed:  true,
		Sentence: fmt.Sprintf("%s from %s to %s", d.Direction, d.Current, q.target),
		Target:   q.target,
		Next:     NextSend,
	}
}

// Guards are the names of all guards, in order.
func Guards() []Guard {
	var names []Guard
	for _, g := range guards() {
		names = append(names, g.name)
	}

	return names
}

// Wish is an exec helper's wish for a version: an upgrade when it is newer than
// the node's, a rollback when it is older. The caller adds the rest.
func Wish(current, target string) Decision {
	direction := Upgrade
	if version.Older(target, current) {
		direction = Rollback
	}

	return Decision{Direction: direction, Version: target, Current: current}
}

// question is a change that the guards are asked about.
type question struct {
	rec      *Record
	decision *Decision
	env      *Env
	target   string
}

// stopped is what becomes of a node whose change a guard stopped.
func (q *question) stopped(by Guard) Next {
	still := q.rec.standstill()
	switch {
	case by == GuardStaleEpoch:
		return NextLeave
	case still != NextContinue:
		return still
	case by == GuardFeatureOff, by == GuardSameVersion:
		// Nothing is left undone.
		return NextContinue
	default:
		return q.env.Policy.skip()
	}
}

type guard struct {
	name Guard
	// stops says in a sentence why the change is stopped, or nothing.
	stops func(q *question) string
}

// guards are all guards. What makes the question meaningless comes first, then
// what this node's record says, then the fleet's budgets.
func guards() []guard {
	return []guard{
		{GuardStaleEpoch, func(q *question) string {
			if q.rec.Epoch > q.env.Epoch {
				return fmt.Sprintf("epoch %d has written this record, ours is %d", q.rec.Epoch, q.env.Epoch)
			}

			return ""
		}},
		{GuardFeatureOff, func(q *question) string {
			if !q.env.Policy.Upgrades {
				return "features.upgrades is off"
			}

			return ""
		}},
		{GuardNoKnownGood, func(q *question) string {
			if q.decision.Direction == Rollback && q.target == "" {
				return "no version of this node is known as good, and the rollback names none"
			}

			return ""
		}},
		{GuardInvalidVersion, func(q *question) string {
			if !version.Valid(q.target) {
				return fmt.Sprintf("%q is not a version: letters, digits and ._+~^:- are, at most 128", clip(q.target))
			}

			return ""
		}},
		{GuardNoVersion, func(q *question) string {
			if q.decision.Current == "" {
				return "the node's inventory shows no version"
			}

			return ""
		}},
		{GuardSameVersion, func(q *question) string {
			if version.Same(q.target, q.decision.Current) {
				return fmt.Sprintf("the node runs %s", q.decision.Current)
			}

			return ""
		}},
		{GuardAmbiguous, func(q *question) string {
			if version.Ambiguous(q.target, q.decision.Current) {
				return fmt.Sprintf("%s and the node's %s may be one version; name it as the node does", q.target, q.decision.Current)
			}

			return ""
		}},
		{GuardHeld, func(q *question) string {
			if q.rec.State == Held {
				return fmt.Sprintf("the node waits for a person: %s", q.rec.Hold.Why)
			}

			return ""
		}},
		{GuardTrialRunning, trialRunning},
		{GuardNotUpgradable, func(q *question) string {
			if !q.decision.Upgradable {
				return "the node says that it cannot update itself"
			}

			return ""
		}},
		{GuardNoRepository, func(q *question) string {
			if !q.env.Policy.Repository {
				return "upgrades_repository is not set"
			}

			return ""
		}},
		{GuardOlderThanCurrent, func(q *question) string {
			if q.decision.Direction == Upgrade && version.Older(q.target, q.decision.Current) {
				return fmt.Sprintf("%s is older than the node's %s: that is a rollback, not an upgrade", q.target, q.decision.Current)
			}

			return ""
		}},
		{GuardNewerThanCurrent, func(q *question) string {
			if q.decision.Direction == Rollback && version.Older(q.decision.Current, q.target) {
				return fmt.Sprintf("%s is newer than the node's %s: that is an upgrade, not a rollback", q.target, q.decision.Current)
			}

			return ""
		}},
		{GuardBarred, func(q *question) string {
			if b := q.rec.left(q.target); b != nil && b.Barred {
				return fmt.Sprintf("this node left %s for good: %s", q.target, b.Why)
			}

			return ""
		}},
		{GuardQuarantined, func(q *question) string { return quarantined(q.env, q.target) }},
		{GuardPinned, func(q *question) string {
			if q.rec.Pin != nil && !version.Same(q.rec.Pin.Version, q.target) {
				return fmt.Sprintf("the node is pinned to %s", q.rec.Pin.Version)
			}

			return ""
		}},
		{GuardNotReversible, func(q *question) string {
			if q.decision.Direction != Rollback {
				return ""
			}
			if n := q.rec.noWayBack(q.decision.Current, q.target); n != "" {
				return fmt.Sprintf("there is no way back from %s", n)
			}

			return ""
		}},
		{GuardSecondRollback, func(q *question) string {
			if q.decision.Direction == Rollback && q.rec.left(q.decision.Current) != nil {
				return fmt.Sprintf("this node was rolled back from %s before", q.decision.Current)
			}

			return ""
		}},
		{GuardBackoff, func(q *question) string {
			if q.rec.Retry != nil && q.env.Observed < q.rec.Retry.NotBefore {
				return fmt.Sprintf("the last update failed on the node; the next is tried in %s", q.rec.Retry.NotBefore-q.env.Observed)
			}

			return ""
		}},
		{GuardThirdChange, func(q *question) string {
			if n := len(recent(q.rec, q.env)); n >= changeLimit {
				return fmt.Sprintf("%d changes of this node began within %s", n, q.env.Policy.Trial)
			}

			return ""
		}},
		{GuardMaxInTrial, func(q *question) string {
			// A node that leaves its own trial takes no place from another.
			if q.rec.State.UnderWay() {
				return ""
			}
			if n, limit := q.env.onTrial(), q.env.Policy.MaxInTrial; limit > 0 && n >= limit {
				return fmt.Sprintf("%d nodes are on trial, max_in_trial is %d", n, limit)
			}

			return ""
		}},
		{GuardMaxDark, func(q *question) string {
			if n, limit := q.env.candidate(q.target).Dark, q.env.Policy.MaxDark; limit > 0 && n >= limit {
				return fmt.Sprintf("%d nodes went dark at %s, max_dark is %d", n, q.target, limit)
			}

			return ""
		}},
	}
}

// trialRunning lets a helper take back a change whose target the node has
// reached; anything else waits for the verdict.
func trialRunning(q *question) string {
	if !q.rec.State.UnderWay() {
		return ""
	}
	t := q.rec.Trial
	if q.rec.State == Arrived && q.decision.Direction == Rollback && version.Same(q.decision.Current, t.Version) {
		return ""
	}

	return fmt.Sprintf("the %s to %s has no verdict yet (%s)", t.Direction, t.Version, q.rec.State)
}

// quarantined is the sentence for a version that no node is sent to, or empty.
func quarantined(env *Env, v string) string {
	c := env.candidate(v)
	if !c.Quarantined {
		return ""
	}

	return fmt.Sprintf("%s is quarantined: %d nodes left it, %d went dark", v, c.RolledBack, c.Dark)
}

// recent are the changes that began within the bound.
func recent(rec *Record, env *Env) []Begun {
	var within []Begun
	for _, b := range rec.Recent {
		if env.Observed < b.At.Add(env.Policy.Trial) {
			within = append(within, b)
		}
	}

	return within
}

// clip keeps what a helper sent from filling a log.
func clip(s string) string {
	if len(s) > 200 {
		return s[:200] + "…"
	}

	return s
}
