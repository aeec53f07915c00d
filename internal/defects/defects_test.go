//go:build defects

package defects

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// defect is a change that brings a defect back: in file, old becomes new.
type defect struct {
	name string
	// module is the folder of the Go module, file a path in it.
	module, file string
	old, new     string
	// pkg and run are the test that must fail.
	pkg, run string
}

func defects() []defect {
	return []defect{
		{
			name: "a known node is never refreshed, because the new entry's age is tested",
			file: "fleet/queue.go", old: "\tcase e.state != stateResting:\n\t\te.seen = now\n", new: "\tcase e.state != stateResting:\n",
			pkg: "./fleet", run: "TestQueueRefreshesAKnownNode",
		},
		{
			name: "a full queue drops a node yet remembers it as found",
			file: "fleet/queue.go", old: "\t\tdelete(q.entries, e.identity)\n\t\te.state = stateResting // so", new: "\t\tq.entries[e.identity] = e\n\t\te.state = stateBusy // so",
			pkg: "./fleet", run: "TestQueueForgetsARefusedNode",
		},
		{
			name: "the delayed removal of a finished node deletes a newer entry of the same name",
			file: "fleet/queue.go", old: "\tif q.entries[e.identity] == e {\n\t\tdelete", new: "\tif q.entries[e.identity] != nil {\n\t\tdelete",
			pkg: "./fleet", run: "TestQueueOldEntryDoesNotRemoveTheNew",
		},
		{
			name: "a node that comes back unchanged is updated for ever",
			file: "version/ledger/look.go", old: "\tcase t.Resent && !t.Orphaned, t.Unanswered >= sendLimit:\n", new: "\tcase false:\n",
			pkg: "./version/ledger", run: "TestKilledAnywhereEndsInTheSameVerdict",
		},
		{
			name: "a CSR that is no PEM crashes the daemon",
			file: "host/csr.go", old: "\tcase block == nil:\n\t\treturn nil, errors.New(\"it is no PEM\")\n", new: "",
			pkg: "./host", run: "TestCheckCSR",
		},
		{
			name: "an invalid deny-list pattern is ignored, so it fails open",
			file: "config/validate.go", old: "\t\t\td.add(Error, line, \"cert_deny_list\", \"item %d is not", new: "\t\t\td.add(Warning, line, \"cert_deny_list\", \"item %d is not",
			pkg: "./config", run: "TestProblems",
		},
		{
			name:   "a child that holds the helper's output blocks a worker for ever",
			module: "helper", file: "execadapter/adapter.go", old: "\tcmd.WaitDelay = outputDelay\n", new: "\t_ = outputDelay\n",
			pkg: "./execadapter", run: "TestChildKeepsOutput",
		},
		{
			name:   "what the helper writes to standard error is lost",
			module: "helper", file: "execadapter/adapter.go", old: "\t\tlastLine = line\n\t\tlog.Info(line, \"stream\", \"stderr\")\n", new: "\t\t_, _ = line, log\n",
			pkg: "./execadapter", run: "TestRuns",
		},
		{
			name:   "the helper's standard output is unbounded",
			module: "helper", file: "execadapter/adapter.go", old: "stdout := &boundedBuffer{max: MaxOutput,", new: "stdout := &boundedBuffer{max: 1 << 40,",
			pkg: "./execadapter", run: "TestRuns/output_is_bounded",
		},
		{
			name: "the pause is read between tries only, so a call in flight outlives leadership",
			file: "host/rpc.go", old: "\t\tlast = cb(loop)\n", new: "\t\tlast = cb(context.WithoutCancel(loop))\n",
			pkg: "./host", run: "TestGateClosesInTheMiddle",
		},
		{
			name: "the gate is not read at each attempt",
			file: "host/rpc.go", old: "\t\tif !h.cfg.Gate.IsOpen() {\n\t\t\tlast = ErrPaused", new: "\t\tif false {\n\t\t\tlast = ErrPaused",
			pkg: "./host", run: "TestGateClosesInTheMiddle",
		},
		{
			name: "maximum tries reached comes out as context canceled",
			file: "host/rpc.go", old: "return fmt.Errorf(\"%s failed after %d tries: %w\", action, tried, last)", new: "return fmt.Errorf(\"%s failed after %d tries: %w\", action, tried, err)",
			pkg: "./host", run: "TestRetries",
		},
		{
			name: "the lease is not given back at shutdown",
			file: "election/lease.go", old: "\t_, err := l.bucket.put(ctx, newDelete(l.held()))\n", new: "\tvar err error\n",
			pkg: "./election", run: "TestElector/.*hand_over",
		},
	}
}

func TestDefects(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range defects() {
		t.Run(d.name, func(t *testing.T) {
			module := filepath.Join(root, d.module)
			original := filepath.Join(module, d.file)
			text, err := os.ReadFile(original)
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(string(text), d.old); n != 1 {
				t.Fatalf("%s holds the line to spoil %d times, not once: %q", d.file, n, d.old)
			}

			dir := t.TempDir()
			spoilt := filepath.Join(dir, "spoilt.go")
			write(t, spoilt, strings.Replace(string(text), d.old, d.new, 1))
			overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{original: spoilt}})
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(dir, "overlay.json")
			write(t, file, string(overlay))

			cmd := exec.Command("go", "test", "-overlay", file, "-timeout", "90s", "-run", "^"+d.run, d.pkg)
			cmd.Dir = module
			out, err := cmd.CombinedOutput()
			switch {
			case err == nil:
				t.Errorf("%s passes with the defect in %s", d.run, d.file)
			case !failed(out):
				t.Errorf("no test failed, something else went wrong:\n%s", out)
			default:
				t.Logf("red, as it must be: %s", regexp.MustCompile(`(?m)^\s*(--- FAIL|panic):.*$`).Find(out))
			}
		})
	}
}

// failed tells a test that failed, panicked or hung from one that was not built.
func failed(out []byte) bool {
	return regexp.MustCompile(`(?m)^\s*(--- FAIL|panic):`).Match(out)
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
