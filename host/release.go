package host

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/choria-provisioner/provisioner/helper/helperv1"
	"github.com/choria-provisioner/provisioner/metrics"
	"github.com/choria-provisioner/provisioner/version/ledger"
)

// Ledger remembers what nodes run and rules over changes of their versions.
type Ledger interface {
	// Apply applies an event to a node's record and stores what it comes to.
	// Alerts and verdicts among the effects are seen to; to send and to look
	// again is the caller's.
	Apply(ctx context.Context, identity string, ev ledger.Event) (ledger.Result, error)
	// State is that of a node's record, from memory.
	State(identity string) ledger.State
	// Candidates are the statistics of all versions of which anything is known.
	Candidates() []ledger.Candidate
}

const (
	// recordLimit bounds a write that has to be made although the pass has ended.
	recordLimit = 5 * time.Second
	// maxVersion is the longest version, in bytes, that is remembered of a node. A
	// record holds what a node shows many times over, and any waiting node could
	// fill the disk; what can be sent has 128 bytes at most.
	maxVersion = 256
)

// awaitUpdateLock asks a node that may be updating itself a question that it
// answers behind its update lock, whatever the answer is.
func (h *Host) awaitUpdateLock(ctx context.Context, n *node) error {
	switch h.cfg.Ledger.State(h.identity) {
	case ledger.Intent, ledger.Verify, ledger.Swapped, ledger.Dark:
	default:
		return nil
	}

	err := h.call(ctx, Request{Action: ActionJWT}, accepted)
	if replied := (*ReplyError)(nil); err != nil && !errors.As(err, &replied) {
		return err
	}
	n.lockFree = true

	return nil
}

// settle tells the ledger what the node shows. done is true when the pass ends
// with what that comes to.
func (h *Host) settle(ctx context.Context, n *node) (outcome Outcome, done bool, err error) {
	if len(n.version) > maxVersion {
		return Outcome{}, false, fmt.Errorf("%s: the node's version has %d bytes, more than the %d that are remembered", ActionInventory, len(n.version), maxVersion)
	}
	res, err := h.cfg.Ledger.Apply(ctx, h.identity, ledger.Inventory{Version: n.version, LockFree: n.lockFree})
	if err != nil {
		return Outcome{}, false, err
	}

	return h.follow(ctx, n, res)
}

// grantWish decides about the version that an exec helper named.
func (h *Host) grantWish(ctx context.Context, n *node, c *helperv1.Configure) (outcome Outcome, done bool, err error) {
	if h.cfg.Helper.Has(helperv1.Capability_CAPABILITY_DECIDE_RELEASE) {
		h.log.Warnf("The helper names version %q with a configuration; it decides about versions before, and that holds", c.Version)
		return Outcome{}, false, nil
	}
	d := ledger.Wish(n.version, c.Version)
	d.Reason = c.Reason

	return h.decide(ctx, n, d)
}

// decide has the guards judge what the helper wants, and does it.
func (h *Host) decide(ctx context.Context, n *node, d ledger.Decision) (outcome Outcome, done bool, err error) {
	if d.Direction == "" {
		h.cfg.Metrics.Decided("keep", metrics.Allowed)
		return Outcome{}, false, nil
	}
	d.AttemptID, d.Current, d.Upgradable = h.requestID, n.version, n.upgradable

	res, err := h.cfg.Ledger.Apply(ctx, h.identity, d)
	if err != nil {
		return Outcome{}, false, err
	}
	ruling, guard := res.Ruling, string(res.Ruling.Guard)
	if ruling.Allowed {
		guard = metrics.Allowed
	}
	h.cfg.Metrics.Decided(string(d.Direction), guard)
	switch {
	case ruling.Allowed:
		h.log.Warnf("The %s from %s to %s begins: %s", d.Direction, n.version, ruling.Target, d.Reason)
	case ruling.Guard != ledger.GuardSameVersion:
		h.log.Warnf("The %s to %q is stopped by the guard %s: %s", d.Direction, ruling.Target, ruling.Guard, ruling.Sentence)
	}
	outcome, done, err = h.follow(ctx, n, res)
	if outcome.Result == Refused && ruling.Guard != "" {
		outcome.Reason = fmt.Sprintf("%s to %q: %s (%s)", d.Direction, ruling.Target, ruling.Sentence, ruling.Guard)
	}

	return outcome, done, err
}

