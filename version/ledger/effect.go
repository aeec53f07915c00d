package ledger

import "time"

// Next is what becomes of the pass over a node.
type Next string

const (
	// NextContinue goes on with the sequence.
	NextContinue Next = "continue"
	// NextSend sends release_update once the record is stored, and ends the pass
	// with its reply.
	NextSend Next = "send"
	// NextDefer ends the pass: the node is asked again next cycle.
	NextDefer Next = "defer"
	// NextLeave ends the pass: the node may be updating itself.
	NextLeave Next = "leave"
)

// Effect is something to be done once the record is stored. The effects are the
// types Send, Look, Alert and Verdict.
type Effect interface{ effect() }

// Send sends release_update.
type Send struct {
	Version   string
	AttemptID string
}

// Look looks at the node, with choria_provision#jwt before the inventory.
type Look struct {
	// After is observed time from now.
	After time.Duration
}

// Alert is for a person.
type Alert struct {
	Kind AlertKind
	Text string
}

// AlertKind is a kind of alert.
type AlertKind string

const (
	// AlertHeld is a node that waits for a person.
	AlertHeld AlertKind = "held"
	// AlertDark is a node that was sent an update and not seen since.
	AlertDark AlertKind = "dark"
	// AlertConfiguration is a node that refuses updates: its configuration or
	// the provisioner's is wrong.
	AlertConfiguration AlertKind = "configuration"
	// AlertFailed is an update that failed on the node.
	AlertFailed AlertKind = "update-failed"
)

// Verdict is the end of a trial, for the helper and the metrics.
type Verdict struct {
	Outcome Outcome
	Version string
	Why     string
}

func (Send) effect()    {}
func (Look) effect()    {}
func (Alert) effect()   {}
func (Verdict) effect() {}

// Result is what an event comes to.
type Result struct {
	Record Record
	// Changed tells that Record has to be stored before anything else is done.
	Changed bool
	Next    Next
	// Ruling is that on a Decision, the zero value for any other event.
	Ruling  Ruling
	Effects []Effect
}
