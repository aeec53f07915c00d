package versions

import (
	"strconv"
	"strings"
	"time"
)

// The outcomes of a verdict.
const (
	// RolledBack is a version that was left for another and is never started
	// again.
	RolledBack = "rolled-back"
	// Halted is a version that had nothing to go back to.
	Halted = "halted"
)

// Verdict is one that the launcher recorded.
type Verdict struct {
	From string `json:"from"`
	// To is what was gone back to; it may be empty.
	To string `json:"to,omitempty"`
	// At is zero where the time cannot be read.
	At      time.Time `json:"at,omitzero"`
	Outcome string    `json:"outcome"`
	Why     string    `json:"why,omitempty"`
}

// readVerdicts are the verdicts in a rolled-back file, as far as they can be
// read for certain: a last line without an end may be half a name.
func readVerdicts(text string) []Verdict {
	var list []Verdict
	for text := range strings.Lines(text) {
		if strings.HasSuffix(text, "\n") || strings.Contains(text, "\t") {
			list = append(list, readVerdict(line(text)))
		}
	}

	return list
}

func readVerdict(line string) Verdict {
	f := strings.SplitN(line, "\t", 5)
	f = append(f, make([]string, 5-len(f))...)
	v := Verdict{To: f[1], Outcome: f[3], Why: f[4]}
	v.From, _, _ = strings.Cut(f[0], " ")
	if seconds, err := strconv.ParseInt(f[2], 10, 64); err == nil && seconds > 0 {
		v.At = time.Unix(seconds, 0).UTC()
	}

	return v
}

// bars tells whether the verdict keeps its version from being started. Where
// the outcome is missing, the known-good version has the benefit of the doubt.
func (v Verdict) bars(good string) bool {
	switch {
	case strings.HasPrefix(v.Outcome, "h"):
		return false
	case strings.HasPrefix(v.Outcome, "r"):
		return true
	default:
		return v.From != good
	}
}
