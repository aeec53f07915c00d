package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "c.yaml")

	for _, tt := range []struct {
		name   string
		file   string
		flags  []string
		code   int
		stdout string
		stderr string
	}{
		{
			name:   "nothing to say",
			file:   "helper: sh\n",
			stdout: "FILE: no problems\n",
		},
		{
			name:   "warnings let it pass, also for a path that only this machine lacks",
			file:   "helper: /absent\nsiet: a\n",
			stdout: "warning: FILE:2: siet: unknown key, ignored: is site meant?\nwarning: FILE:1: helper: /absent cannot be started: stat /absent: no such file or directory\n",
		},
		{
			name:   "strict makes them errors",
			file:   "helper: sh\nsiet: a\n",
			flags:  []string{"--strict"},
			code:   1,
			stdout: "error: FILE:2: siet: unknown key, ignored: is site meant?\n",
		},
		{
			name:   "errors and warnings together",
			file:   "helper: sh\nsiet: a\nworkers: -1\n",
			code:   1,
			stdout: "warning: FILE:2: siet: unknown key, ignored: is site meant?\nerror: FILE:3: workers: -1 is negative: use 0 for the default of 32\n",
		},
		{
			name:   "no JSON of a file that is refused",
			file:   "helper: sh\nworkers: -1\n",
			flags:  []string{"--json"},
			code:   1,
			stderr: "error: FILE:2: workers: -1 is negative: use 0 for the default of 32\n",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if err := os.WriteFile(path, []byte(tt.file), 0o600); err != nil {
				t.Fatal(err)
			}
			code, stdout, stderr := runCheck(t, append([]string{"check", "--config", path}, tt.flags...)...)
			if code != tt.code {
				t.Errorf("code is %d, want %d", code, tt.code)
			}
			if got := strings.ReplaceAll(stdout, path, "FILE"); got != tt.stdout {
				t.Errorf("standard output is\n%swant\n%s", got, tt.stdout)
			}
			if got := strings.ReplaceAll(stderr, path, "FILE"); got != tt.stderr {
				t.Errorf("standard error is\n%swant\n%s", got, tt.stderr)
			}
		})
	}
}

func TestCheckJSON(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(path, []byte("helper: sh\ntoken: s3cret\nsiet: a\n"), 0o600); err != nil {
		t.Fatal(err)
	}

	code, stdout, stderr := runCheck(t, "check", "--config", path, "--json")
	if code != 0 {
		t.Errorf("code is %d", code)
	}
	if want := "warning: " + path + ":3: siet: unknown key, ignored: is site meant?\n"; stderr != want {
		t.Errorf("standard error is %q, want %q", stderr, want)
	}
	if strings.Contains(stdout, "s3cret") {
		t.Errorf("a secret shows: %s", stdout)
	}
	var got struct {
		Token, Helper, Interval string
	}
	if err := json.Unmarshal([]byte(stdout), &got); err != nil {
		t.Fatal(err)
	}
	if got.Token != "***" || got.Helper != "sh" || got.Interval != "1m0s" {
		t.Errorf("got %+v", got)
	}
}

func TestCheckWithoutFile(t *testing.T) {
	code, _, stderr := runCheck(t, "check", "--config", "absent.yaml")
	if code != 1 || stderr != "choria-provisioner: configuration: open absent.yaml: no such file or directory\n" {
		t.Errorf("code %d, %q", code, stderr)
	}
}

func runCheck(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(context.Background(), args, strings.NewReader(""), &out, &errs)
	return code, out.String(), errs.String()
}
