package helpertest

import (
	"fmt"
	"io"
	"strings"
)

// Outcome is how a check ended.
type Outcome string

// The outcomes. Warned is for what the host puts up with and an author should
// know; Skipped has a reason.
const (
	Passed  Outcome = "passed"
	Warned  Outcome = "warned"
	Failed  Outcome = "failed"
	Skipped Outcome = "skipped"
)

// Result is one check.
type Result struct {
	Name    string  `json:"name"`
	Outcome Outcome `json:"outcome"`
	// Reason explains any outcome; empty when there is nothing to say.
	Reason  string  `json:"reason,omitempty"`
	Seconds float64 `json:"seconds"`
}

func (r Result) String() string {
	return strings.TrimSpace(fmt.Sprintf("%-7s  %-14s  %s", r.Outcome, r.Name, r.Reason))
}

// Report is all that was found about a helper.
type Report struct {
	Path string `json:"path"`
	// Name and Build are what the helper says of itself; empty when it could
	// not be started.
	Name   string   `json:"name"`
	Build  string   `json:"build"`
	Checks []Result `json:"checks"`
}

// Failed says whether a check failed.
func (r *Report) Failed() bool { return r.count(Failed) > 0 }

func (r *Report) count(o Outcome) (n int) {
	for _, c := range r.Checks {
		if c.Outcome == o {
			n++
		}
	}

	return n
}

// WriteText writes the report for people, a line for each check.
func (r *Report) WriteText(w io.Writer) error {
	var out strings.Builder
	fmt.Fprintf(&out, "%s: helper %q, build %q\n", r.Path, r.Name, r.Build)
	for _, c := range r.Checks {
		fmt.Fprintln(&out, strings.ReplaceAll(c.String(), "\n", "\n"+strings.Repeat(" ", 25)))
	}
	fmt.Fprintf(&out, "%d passed, %d warned, %d failed, %d skipped\n", r.count(Passed), r.count(Warned), r.count(Failed), r.count(Skipped))
	_, err := io.WriteString(w, out.String())

	return err
}
