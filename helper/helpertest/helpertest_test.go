package helpertest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/choria-provisioner/provisioner/helper/helpertest"
	"github.com/choria-provisioner/provisioner/helper/helperv1"
	"github.com/choria-provisioner/provisioner/helper/internal/testplugin"
	"github.com/choria-provisioner/provisioner/helper/supervisor"
)

var broken string

func TestMain(m *testing.M) {
	var err error
	broken, err = testplugin.Build("github.com/choria-provisioner/provisioner/helper/helpertest/internal/broken")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(filepath.Dir(broken))
	os.Exit(code)
}

func config(fault string) helpertest.Config {
	return helpertest.Config{Supervisor: supervisor.Config{Path: broken, Args: []string{fault}, Timeout: 5 * time.Second}}
}

// TestBroken shows that each rule that is broken is found, by the check that is
// there for it and no other.
func TestBroken(t *testing.T) {
	const (
		failed = helpertest.Failed
		warned = helpertest.Warned
	)
	cases := []struct {
		fault   string
		check   string
		outcome helpertest.Outcome
		reason  string
	}{
		{"prints-first", "start", failed, "helper of site lon1 starting"},
		{"ends-at-once", "start", failed, "it ended before it was ready: exit status 3 (last on standard error: no licence)"},
		{"never-greets", "start", failed, "not ready within"},
		{"protocol-version", "start", failed, "version"},
		{"not-serving", "start", failed, "health check: it says NOT_SERVING"},
		{"no-name", "start", failed, `the name "" is not 1 to 64 of a-z, 0-9 and -`},
		{"cannot-be-configured", "start", failed, "Configure: the inventory is down (FailedPrecondition)"},
		{"no-build", "info", warned, "build is empty"},
		{"schema", "info", failed, "config_schema is no JSON object"},
		{"accepts-any-key", "configuration", warned, "a misspelt one will not be noticed"},
		{"wrong-code-for-a-key", "configuration", failed, "refused with Internal, not with INVALID_ARGUMENT"},
		{"never-answers", "decisions", failed, "no features: no answer in time: helper broken: ConfigureNode: no answer within"},
		{"unset", "decisions", failed, "the helper's answer holds no decision"},
		{"dies-on-every-third", "decisions", failed, "the helper ended or failed its health check: helper broken ended: exit status 2\ned25519: "},
		{"fault-on-every-third", "decisions", failed, "ed25519: a fault of the helper: helper broken: ConfigureNode: no such site (Internal)"},
		{"plain-error", "decisions", failed, "a fault of the helper: helper broken: ConfigureNode: no such site (Unknown)"},
		{"passing-fault", "decisions", failed, "a test needs all that the helper needs: helper broken: ConfigureNode: the CA is down"},
		{"unknown-code", "decisions", failed, "the code Code(77) is none of the contract"},
		{"refuses-all", "decisions", failed, "every node is refused; give nodes that the helper knows"},
		{"refuses-some", "decisions", warned, "no facts: helper broken: ConfigureNode: no facts (InvalidArgument)"},
		{"empty", "decisions", failed, "configuration: it is empty"},
		{"line-break", "decisions", failed, `configuration: key "site": a line break`},
		{"provisioning-on", "decisions", failed, "leaves provisioning on"},
		{"policy-suffix", "decisions", failed, `action_policies: "rpcutil" must end in .policy`},
		{"certificate", "decisions", failed, "pki: the host would refuse the answer: certificate_pem: it is no PEM certificate"},
		{"oversize", "decisions", failed, "the message is too large: the answer has more than 4194304 bytes"},
		{"falls-ill", "decisions", failed, "the helper ended or failed its health check: helper broken: health check: it says NOT_SERVING"},
		{"no-unknown-fields", "unknown-fields", failed, "unknown field"},
		{"answers-change", "request-id", failed, "no features: the same request_id got different answers: configure.configuration is not the same"},
		{"mixes-nodes", "concurrency", failed, "names another node"},
		{"blocks-others", "deadline", failed, "after 8 calls that were given up: no answer in time"},
		{"small-limit", "size", failed, "an inventory of 3670016 bytes"},
		{"leaks-files", "descriptors", failed, "files were open after 100 calls"},
		{"no-release", "release", failed, "the helper's answer holds no decision"},
		{"bad-version", "release", failed, `no features: "; reboot" is no version`},
		{"prints-later", "stdout", warned, `the first: "configured n`},
		{"leaves-a-child", "shutdown", failed, "processes outlived the helper: sleep"},
		{"ignores-its-end", "shutdown", warned, "it did not end when it was asked to, and was killed"},
	}

	for _, c := range cases {
		t.Run(c.fault, func(t *testing.T) {
			t.Parallel()
			cfg := config(c.fault)
			switch c.fault {
			case "never-answers", "blocks-others":
				cfg.Supervisor.Timeout = time.Second
			case "never-greets":
				cfg.Supervisor.StartTimeout = time.Second
			}
			r := helpertest.Check(t.Context(), cfg)
			found := false
			for _, got := range r.Checks {
				if got.Name == c.check {
					found = got.Outcome == c.outcome && strings.Contains(got.Reason, c.reason)
					continue
				}
				// This one makes calls at once too.
				if c.check == "concurrency" && got.Name == "descriptors" {
					continue
				}
				if got.Outcome != helpertest.Passed && got.Outcome != helpertest.Skipped {
					t.Errorf("another check: %s", got)
				}
			}
			if !found || r.Failed() != (c.outcome == failed) {
				t.Errorf("no %s of %s with %q:\n%s", c.outcome, c.check, c.reason, text(t, r))
			}
		})
	}
}

// A helper that breaks nothing passes, and the report says what it is.
func TestGood(t *testing.T) {
	r := helpertest.Check(t.Context(), config("nothing"))
	if r.Failed() || r.Name != "broken" || r.Build != "1" || r.Path != broken {
		t.Error(text(t, r))
	}
	for _, c := range r.Checks {
		if c.Outcome == helpertest.Warned || c.Outcome == helpertest.Skipped && c.Name != "release" {
			t.Errorf("%s", c)
		}
	}
	helpertest.Run(t, config("nothing"))

	b, err := json.Marshal(r)
	if err != nil || !bytes.Contains(b, []byte(`{"name":"shutdown","outcome":"passed","reason":"within `)) {
		t.Errorf("got %s, %v", b, err)
	}
}

// A site's own nodes must be decided about; a generated one may be refused.
func TestOwnNodes(t *testing.T) {
	cases := []struct {
		why    string
		node   *helperv1.Node
		failed bool
	}{
		{"known", &helperv1.Node{Identity: "web1", FactsJson: []byte(`{}`)}, false},
		{"refused", &helperv1.Node{Identity: "web1"}, true},
	}
	for _, c := range cases {
		t.Run(c.why, func(t *testing.T) {
			cfg := config("refuses-some")
			cfg.Nodes = []*helperv1.Node{c.node}
			if r := helpertest.Check(t.Context(), cfg); r.Failed() != c.failed {
				t.Error(text(t, r))
			}
		})
	}
}

// One that gives up is told why, and is not told that all is well.
func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := helpertest.Check(ctx, config("nothing"))
	if !r.Failed() || r.Checks[0].Reason != "context canceled" {
		t.Error(text(t, r))
	}
}

func text(t *testing.T, r *helpertest.Report) string {
	t.Helper()
	var b bytes.Buffer
	if err := r.WriteText(&b); err != nil {
		t.Fatal(err)
	}

	return b.String()
}
