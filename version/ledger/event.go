package ledger

import "time"

// Event is something that was observed of a node, decided about it, or done to
// it. The events are the types of this file.
type Event interface{ event() }

// Inventory is a node's inventory, fetched in provisioning mode.
type Inventory struct {
	// Version is what the node shows; empty when it shows none, which tells
	// nothing.
	Version string
	// LockFree tells that choria_provision#jwt was answered just before. It
	// waits behind the node's update lock.
	LockFree bool
}

// Decision is what a helper wants. An exec helper's wish for a version is
// turned into one with Wish.
type Decision struct {
	// Direction is empty for keep.
	Direction Direction
	// Version may be empty for a rollback: the known-good version.
	Version string
	Reason  string
	// AttemptID is a fresh name for the update, made by the caller.
	AttemptID string
	// Current is the version the node's inventory showed in this pass.
	Current string
	// Upgradable is what the inventory said.
	Upgradable bool
	// NotReversible tells that there is no way back from Version.
	NotReversible bool
	// MinHealthy is how long after its restart the node has to be healthy
	// before it proves itself; 0 is until it is seen.
	MinHealthy time.Duration
	// Bar tells that a rollback bars the version it leaves.
	Bar bool
}

// ReplyResult is how release_update ended.
type ReplyResult string

const (
	// ReplyOK is a node that took the update and restarts.
	ReplyOK ReplyResult = "ok"
	// ReplyLost is no reply, or one that could not be read.
	ReplyLost ReplyResult = "lost"
	// ReplyRolledBack is a node that could not fetch or place the update and
	// runs on: "Update to version V failed, release rolled back".
	ReplyRolledBack ReplyResult = "release-rolled-back"
	// ReplyBroken is one that could not restore its binary either: "rollback
	// also failed, server in broken state".
	ReplyBroken ReplyResult = "broken"
	// ReplyNotDone is an update that did nothing for a reason that is none of the
	// node's: it is locked for another provisioner, or the request never left.
	ReplyNotDone ReplyResult = "not-done"
	// ReplyRefused is any other refusal: a wrong token, updates are off, not in
	// provisioning mode.
	ReplyRefused ReplyResult = "refused"
)

// Reply is the end of the update AttemptID.
type Reply struct {
	AttemptID string
	Result    ReplyResult
	// Text is the node's, or the error's.
	Text string
}

// Upgraded is a lifecycle event of that type. It may be forged.
type Upgraded struct{ Version string }

// Answered is a startup event in provisioning mode, or an answer to discovery.
// It may be forged: it starts a look.
type Answered struct{}

// Configured is a node that accepted its configuration and its restart.
type Configured struct{}

// Refused is a node that refused choria_provision#configure or #restart.
type Refused struct {
	Action string
	Text   string
	// Pass names the pass; a pass counts once. Empty counts always.
	Pass string
	// Excused is an end that is not the version's fault: the provisioning lock,
	// the gate, the network.
	Excused bool
}

// SeenInMain is a startup or alive event of component server in the main
// account, received on a connection to that account.
type SeenInMain struct{ Version string }

// Tick is time that passed.
type Tick struct{}

// Found is a record that a new leader finds.
type Found struct{}

// SetPin pins a node to a version.
type SetPin struct{ Version, Why string }

// Unpin removes the pin.
type Unpin struct{ Why string }

// Release lets a node that is held, dark, or convicted without a way back start
// afresh at what it shows. It lifts no bar.
type Release struct{ Why string }

// Expect makes a version known-good by a person's word, and ends a hold.
type Expect struct{ Version, Why string }

func (Inventory) event()  {}
func (Decision) event()   {}
func (Reply) event()      {}
func (Upgraded) event()   {}
func (Answered) event()   {}
func (Configured) event() {}
func (Refused) event()    {}
func (SeenInMain) event() {}
func (Tick) event()       {}
func (Found) event()      {}
func (SetPin) event()     {}
func (Unpin) event()      {}
func (Release) event()    {}
func (Expect) event()     {}
