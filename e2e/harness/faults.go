//go:build linux

package harness

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/choria-provisioner/provisioner/internal/simfleet"
)

const (
	// healthyNodes are beside those with a fault.
	healthyNodes = 20

	// longestLine is what one line of the log may have, whatever a node sent.
	longestLine = 8 << 10

	// finishedRest is how long the daemon leaves a node alone that it provisioned.
	finishedRest = 60 * time.Second

	// linesPerNode is what may be said of one node in a test of two minutes at
	// most: three passes, of which each warns and fails.
	linesPerNode = 30
)

// Fate is what has to become of a node.
type Fate int

const (
	// Untouched is a node that is never configured.
	Untouched Fate = iota
	// Provisioned is a node that is configured and restarted.
	Provisioned
	// Wiped is a node that is configured and restarted, wiped once the provisioner
	// may hear of it again, and then configured anew.
	Wiped
	// Returning is a node that dies, and is provisioned when it is back.
	Returning
	// Configured is a node that accepts a configuration; whether it restarts is
	// left open.
	Configured
	// ConfiguredOnce is one that is left alone after that, AtMostOnce one that may
	// be found out before.
	ConfiguredOnce
	AtMostOnce
)

// FaultRow is a fault and what must come of it. Why it is here is what the fault
// is about.
type FaultRow struct {
	Fault string
	Fate  Fate
	// Says is part of a line of the log, an error unless Level says otherwise,
	// that also names the node, unless it is Nameless. When empty nothing has to
	// be said.
	Says     string
	Level    string
	Nameless bool
	// Limit is how long it may take; 20 seconds when 0.
	Limit time.Duration
}

// faultyNode is a row with its node.
type faultyNode struct {
	FaultRow
	*simfleet.Node
}

