package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/choria-provisioner/provisioner/config"
	"github.com/choria-provisioner/provisioner/helper/helpertest"
	"github.com/choria-provisioner/provisioner/internal/demo"
)

// writeFile writes a file of the test's own and returns its path.
func writeFile(t *testing.T, name, text string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}

	return path
}

// pythonExample makes the Python example ready to run; it needs Debian's
// python3-grpcio, python3-protobuf and protobuf-compiler.
func pythonExample(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../examples/python/helper.py")
	if err != nil {
		t.Fatal(err)
	}
	program := writeFile(t, "helper.py", string(text), 0o755)
	protoc := exec.Command("protoc", "-I", "../../helper/proto", "--python_out", filepath.Dir(program), "choria/provisioner/helper/v1/helper.proto")
	if out, err := protoc.CombinedOutput(); err != nil {
		t.Fatalf("protoc: %v\n%s", err, out)
	}

	return program
}

// staticRules are the rules in the worked example of docs/helpers.md.
func staticRules(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("../../docs/helpers.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "<!-- the worked example -->\n```yaml\n")
	text, _, _ = strings.Cut(text, "\n```\n")
	path := writeFile(t, "provisioner.yaml", text, 0o600)
	cfg, problems, err := config.Load(path)
	if err != nil || len(problems) > 0 {
		t.Fatalf("the worked example: %v, %v", problems, err)
	}

	return writeFile(t, "rules.yaml", string(cfg.Helper.Config), 0o600)
}

// The helpers that ship keep the contract.
func TestShippedHelpers(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	script := writeFile(t, "helper.sh", `#!/bin/sh
id=$(sed -n 's/.*"identity":"\([^"]*\)".*/\1/p')
echo "asked for $id" >&2
printf '{"configuration":{"identity":"%s","plugin.choria.server.provision":"false"}}\n' "$id"
`, 0o755)
	localca := writeFile(t, "localca.yaml", "dir: "+t.TempDir()+"\nbrokers: [b.example.net:4222]\n", 0o600)

	// This program, with the race detector in it, takes a second to end.
	cases := []struct {
		name string
		args []string
		// warned are checks for which a warning is as it should be. That of shutdown
		// is for all: how soon a helper ends depends on the machine.
		warned []string
	}{
		{"examples/first", []string{examplePlugin(t, "first")}, nil},
		{"examples/localca", []string{examplePlugin(t, "localca"), "--config", localca}, nil},
		{"examples/python", []string{pythonExample(t), "--mtls", "off"}, nil},
		{"the adapter of exec helpers", []string{"--exec", script + " --site 'new york'"}, nil},
		{"the static helper", []string{self, "--arg", "static-helper", "--config", staticRules(t), "--nodes", "testdata/nodes.jsonl"}, []string{"decisions"}},
		{"the demo's helper", []string{self, "--arg", demo.HelperCommand}, nil},
	}

	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			code, stdout, stderr := invoke(t, "", append([]string{"helper", "test", "--json"}, c.args...)...)
			var report helpertest.Report
			if err := json.Unmarshal([]byte(stdout), &report); code != 0 || err != nil {
				t.Fatalf("code %d, %v\n%s%s", code, err, stdout, stderr)
			}
			for _, r := range report.Checks {
				if r.Outcome == helpertest.Warned && r.Name != "shutdown" && !slices.Contains(c.warned, r.Name) {
					t.Errorf("%s", r)
				}
			}
		})
	}
}

// The command's own words and codes; what it finds is the kit's to test.
func TestHelperTest(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	static := []string{"helper", "test", self, "--arg", "static-helper"}
	rules := writeFile(t, "rules.yaml", "rules: [{name: web, match: {identity: /^web/}, defer: {}}]", 0o600)
	web := writeFile(t, "web.jsonl", "{\"identity\":\"web1\"}\n\n", 0o600)
	bad := writeFile(t, "bad.jsonl", "{\"identity\":\"web1\"}\n{}\n", 0o600)

	cases := []struct {
		why            string
		args           []string
		code           int
		stdout, stderr string
	}{
		{"a line for each check, and the sum", append(static, "--config", rules, "--nodes", web), 0, " warned, 0 failed, 1 skipped\n", ""},
		{"a site's node that is refused", append(static, "--config", rules), 1, "failed   decisions       every node is refused; give nodes that the helper knows", ""},
		{"rules that are refused", append(static, "--config", web), 1, `failed   start           start of helper ` + self + `: helper static: Validate: config: unknown field "identity" (InvalidArgument)`, ""},
		{"nodes that cannot be read", append(static, "--nodes", bad), 1, "", bad + ":2: the node has no identity"},
		{"no helper", []string{"helper", "test"}, 1, "", "give either the path of a plugin or --exec"},
		{"arguments for none", []string{"helper", "test", "--exec", "x", "--arg", "y"}, 1, "", "an exec helper takes no --config and no --arg"},
	}

	for _, c := range cases {
		t.Run(c.why, func(t *testing.T) {
			code, stdout, stderr := invoke(t, "", c.args...)
			if code != c.code || !strings.Contains(stdout, c.stdout) || !strings.Contains(stderr, c.stderr) {
				t.Errorf("code %d\n%s\n%s", code, stdout, stderr)
			}
		})
	}
}