// follow does what an event came to. done is true when the pass ends with it.
func (h *Host) follow(ctx context.Context, n *node, res ledger.Result) (outcome Outcome, done bool, err error) {
	result := Updating
	if res.Next == ledger.NextSend {
		result = UpgradeSent
		if res, err = h.sendUpdate(ctx, res); err != nil {
			return Outcome{}, true, err
		}
	}
	n.record = res.Record

	switch res.Next {
	case ledger.NextLeave:
		outcome = Outcome{Result: result, Reason: underWay(res.Record), RetryAfter: lookAfter(res)}
	case ledger.NextDefer:
		outcome = Outcome{Result: Refused, Reason: standsInTheWay(res.Record)}
	default:
		return Outcome{}, false, nil
	}

	return outcome, true, nil
}

// sendUpdate sends the version of a stored intent and tells the ledger how that
// ended. The error is one that says nothing of the node's version: whatever
// happened is in the ledger.
func (h *Host) sendUpdate(ctx context.Context, intent ledger.Result) (ledger.Result, error) {
	var send ledger.Send
	for _, e := range intent.Effects {
		if s, ok := e.(ledger.Send); ok {
			send = s
		}
	}

	reply := ledger.Reply{AttemptID: send.AttemptID}
	err := h.call(ctx, Request{Action: ActionUpdate, Repository: h.cfg.UpgradesRepository, Version: send.Version}, func(r Reply) error {
		reply.Result, reply.Text = ledger.ReplyOK, r.Message
		return nil
	})
	if reply.Result == "" {
		reply.Result, reply.Text = updateResult(err), err.Error()
		h.log.Warnf("The update to %s: %v", send.Version, err)
	}

	res, recordErr := h.record(ctx, reply)
	switch {
	case recordErr != nil:
		return res, errors.Join(err, recordErr)
	case reply.Result == ledger.ReplyOK, ctx.Err() == nil && saysOfVersion(err):
		return res, nil
	default:
		return res, err
	}
}

// saysOfVersion tells an end of release_update whose consequence is the ledger's
// from one that ends the pass.
func saysOfVersion(err error) bool {
	for _, other := range []error{ErrLocked, ErrPaused, ErrTwins, ErrDisconnected} {
		if errors.Is(err, other) {
			return false
		}
	}

	return true
}

// updateResult reads what became of a release_update that gave err.
func updateResult(err error) ledger.ReplyResult {
	var (
		replied *ReplyError
		before  notSent
	)
	switch {
	case errors.Is(err, ErrLocked), errors.Is(err, ErrPaused), errors.As(err, &before):
		return ledger.ReplyNotDone
	case !errors.As(err, &replied):
		return ledger.ReplyLost
	// The words of the agent (go-choria, provision agent, releaseUpdateAction).
	case strings.Contains(replied.Message, "failed, rollback also failed"):
		return ledger.ReplyBroken
	case strings.Contains(replied.Message, "failed, release rolled back"):
		return ledger.ReplyRolledBack
	default:
		return ledger.ReplyRefused
	}
}

// configured tells the ledger that the node took its configuration and restarts.
func (h *Host) configured(ctx context.Context, n *node) error {
	if n.record.State != ledger.Arrived {
		return nil
	}
	_, err := h.record(ctx, ledger.Configured{})

	return err
}

// notConfigured tells the ledger about a node that did not. Only the node's own
// refusal speaks against its version; the second one sends it back.
func (h *Host) notConfigured(ctx context.Context, n *node, action string, err error) (Outcome, error) {
	replied := (*ReplyError)(nil)
	if n.record.State != ledger.Arrived || !errors.As(err, &replied) {
		return Outcome{}, err
	}
	res, recordErr := h.record(ctx, ledger.Refused{Action: action, Text: err.Error(), Pass: h.requestID})
	if recordErr != nil {
		return Outcome{}, errors.Join(err, recordErr)
	}
	if res.Next != ledger.NextSend {
		return Outcome{}, err
	}
	h.log.Errorf("The node is sent back to the version known as good: %v", err)
	outcome, _, err := h.follow(ctx, n, res)

	return outcome, err
}

