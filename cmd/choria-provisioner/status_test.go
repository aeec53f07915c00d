package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/choria-provisioner/provisioner/deploy/versions"
	"github.com/choria-provisioner/provisioner/status"
)

func TestPrintStatus(t *testing.T) {
	now := time.Now().Add(-90 * time.Second)
	leader := status.Status{
		Instance: "aaa", Identity: "one.example.net", Build: "1.0.0", Started: now,
		Election: status.Election{Enabled: true, Leader: true, Epoch: 42}, Gate: status.Gate{Open: true},
		Queue: 7, Waiting: 9, Workers: status.Workers{Busy: 4, Limit: 50},
		Helper: status.Helper{Name: "localca", Build: "1", State: "running"}, Ledger: "file",
		Version: &status.Version{Running: "v1", Proved: true, Successor: "v2", Waits: "two.example.net (instance bbb) has not proved itself yet",
			Verdicts: []versions.Verdict{{From: "v3", To: "v1", At: time.Unix(1_700_000_000, 0).UTC(), Outcome: "rolled-back", Why: "3 failures\x1b[2J"}}},
	}
	standby := status.Status{
		Instance: "bbb", Identity: "two.example.net", Build: "2.0.0", Started: now,
		Election: status.Election{Enabled: true}, Gate: status.Gate{Why: "another provisioner leads"},
		Helper: status.Helper{State: "crash-loop"}, Ledger: "off",
		Version: &status.Version{Running: "v2", OnTrial: true, Missing: "the helper is crash-loop", StandsAside: true, Successor: "v4", Halted: "both"},
	}
	alone := status.Status{Instance: "ccc", Identity: "three", Build: "1", Started: now, Gate: status.Gate{Open: true}, Helper: status.Helper{Name: "h", State: "running"}, Ledger: "off"}

	var out strings.Builder
	if err := printStatus(&out, []status.Status{leader, standby, alone}); err != nil {
		t.Fatal(err)
	}
	want := `IDENTITY         INSTANCE  BUILD  VERSION        LEADER       GATE    QUEUE  WAITING  WORKERS  HELPER          LEDGER  UP
one.example.net  aaa       1.0.0  v1             epoch 42     open    7      9        4/50     localca 1       file    1m30s
two.example.net  bbb       2.0.0  v2 (on trial)  standby      paused  0      0        0/0      - (crash-loop)  off     1m30s
three            ccc       1      -              no election  open    0      0        0/0      h               off     1m30s

one.example.net (aaa): does not make way for v2: two.example.net (instance bbb) has not proved itself yet
one.example.net (aaa): v3 was rolled-back to v1 at 2023-11-14T22:13:20Z: 3 failures?[2J
two.example.net (bbb): paused: another provisioner leads
two.example.net (bbb): version v2 has not proved itself: the helper is crash-loop
two.example.net (bbb): makes way for v4
two.example.net (bbb): its launcher is halted: both
`
	if out.String() != want {
		t.Errorf("got:\n%s\nwant:\n%s", &out, want)
	}
}

// A command that reaches nobody says so, and ends.
func TestStatus_errors(t *testing.T) {
	for _, tc := range []struct {
		name, config, choria, want string
	}{
		{name: "no configuration", config: "/nowhere/p.yaml", want: "/nowhere/p.yaml"},
		{name: "no choria configuration", choria: "/nowhere/c.conf", want: "/nowhere/c.conf"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			if tc.config == "" {
				tc.config = dir + "/p.yaml"
				writeOwn(t, tc.config, "choria_insecure: true\n")
			}
			if tc.choria == "" {
				tc.choria = dir + "/c.conf"
				writeOwn(t, tc.choria, "identity = x\n")
			}
			var stdout, stderr strings.Builder
			code := run(context.Background(), []string{"status", "--config", tc.config, "--choria-config", tc.choria}, strings.NewReader(""), &stdout, &stderr)
			if code != 1 || !strings.Contains(stderr.String(), tc.want) {
				t.Errorf("exit %d: %s", code, &stderr)
			}
		})
	}
}
