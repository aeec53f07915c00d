package host

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/choria-io/go-choria/backoff"

	"github.com/choria-provisioner/provisioner/version/ledger"
)

// lockedMessage is what a node answers while it is locked for another
// provisioner (go-choria, provision agent, LockedError).
const lockedMessage = "Could not obtain provisioning lock"

// yieldAfter is how long a call may take before the node's worker serves others.
// A silent node costs 22 s a try.
const yieldAfter = 2 * time.Second

// maxTries is how often each action is tried.
func maxTries(action string) int {
	switch action {
	case ActionInventory, ActionGen25519, ActionConfigure:
		return 5
	case ActionJWT, ActionRestart, ActionShutdown, ActionUpdate:
		return 3
	default: // gencsr: every try makes the node a new key
		return 1
	}
}

// rpcWrapper runs cb, one attempt of action, up to tries times with a backoff
// between. The gate is read before the first attempt and at each. A lock, a
// pause, the end of ctx and twins end it at once; so does, for restart and
// release_update, a reply that never came: the node may be at it already. The
// error names the action and the tries and wraps the last real error.
func (h *Host) rpcWrapper(ctx context.Context, action string, tries int, cb func(ctx context.Context) error) error {
	if !h.cfg.Gate.IsOpen() {
		return fmt.Errorf("%s: %w", action, ErrPaused)
	}

	loop, end := context.WithCancel(ctx)
	defer end()

	var last error
	tried := 0
	err := backoff.Default.For(loop, func(try int) error {
		if !h.cfg.Gate.IsOpen() {
			last = ErrPaused
			end()
			return last
		}

		tried = try
		began := time.Now()
		last = cb(loop)
		h.cfg.Metrics.ObserveRPC(action, time.Since(began))
		if last != nil && (try >= tries || ctx.Err() != nil || final(action, last)) {
			end()
		}

		return last
	})
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %w", action, context.Cause(ctx))
	case errors.Is(last, ErrLocked) || errors.Is(last, ErrPaused):
		return fmt.Errorf("%s: %w", action, last)
	}

	if action != ActionShutdown {
		h.cfg.Metrics.RPCError(action)
	}
	if tried == 1 {
		return fmt.Errorf("%s failed: %w", action, last)
	}

	return fmt.Errorf("%s failed after %d tries: %w", action, tried, last)
}

// final tells whether no further attempt may follow err.
func final(action string, err error) bool {
	var (
		refused refusal
		replied *ReplyError
	)
	switch {
	case errors.Is(err, ErrLocked), errors.Is(err, ErrTwins), errors.As(err, &refused):
		return true
	case action == ActionRestart:
		return !errors.As(err, &replied)
	case action == ActionUpdate:
		return !errors.As(err, &replied) || updateResult(err) == ledger.ReplyBroken
	default:
		return false
	}
}

// refusal is a reply that was understood and whose content is refused: another
// try would bring the same.
type refusal struct{ error }

// Error is bounded: what parses a reply may quote all of it.
func (r refusal) Error() string { return shown(r.error.Error()) }

func (r refusal) Unwrap() error { return r.error }

// notSent is an attempt that ended before its request left.
type notSent struct{ error }

func (n notSent) Unwrap() error { return n.error }

// call sends req with the tries of its action and hands the one good reply to
// accept, which may refuse what it holds. While the node is slow to answer, its
// worker serves others.
func (h *Host) call(ctx context.Context, req Request, accept func(Reply) error) error {
	req.Token = h.cfg.Token

	back := h.cfg.Slot.Lend(yieldAfter)
	err := h.rpcWrapper(ctx, req.Action, maxTries(req.Action), func(ctx context.Context) error {
		// A second reply may have come when an earlier call had ended. Once the
		// configuration has left, stopping would only leave the node half done.
		if req.Action != ActionRestart && h.cfg.Doubted() {
			return notSent{ErrTwins}
		}
		replies, err := h.cfg.Caller.Call(ctx, h.identity, req)
		if err != nil {
			return err
		}
		reply, err := h.oneReply(replies)
		if err != nil {
			return err
		}
		if err := accept(reply); err != nil {
			return refusal{err}
		}

		return nil
	})

	return errors.Join(err, back(ctx))
}

// oneReply is the one good reply among replies, or what is wrong with them.
func (h *Host) oneReply(replies []Reply) (Reply, error) {
	switch {
	case len(replies) == 0:
		return Reply{}, ErrNotAnswered
	case len(replies) > 1:
		return Reply{}, ErrTwins
	}

	r := replies[0]
	switch {
	case r.Sender != h.identity:
		return Reply{}, fmt.Errorf("answered by %.1000q: %w", r.Sender, ErrTwins)
	case r.Code != 0 && strings.Contains(r.Message, lockedMessage):
		return Reply{}, ErrLocked
	case r.Code != 0:
		return Reply{}, &ReplyError{Code: r.Code, Message: r.Message}
	}

	return r, nil
}
