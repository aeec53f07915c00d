package host

import (
	"errors"
	"fmt"
	"strings"
)

var (
	// ErrNotAnswered is a call to which the node sent no reply in time.
	ErrNotAnswered = errors.New("not answered")
	// ErrLocked is a node that another provisioner works on; the node keeps
	// that lock for two minutes after the other's last call
	// (go-choria, provision agent, LockWindow).
	ErrLocked = errors.New("locked by another provisioner")
	// ErrUnreadable is a call whose only reply is none of the protocol, or not in
	// the node's name.
	ErrUnreadable = errors.New("the reply cannot be read, or is in another's name")
	// ErrTwins is a call that more than one machine answered: twins, or an
	// impostor, since any waiting node can listen to provisioning.node.>.
	ErrTwins = errors.New("more than one machine answers under this identity: twins or an impostor")
	// ErrPaused is work that ended because the gate was paused.
	ErrPaused = errors.New("paused")
	// ErrDisconnected is a call that was in flight when the connection to the
	// broker dropped.
	ErrDisconnected = errors.New("connection to the broker dropped")
	// ErrEvicted is a pass that was ended because the node had not answered at
	// all and other nodes waited for its place.
	ErrEvicted = errors.New("no answer yet, and other nodes wait")
	// ErrHelperUnavailable is a helper that cannot answer now: the node waits,
	// nothing is wrong with it.
	ErrHelperUnavailable = errors.New("helper unavailable")
)

// ReplyError is a reply with a status code other than OK.
type ReplyError struct {
	// Code is the mcorpc status code: 1 aborted, 2 unknown action, 3 missing
	// data, 4 invalid data, 5 unknown error.
	Code int
	// Message is what the node said.
	Message string
}

// Error is what the node said, in bounds.
func (e *ReplyError) Error() string {
	switch {
	case strings.TrimSpace(e.Message) == "":
		return fmt.Sprintf("status %d, without a reason", e.Code)
	default:
		return shown(e.Message)
	}
}

// maxShown is how many bytes of what a node sent go into an error: more than
// any honest text has, for the error is logged at every pass.
const maxShown = 1000

// shown is what a node sent, in bounds.
func shown(s string) string {
	if len(s) <= maxShown {
		return s
	}

	return strings.ToValidUTF8(s[:maxShown], "") + "..."
}
