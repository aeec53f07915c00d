package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// decider builds the plugin whose decisions stand in files, and writes some.
func decider(t *testing.T, decisions map[string]string) (program, config string) {
	t.Helper()
	program = filepath.Join(t.TempDir(), "decider")
	if out, err := exec.Command("go", "build", "-o", program, "../../e2e/decider").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	dir := t.TempDir()
	for identity, decision := range decisions {
		if err := os.WriteFile(filepath.Join(dir, identity+".json"), []byte(decision), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	settings, err := json.Marshal(map[string]any{"configuration": map[string]string{"a": "b"}, "decisions": dir, "journal": filepath.Join(dir, "journal")})
	if err != nil {
		t.Fatal(err)
	}

	return program, writeFile(t, "decider.json", string(settings), 0o600)
}

// nodeLine is a stored node that can update itself.
func nodeLine(identity, version string) string {
	return fmt.Sprintf(`{"identity":%q,"inventory_json":{"version":%q,"upgradable":true}}`+"\n", identity, version)
}

func TestPlan(t *testing.T) {
	program, settings := decider(t, map[string]string{
		"new.example.net":   `{"upgrade":{"version":"2.0","reason":"policy"}}`,
		"next.example.net":  `{"upgrade":{"version":"2.0"}}`,
		"idle.example.net":  `{"upgrade":{"version":"0.9"}}`,
		"left.example.net":  `{"upgrade":{"version":"2.0"}}`,
		"held.example.net":  `{"rollback":{"reason":"back"}}`,
		"odd.example.net":   `{"rollback":{}}`,
		"wait.example.net":  `{"defer":{"reason":"at night"}}`,
		"off.example.net":   `{"shutdown":{"reason":"retired"}}`,
		"wrong.example.net": `{"upgrade":{}}`,
	})
	input := nodeLine("dark.example.net", "1.0") + nodeLine("held.example.net", "1.7") + nodeLine("idle.example.net", "1.0") +
		nodeLine("keep.example.net", "1.0") + nodeLine("left.example.net", "1.0") + nodeLine("new.example.net", "1.0") +
		nodeLine("next.example.net", "1.0") + nodeLine("odd.example.net", "1.0") + nodeLine("off.example.net", "1.0") +
		`{"identity":"old.example.net","version":"1.0"}` + "\n\n" + nodeLine("wait.example.net", "1.0") + nodeLine("wrong.example.net", "1.0")

	want := `
IDENTITY           VERSION  DECISION  TARGET  OUTCOME    GUARD               WHY
dark.example.net   1.0                        defer                          it waits for a person: took 2.0 and still runs 1.0: its restart failed
held.example.net   1.7      rollback  1.0     STOPPED    held                the node waits for a person: shows 1.7 after the upgrade from 1.0 to 2.0
idle.example.net   1.0      upgrade   0.9     STOPPED    older-than-current  0.9 is older than the node's 1.0: that is a rollback, not an upgrade
keep.example.net   1.0      keep              provision                      nothing was decided
left.example.net   1.0      upgrade   2.0     STOPPED    barred              this node left 2.0 for good: refused choria_provision#configure 2 times with 2.0: ?[2Jno such key
new.example.net    1.0      upgrade   2.0     send       allowed             policy
next.example.net   1.0      upgrade   2.0     STOPPED    max-in-trial        2 nodes are on trial, max_in_trial is 2
odd.example.net    1.0      rollback  1.0     provision  same-version        the node runs 1.0
off.example.net    1.0      shutdown          shutdown                       retired
old.example.net    1.0      keep              provision                      nothing was decided
wait.example.net   1.0      defer             defer                          at night
wrong.example.net  1.0                        error                          the helper's decision is refused: upgrade: it names no version
`
	for optional, stopped := range map[bool]string{true: "provision", false: "defer    "} {
		onBothWays(t, func(t *testing.T, m *memory) {
			config := writeFile(t, "provisioner.yaml", strings.Join([]string{
				"helper: {plugin: " + program + ", config: " + read(t, settings) + "}",
				"state_dir: " + m.dir,
				"choria_insecure: true",
				"upgrades_repository: https://repo.example.net",
				fmt.Sprintf("upgrades_optional: %v", optional),
				"features: {upgrades: yes}",
				// One node of the ledger is on trial.
				"versions: {max_in_trial: 2}",
			}, "\n"), 0o600)
			_, before, _ := m.run(t, "ledger", "export")
			code, stdout, stderr := invoke(t, input, "plan", "--input=-", "--config", config)
			if want := strings.ReplaceAll(strings.TrimPrefix(want, "\n"), "STOPPED  ", stopped); code != 1 || stdout != want {
				t.Errorf("code %d\n%s\nwant\n%s", code, stdout, want)
			}
			if !strings.Contains(stderr, "12 nodes: ") || !strings.Contains(stderr, "1 send, 1 shutdown") {
				t.Error(stderr)
			}
			if _, after, _ := m.run(t, "ledger", "export"); after != before {
				t.Errorf("the ledger was changed to\n%s\nfrom\n%s", after, before)
			}
		})
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(settings), "journal")); err == nil {
		t.Error("the helper was told of outcomes")
	}
}

// A helper on trial beside an export: no daemon, no configuration, no ledger.
func TestPlanOverAnExport(t *testing.T) {
	m := newMemory(t)
	_, exported, _ := m.run(t, "ledger", "export")
	file := writeFile(t, "export.jsonl", exported, 0o600)
	nodes := writeFile(t, "nodes.jsonl", nodeLine("left.example.net", "1.0")+nodeLine("idle.example.net", "1.0"), 0o600)
	program, settings := decider(t, map[string]string{
		"left.example.net": `{"upgrade":{"version":"2.0"}}`,
		"idle.example.net": `{"upgrade":{"version":"2.0"}}`,
	})
	plugin := []string{"--helper", program, "--helper-config", settings}
	script := writeFile(t, "helper.sh", "#!/bin/sh\necho '{\"upgrade\":\"2.0\",\"configuration\":{\"a\":\"b\"}}'\n", 0o755)

	for _, row := range []struct {
		why  string
		args []string
		want string
	}{
		{"a plugin", append(plugin, "--ledger", file), "left.example.net upgrade defer barred, idle.example.net upgrade send allowed"},
		{"an exec helper", []string{"--exec", script, "--ledger", file}, "left.example.net upgrade defer barred, idle.example.net upgrade send allowed"},
		{"nothing remembered", plugin, "left.example.net upgrade send allowed, idle.example.net upgrade send allowed"},
		{"a state directory", append(plugin, "--state-dir", m.dir), "left.example.net upgrade defer barred, idle.example.net upgrade send allowed"},
	} {
		t.Run(row.why, func(t *testing.T) {
			code, stdout, stderr := invoke(t, "", append([]string{"plan", "--input", nodes, "--json"}, row.args...)...)
			var got []string
			for line := range strings.Lines(stdout) {
				var p plan
				if err := json.Unmarshal([]byte(line), &p); err != nil {
					t.Fatal(err)
				}
				got = append(got, strings.Join([]string{p.Identity, p.Decision, p.Outcome, p.Guard}, " "))
			}
			if got := strings.Join(got, ", "); code != 0 || got != row.want {
				t.Errorf("code %d: %s\n%s", code, got, stderr)
			}
		})
	}
}

func TestPlanThatCannotBeMade(t *testing.T) {
	nodes := writeFile(t, "nodes.jsonl", nodeLine("a", "1.0")+"{}\n", 0o600)
	good := writeFile(t, "good.jsonl", nodeLine("a", "1.0"), 0o600)
	for _, row := range []struct {
		why    string
		args   []string
		code   int
		stderr string
	}{
		{"no helper", []string{"--input", good}, 1, "name a helper"},
		{"a node without a name", []string{"--input", nodes, "--exec", "/bin/true"}, 1, "nodes.jsonl:2: the node has no identity"},
		{"no ledger where one is named", []string{"--input", good, "--exec", "/bin/true", "--state-dir", t.TempDir()}, 2, "there is no ledger"},
		{"an export that is none", []string{"--input", good, "--exec", "/bin/true", "--ledger", good}, 1, "line 1: the record cannot be read"},
		{"a helper that gives no answer", []string{"--input", good, "--exec", "/bin/true"}, 1, "1 nodes: 1 error"},
	} {
		if code, _, stderr := invoke(t, "", append([]string{"plan"}, row.args...)...); code != row.code || !strings.Contains(stderr, row.stderr) {
			t.Errorf("%s: code %d: %s", row.why, code, stderr)
		}
	}
}
