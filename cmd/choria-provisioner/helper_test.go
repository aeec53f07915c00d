package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The test's own binary is the program as well, race detector and all: it runs
// demo and is what that starts, and the adapter of exec helpers. A test's own
// flags begin with a dash.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-") {
		main()
	}
	os.Exit(m.Run())
}

// invoke runs the program in this process.
func invoke(t *testing.T, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), args, strings.NewReader(stdin), &out, &errs)

	return code, out.String(), errs.String()
}

// examplePlugin builds a helper of the examples module.
func examplePlugin(t *testing.T, name string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), name)
	build := exec.Command("go", "build", "-o", program, "./"+name)
	build.Dir = filepath.Join("..", "..", "examples")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}

	return program
}

func TestHelperCallPlugin(t *testing.T) {
	localca := examplePlugin(t, "localca")
	config := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(config, []byte(`{"dir":"`+t.TempDir()+`","brokers":["b.example.net:4222"]}`), 0o600); err != nil {
		t.Fatal(err)
	}

	code, stdout, stderr := invoke(t, "", "helper", "call", localca, "--input", "testdata/node.json", "--config", config)
	if code != 0 {
		t.Fatalf("code %d: %s", code, stderr)
	}
	for _, want := range []string{
		`"plugin.choria.middleware_hosts": "b.example.net:4222"`,
		`"plugin.security.choria.seed_file": "/etc/choria/server.seed"`,
		"\"permissions_json\": {\n", // the document, not its base64
		`"streams": true`,
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("%s is not in %s", want, stdout)
		}
	}

	code, _, stderr = invoke(t, "", "helper", "call", localca, "--input", "testdata/node.json", "--config", "testdata/node.json")
	if code != 1 || !strings.Contains(stderr, `helper localca: Validate: config: unknown field`) {
		t.Errorf("a configuration that is refused: code %d: %s", code, stderr)
	}
}

func TestHelperCallExec(t *testing.T) {
	script := filepath.Join(t.TempDir(), "helper.sh")
	err := os.WriteFile(script, []byte(`#!/bin/sh
grep -q '"jwt":{"cht":"t0ken"}' || exit 3
echo "site $2" >&2
echo '{"key":"s3cret","configuration":{"site":"'"$2"'"}}'
`), 0o755)
	if err != nil {
		t.Fatal(err)
	}
	node, err := os.ReadFile("testdata/node.json")
	if err != nil {
		t.Fatal(err)
	}
	withExec := "--exec=" + script + " --site 'new york'"

	cases := []struct {
		why            string
		stdin          string
		args           []string
		code           int
		stdout, stderr string
	}{
		{"secrets are masked; arguments are split as a shell does", string(node), []string{withExec, "--input=-"}, 0, `"private_key_pem": "***"`, "site new york"},
		{"unless they are wanted", string(node), []string{withExec, "--input=-", "--show-secrets"}, 0, `"private_key_pem": "s3cret"`, ""},
		{"the script's failure is said", `{"identity":"n1"}`, []string{withExec, "--input=-"}, 1, "", "failed: exit status 3 (Internal)"},
		{"a node without a name", `{}`, []string{withExec, "--input=-"}, 1, "", "-: the node has no identity"},
		{"a misspelt field", `{"identity":"n1","verison":"1"}`, []string{withExec, "--input=-"}, 1, "", `unknown field "verison"`},
		{"nothing to call", "", []string{"--input=-"}, 1, "", "give either the path of a plugin or --exec"},
		{"unbalanced quotes", `{"identity":"n1"}`, []string{"--exec='a", "--input=-"}, 1, "", "--exec: Unterminated single-quoted string"},
	}

	for _, c := range cases {
		t.Run(c.why, func(t *testing.T) {
			code, stdout, stderr := invoke(t, c.stdin, append([]string{"helper", "call"}, c.args...)...)
			if code != c.code || !strings.Contains(stdout, c.stdout) || !strings.Contains(stderr, c.stderr) {
				t.Errorf("code %d\n%s\n%s", code, stdout, stderr)
			}
		})
	}
}