// TestFaults runs one daemon for a healthy fleet and one node of each fault:
// the daemon lives, the healthy ones are provisioned, and of each bad one comes
// what its row says. start starts the daemon.
func TestFaults(t *testing.T, broker *simfleet.Broker, start func() *Daemon, rows []FaultRow) {
	fleet := StartFleet(t, broker, healthyNodes, simfleet.NodeOptions{})
	healthy := fleet.Nodes()
	var bad []faultyNode
	for _, row := range rows {
		bad = append(bad, faultyNode{row, AddFaulty(t, fleet, row.Fault+".fault.example.net", row.Fault)})
	}

	began := time.Now()
	daemon := start()
	Eventually(t, 20*time.Second, "healthy nodes beside bad ones", func() error { return restarted(daemon, healthy) })
	t.Logf("healthy nodes were provisioned after %v", time.Since(began).Round(time.Millisecond))

	for _, n := range bad {
		if n.Fate == Returning {
			Eventually(t, time.Until(began.Add(20*time.Second)), n.Fault+" dies", func() error {
				if !n.Gone() {
					return errors.New("it lives")
				}
				return nil
			})
			if err := n.Return(t.Context(), ""); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, n := range bad {
		t.Run(n.Fault, func(t *testing.T) {
			limit := n.Limit
			if limit == 0 {
				limit = 20 * time.Second
			}
			Eventually(t, time.Until(began.Add(limit)), "fate", func() error {
				if err := n.said(daemon); err != nil {
					return err
				}
				if n.Fate == Provisioned || n.Fate == Returning || n.Fate == Wiped {
					return restarted(daemon, []*simfleet.Node{n.Node})
				}
				return nil
			})
			if n.Fate == Wiped {
				n.wipe(t, daemon)
			}
		})
	}

	// at the very end, for what must not be can still come
	for _, n := range bad {
		for _, same := range fleet.Nodes() {
			if same.Identity() == n.Identity() {
				faultyNode{n.FaultRow, same}.expectCalls(t)
			}
		}
		n.expectQuiet(t, daemon)
	}
	expectReadableLog(t, daemon)
	if !daemon.Running() {
		t.Errorf("the daemon ended: %v", daemon.err)
	}
}

// AddFaulty starts one more node, with the fault of that name.
func AddFaulty(t testing.TB, fleet *simfleet.Fleet, identity, name string) *simfleet.Node {
	t.Helper()

	fault, err := simfleet.FaultNamed(name)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	n, err := fleet.AddFaulty(ctx, identity, fault)
	if err != nil {
		t.Fatal(err)
	}

	return n
}

// said is an error until the daemon has said what it has to of the node.
func (n faultyNode) said(daemon *Daemon) error {
	if n.Says == "" {
		return nil
	}
	level := n.Level
	if level == "" {
		level = "error"
	}

	var others []string
	for _, line := range daemon.Lines() {
		if !n.Nameless && !line.names(n.Identity()) {
			continue
		}
		if line.Level == level && strings.Contains(line.Message, n.Says) {
			return nil
		}
		if len(others) < 5 {
			others = append(others, line.Level+": "+line.Message)
		}
	}

	return fmt.Errorf("no %s says %q of it, only %q", level, n.Says, others)
}

// wipe brings the node back without a configuration and expects another one.
func (n faultyNode) wipe(t *testing.T, daemon *Daemon) {
	t.Helper()

	first, rested := n.Configured(), LastCall([]*simfleet.Node{n.Node}).Add(finishedRest+time.Second)
	timer := time.NewTimer(time.Until(rested))
	defer timer.Stop()
	<-timer.C
	if err := n.Return(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	ExpectRestarted(t, daemon, []*simfleet.Node{n.Node}, 10*time.Second)
	if again := n.Configured(); again.Certificate == "" || again.Certificate == first.Certificate {
		t.Errorf("%s: the wiped node has certificate %q", n.Fault, again.Certificate)
	}
}

// expectCalls checks how often the node was called and configured. A twin or an
// impostor is a node of the same name.
func (n faultyNode) expectCalls(t *testing.T) {
	t.Helper()

	calls := map[string]int{}
	for _, call := range n.Calls() {
		calls[call.Action]++
	}
	configured := n.Configured() != nil
	switch n.Fate {
	case Untouched:
		if configured {
			t.Errorf("%s: the node was configured: %v", n.Fault, calls)
		}
	case Configured:
		if !configured {
			t.Errorf("%s: the node was not configured: %v", n.Fault, calls)
		}
	case ConfiguredOnce, AtMostOnce:
		count := calls["choria_provision#configure"]
		if count > 1 || count == 0 && n.Fate == ConfiguredOnce {
			t.Errorf("%s: the node was not configured once: %v", n.Fault, calls)
		}
	}
	for action, count := range calls {
		// a pass at the start, one for each interval of a minute, and one more
		// for a node that comes back
		if most := 3 * Tries(action); count > most {
			t.Errorf("%s: %s was called %d times, more than %d", n.Fault, action, count, most)
		}
	}
}

// expectQuiet checks that a node whose row wants no more than information about
// it brought no warning and no error.
func (n faultyNode) expectQuiet(t *testing.T, daemon *Daemon) {
	t.Helper()

	for _, line := range daemon.Lines() {
		if n.Level == "info" && line.Level != "info" && line.names(n.Identity()) {
			t.Errorf("%s: %s: %s", n.Fault, line.Level, line.Message)
		}
	}
}

// Tries is how often one pass may call an action of a node.
func Tries(action string) int {
	switch action {
	case "rpcutil#inventory", "choria_provision#gen25519", "choria_provision#configure":
		return 5
	case "choria_provision#gencsr":
		return 1
	default:
		return 3
	}
}

// restarted is an error until all nodes were configured and restarted.
func restarted(daemon *Daemon, nodes []*simfleet.Node) error {
	if !daemon.Running() {
		return fmt.Errorf("%w: %v", errEnded, daemon.err)
	}
	var waiting []string
	for _, n := range nodes {
		if n.State() != simfleet.Restarted {
			waiting = append(waiting, fmt.Sprintf("%s is %v after %d calls", n.Identity(), n.State(), len(n.Calls())))
		}
	}
	if len(waiting) > 0 {
		return fmt.Errorf("%d of %d nodes are not provisioned, such as: %s", len(waiting), len(nodes), waiting[0])
	}

	return nil
}

// ExpectRestarted waits until all nodes were configured and restarted.
func ExpectRestarted(t testing.TB, daemon *Daemon, nodes []*simfleet.Node, limit time.Duration) {
	t.Helper()

	Eventually(t, limit, "provisioned nodes", func() error { return restarted(daemon, nodes) })
}

// LastCall is when the last call came in that a node saw.
func LastCall(nodes []*simfleet.Node) time.Time {
	var last time.Time
	for _, n := range nodes {
		for _, c := range n.Calls() {
			if c.At.After(last) {
				last = c.At
			}
		}
	}

	return last
}

// LogLine is one line of a log in JSON.
type LogLine struct {
	Level    string `json:"level"`
	Message  string `json:"msg"`
	Identity string `json:"identity"`

	size int
}

// JSONLog is the value of logfile with which a daemon's log can be read by
// Lines.
const JSONLog = "/dev/stdout"

// Lines are the lines of the log that are JSON; a helper's early words are not.
func (d *Daemon) Lines() []LogLine {
	var lines []LogLine
	for text := range strings.Lines(d.Log()) {
		line := LogLine{size: len(text)}
		if json.Unmarshal([]byte(text), &line) == nil {
			lines = append(lines, line)
		}
	}

	return lines
}

// names says whether the line is about a node.
func (l LogLine) names(identity string) bool {
	return l.Identity == identity || strings.Contains(l.Message, strconv.Quote(identity))
}

// expectReadableLog checks that no node made the log grow.
func expectReadableLog(t *testing.T, daemon *Daemon) {
	t.Helper()

	said := map[string]int{}
	for _, line := range daemon.Lines() {
		if line.size > longestLine {
			t.Errorf("a line of the log has %d bytes, more than %d: %.300s", line.size, longestLine, line.Message)
		}
		if line.Identity != "" {
			said[line.Identity]++
		}
		if strings.HasPrefix(line.Message, "forged") {
			t.Error("a node wrote a line of the log")
		}
		if strings.Contains(line.Message, "panic") {
			t.Errorf("the daemon panicked: %s", line.Message)
		}
	}
	for identity, count := range said {
		if count > linesPerNode {
			t.Errorf("the log has %d lines about %s", count, identity)
		}
	}
}

// Memory is the resident memory of a process in bytes: now, and the most there
// was (VmRSS and VmHWM in /proc/PID/status).
func (p *Process) Memory(t testing.TB) (now, most int64) {
	t.Helper()

	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.ID.PID))
	if err != nil {
		t.Fatal(err)
	}
	read := func(key string) int64 {
		for line := range strings.Lines(string(status)) {
			fields := strings.Fields(line)
			if len(fields) == 3 && fields[0] == key+":" {
				kib, err := strconv.ParseInt(fields[1], 10, 64)
				if err != nil {
					t.Fatal(err)
				}
				return kib << 10
			}
		}
		t.Fatalf("no %s in %s", key, status)
		return 0
	}

	return read("VmRSS"), read("VmHWM")
}
