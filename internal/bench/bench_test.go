package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Every way, on a few nodes: the older one still builds and provisions, and the
// numbers are those of what happened.
func TestBench(t *testing.T) {
	dir := t.TempDir()
	build := func(name string, args ...string) string {
		t.Helper()
		program := filepath.Join(dir, name)
		cmd := exec.Command("go", append(append([]string{"build", "-o", program}, args...), "./cmd/choria-provisioner")...)
		cmd.Dir = filepath.Join("..", "..")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return program
	}

	const nodes = 10
	var out bytes.Buffer
	b := &bench{
		nodes: nodes, runs: 1, timeout: 2 * time.Minute,
		daemon: build("daemon"), older: build("older", "-overlay", "internal/bench/older/overlay.json"),
		stdout: &out,
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if err := b.run(ctx); err != nil {
		t.Fatal(err)
	}

	measured := map[string]result{}
	for line := range strings.Lines(out.String()) {
		if !strings.HasPrefix(line, "{") {
			continue
		}
		var r result
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		measured[r.name()] = r
	}
	for _, w := range ways() {
		r, ok := measured[w.name()]
		if !ok {
			t.Errorf("no line for %s in\n%s", w.name(), &out)
			continue
		}
		if r.Nodes != nodes || r.NodesPerMinute <= 0 || r.Daemon.CPUSeconds <= 0 || r.Daemon.PeakMB <= 0 || r.HelperProcess.PeakMB <= 0 {
			t.Errorf("%s: %+v", w.name(), r)
		}
		if len(r.Calls) != 5 || r.Calls["choria_provision#restart"] != nodes {
			t.Errorf("%s: calls %v, want 5 actions, each once a node", w.name(), r.Calls)
		}
		if w.Connecting == shared && r.Connections > 6 {
			t.Errorf("%s: %d connections", w.name(), r.Connections)
		}
		if w.Connecting == perCall && r.Connections < 2*5*nodes {
			t.Errorf("%s: %d connections, want two a call", w.name(), r.Connections)
		}
		if w.Helper == execHelper && r.HelperProcess.ChildrenCPUSeconds <= 0 {
			t.Errorf("%s: the scripts took no time", w.name())
		}
	}
	if !strings.Contains(out.String(), "of the older way") {
		t.Errorf("no comparison in\n%s", &out)
	}
}
