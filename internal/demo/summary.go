package demo

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"time"
)

// Summary is the outcome of a demo.
type Summary struct {
	// Nodes is how many there were; each is provisioned or failed.
	Nodes       int `json:"nodes"`
	Provisioned int `json:"provisioned"`
	Failed      int `json:"failed"`

	// Seconds lie between the start of the provisioner and the departure of the
	// last node, so they include its start and its discovery.
	Seconds        float64 `json:"seconds"`
	NodesPerMinute float64 `json:"nodes_per_minute"`

	// Calls are those that reached a node, by action (agent#action), as the
	// nodes recorded them.
	Calls map[string]int `json:"calls"`

	// Errors are the calls that the provisioner gave up after its last try, by
	// the same actions, as its metrics count them.
	Errors map[string]int `json:"errors"`

	// Faults are the nodes with faults, which are not counted above but for
	// their calls.
	Faults []*FaultOutcome `json:"faults,omitempty"`
}

func (s *Summary) writeJSON(w io.Writer) error {
	return json.NewEncoder(w).Encode(s)
}

// summarise takes stock. took is the time since the start of the provisioner.
func (d *demo) summarise(took time.Duration) *Summary {
	counts := d.fleet.Counts()
	s := &Summary{
		Nodes:          d.opts.Nodes,
		Provisioned:    counts.Restarted,
		Failed:         d.opts.Nodes - counts.Restarted,
		Seconds:        round(took.Seconds(), 1000),
		NodesPerMinute: round(float64(counts.Restarted)/took.Minutes(), 10),
		Calls:          counts.Calls,
		Errors:         map[string]int{},
	}
	for action, calls := range d.faulty.Counts().Calls {
		s.Calls[action] += calls
	}
	for action := range s.Calls {
		s.Errors[action] = 0
	}
	for action, rpc := range d.child.sample.rpcs {
		s.Errors[action] = rpc.errors
	}

	return s
}

func round(x, unit float64) float64 { return math.Round(x*unit) / unit }

// report is what the table at the end shows.
type report struct {
	*Summary

	rows         []reportRow
	failedPasses int
}

type reportRow struct {
	action string
	calls  int
	rpc    rpcSample
}

// report puts the actions in the order in which they came.
func (d *demo) report(s *Summary) report {
	r := report{Summary: s, failedPasses: d.child.sample.failedPasses}
	for _, n := range append(d.fleet.Nodes(), d.faulty.Nodes()...) {
		for _, c := range n.Calls() {
			if !slices.ContainsFunc(r.rows, func(row reportRow) bool { return row.action == c.Action }) {
				r.rows = append(r.rows, reportRow{c.Action, s.Calls[c.Action], d.child.sample.rpcs[c.Action]})
			}
		}
	}

	return r
}

// slowest is the row with the slowest call; of those in one bucket, the one
// whose calls took longest on average.
func (r report) slowest() reportRow {
	return slices.MaxFunc(r.rows, func(a, b reportRow) int {
		if a.rpc.over != b.rpc.over {
			return int(a.rpc.over - b.rpc.over)
		}
		return int(a.rpc.mean - b.rpc.mean)
	})
}

// write writes the table.
func (r report) write(w io.Writer) {
	fmt.Fprintf(w, "%d of %d nodes provisioned in %.1f s: %.0f nodes a minute, start and discovery included\n\n",
		r.Provisioned, r.Nodes, r.Seconds, r.NodesPerMinute)

	const layout = "  %-31s %8v %8v %10v   %v\n"
	fmt.Fprintf(w, layout, "action", "calls", "errors", "mean", "slowest")
	for _, row := range r.rows {
		fmt.Fprintf(w, layout, row.action, row.calls, r.Errors[row.action], milliseconds(row.rpc.mean), row.rpc.slowest())
	}
	fmt.Fprintln(w)

	if len(r.rows) > 0 {
		slow := r.slowest()
		fmt.Fprintf(w, "  slowest call: %s, %s\n", slow.action, slow.rpc.slowest())
	}
	if r.failedPasses > 0 {
		fmt.Fprintf(w, "  failed passes over a node, repeated later: %d\n", r.failedPasses)
	}
	for _, row := range r.rows {
		if row.calls != row.rpc.attempts && len(r.Faults) == 0 {
			fmt.Fprintf(w, "  %s: the nodes recorded %d calls, the provisioner made %d\n", row.action, row.calls, row.rpc.attempts)
		}
	}
	writeFaults(w, r.Faults)
}

// slowest says what is known of the slowest call.
func (s rpcSample) slowest() string {
	switch {
	case s.attempts == 0:
		return "unknown"
	case s.atMost == 0:
		return "over " + s.over.String()
	case s.over == 0:
		return "at most " + s.atMost.String()
	default:
		return s.over.String() + " to " + s.atMost.String()
	}
}

func milliseconds(d time.Duration) string { return fmt.Sprintf("%.1fms", d.Seconds()*1000) }

func seconds(d time.Duration) string { return fmt.Sprintf("%.1fs", d.Seconds()) }
