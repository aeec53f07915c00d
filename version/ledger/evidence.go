package ledger

import (
	"fmt"
	"slices"
	"time"
)

// EvidenceLimit is how many entries a record keeps.
const EvidenceLimit = 50

// EvidenceKind is what an entry tells of.
type EvidenceKind string

const (
	// Decided is a decision that was allowed.
	Decided EvidenceKind = "decision"
	// Guarded is a decision that a guard stopped.
	Guarded EvidenceKind = "guard"
	// Intended is an update that was about to be sent.
	Intended EvidenceKind = "intent"
	// Replied is the node's reply to it.
	Replied EvidenceKind = "reply"
	// Observation is what was seen of a node.
	Observation EvidenceKind = "event"
	// Judged is a verdict.
	Judged EvidenceKind = "verdict"
	// Ordered is what a person did.
	Ordered EvidenceKind = "operator"
)

// Evidence is one step of the chain that led to a record's state.
type Evidence struct {
	At       time.Time    `json:"at"`
	Observed Observed     `json:"observed"`
	Epoch    uint64       `json:"epoch"`
	Kind     EvidenceKind `json:"kind"`
	// Guard is the guard's name.
	Guard Guard `json:"guard,omitempty"`
	// Outcome is that of a verdict.
	Outcome Outcome `json:"outcome,omitempty"`
	// Version is the one it is about; it may be empty.
	Version string `json:"version,omitempty"`
	// Text is a sentence for people.
	Text string `json:"text"`
	// State is the one the record is in afterwards.
	State State `json:"state"`
}

// note adds to the chain.
func (s *step) note(e Evidence) {
	e.At, e.Observed, e.Epoch, e.State = s.env.Wall, s.env.Observed, s.env.Epoch, s.rec.State
	s.rec.Evidence = append(s.rec.Evidence, e)
	if extra := len(s.rec.Evidence) - EvidenceLimit; extra > 0 {
		s.rec.Evidence = slices.Delete(s.rec.Evidence, 0, extra)
	}
	s.changed = true
}

// guarded adds what a guard stopped. What stands there already, with nothing
// but other guards after it, is not said again: a node that is stopped in every
// cycle costs one write, and pushes nothing out.
func (s *step) guarded(g Guard, v, text string) {
	for _, before := range slices.Backward(s.rec.Evidence) {
		if before.Kind != Guarded {
			break
		}
		if before.Guard == g && before.Version == v {
			return
		}
	}
	s.note(Evidence{Kind: Guarded, Guard: g, Version: v, Text: text})
}

// saw adds an observation of a version.
func (s *step) saw(v, format string, args ...any) {
	s.note(Evidence{Kind: Observation, Version: v, Text: fmt.Sprintf(format, args...)})
}