// record applies an event that happened, also when the pass was ended.
func (h *Host) record(ctx context.Context, ev ledger.Event) (ledger.Result, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordLimit)
	defer cancel()

	return h.cfg.Ledger.Apply(ctx, h.identity, ev)
}

// lookAfter is how long a node is left alone before the next look at it.
func lookAfter(res ledger.Result) time.Duration {
	for _, e := range res.Effects {
		if look, ok := e.(ledger.Look); ok {
			return max(0, look.After)
		}
	}

	return 0
}

func underWay(rec ledger.Record) string {
	if rec.Trial == nil {
		return ""
	}

	return fmt.Sprintf("%s from %s to %s: %s", rec.Trial.Direction, rec.Trial.From, rec.Trial.Version, rec.State)
}

// standsInTheWay says why a node is not provisioned.
func standsInTheWay(rec ledger.Record) string {
	switch {
	case rec.Hold != nil:
		return fmt.Sprintf("held (%s): %s", rec.Hold.Reason, rec.Hold.Why)
	case len(rec.Evidence) > 0:
		return rec.Evidence[len(rec.Evidence)-1].Text
	default:
		return string(rec.State)
	}
}

// ReleaseRecord is a record as a helper sees it.
func ReleaseRecord(rec ledger.Record) *helperv1.Record {
	r := &helperv1.Record{Barred: rec.Barred()}
	if rec.KnownGood != nil {
		r.KnownGood = rec.KnownGood.Version
	}
	if rec.Trial != nil {
		r.Trial = rec.Trial.Version
	}
	if rec.Pin != nil {
		r.Pin = rec.Pin.Version
	}

	return r
}

// Candidates are versions' statistics as a helper sees them.
func Candidates(all []ledger.Candidate) []*helperv1.Candidate {
	var out []*helperv1.Candidate
	for _, c := range all {
		out = append(out, &helperv1.Candidate{
			Version: c.Version, Proved: uint32(c.Proved), Presumed: uint32(c.Presumed), OnTrial: uint32(c.OnTrial),
			RolledBack: uint32(c.RolledBack), Dark: uint32(c.Dark), Quarantined: c.Quarantined,
		})
	}

	return out
}

// ReleaseDecision reads a helper's answer that keeps or changes a version; its
// Direction is empty for keep. The caller adds what the node showed. Defer and
// shutdown are no such answers.
func ReleaseDecision(answer *helperv1.DecideReleaseResponse) (ledger.Decision, error) {
	switch d := answer.GetDecision().(type) {
	case *helperv1.DecideReleaseResponse_Keep:
		return ledger.Decision{Reason: d.Keep.GetReason()}, nil
	case *helperv1.DecideReleaseResponse_Upgrade:
		if m := d.Upgrade.GetMinHealthy(); m != nil && (m.CheckValid() != nil || m.AsDuration() < 0) {
			return ledger.Decision{}, fmt.Errorf("the helper's decision is refused: upgrade: min_healthy is %v, not a length of time", m)
		}
		if d.Upgrade.GetVersion() == "" {
			return ledger.Decision{}, errors.New("the helper's decision is refused: upgrade: it names no version")
		}
		return ledger.Decision{
			Direction: ledger.Upgrade, Version: d.Upgrade.GetVersion(), Reason: d.Upgrade.GetReason(),
			NotReversible: d.Upgrade.GetNotReversible(), MinHealthy: d.Upgrade.GetMinHealthy().AsDuration(),
		}, nil
	case *helperv1.DecideReleaseResponse_Rollback:
		return ledger.Decision{
			Direction: ledger.Rollback, Version: d.Rollback.GetVersion(), Reason: d.Rollback.GetReason(), Bar: d.Rollback.GetBar(),
		}, nil
	default:
		return ledger.Decision{}, fmt.Errorf("the helper answered with a decision this version does not know: %T", d)
	}
}
