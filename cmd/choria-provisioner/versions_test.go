package main

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// ownVersions are a launcher's folders, with v1 known to be good, v2 rolled back
// and v3 the newest.
func ownVersions(t *testing.T) (dir string, flags []string) {
	t.Helper()
	dir = t.TempDir()
	for i, name := range []string{"v1", "v2", "v3"} {
		folder := filepath.Join(dir, "lib", "versions", name)
		writeOwn(t, filepath.Join(folder, "choria-provisioner"), name)
		writeOwn(t, filepath.Join(folder, ".arrived"), strconv.Itoa(i+1))
	}
	writeOwn(t, filepath.Join(dir, "state", "known-good"), "v1\n")
	writeOwn(t, filepath.Join(dir, "state", "rolled-back"), "v0\t\t1600000000\trolled-back\told\nv2\tv1\t1700000000\trolled-back\tcrashed\n")

	return dir, []string{"--state-dir", filepath.Join(dir, "state"), "--libexec", filepath.Join(dir, "lib"), "--bin", filepath.Join(dir, "bin")}
}

func writeOwn(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

func TestVersions(t *testing.T) {
	running := func(t *testing.T, dir string) {
		stat, err := os.ReadFile("/proc/self/stat")
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(stat), ") ")
		writeOwn(t, filepath.Join(dir, "state", "running"), "v3 "+strconv.Itoa(os.Getpid())+" "+strings.Fields(rest)[19]+"\n")
	}
	halted := func(t *testing.T, dir string) { writeOwn(t, filepath.Join(dir, "state", "halted"), "both failed\n") }
	pinned := func(t *testing.T, dir string) { writeOwn(t, filepath.Join(dir, "state", "pinned"), "v1\n") }

	elsewhere := func(t *testing.T, dir string) {
		writeOwn(t, filepath.Join(dir, "state", "rolled-back-elsewhere"), "v3 there\n")
	}

	nowhere := func(t *testing.T, dir string) {
		if err := os.RemoveAll(filepath.Join(dir, "state")); err != nil {
			t.Fatal(err)
		}
	}

	for _, tc := range []struct {
		name   string
		args   string
		before func(t *testing.T, dir string)
		code   int
		out    string
		err    string
	}{
		{name: "ls", args: "ls", before: pinned, out: `VERSION  MARKS                   VERDICT
v3       -                       -
v2       rolled-back             2023-11-14T22:13:20Z crashed
v1       known-good,pinned,next  -

Not there any more: v0 was rolled-back at 2020-09-13T12:26:40Z: old
`},
		{name: "ls, rolled back elsewhere", args: "ls", before: elsewhere, out: "VERSION  MARKS                  VERDICT\nv3       rolled-back-elsewhere  -\n"},
		{name: "ls, halted", args: "ls", before: halted, out: "HALTED: both failed\nRepair the cause, then: choria-provisioner versions release, and start the launcher.\n\nVERSION"},
		{name: "ls --json", args: "ls --json", before: running, out: `{
  "versions": [
    {
      "version": "v3",
      "path": "DIR/lib/versions/v3/choria-provisioner",
      "marks": [
        "running"
      ]
    },
    {
      "version": "v2",
      "path": "DIR/lib/versions/v2/choria-provisioner",
      "marks": [
        "rolled-back"
      ],
      "verdict": {
        "from": "v2",
        "to": "v1",
        "at": "2023-11-14T22:13:20Z",
        "outcome": "rolled-back",
        "why": "crashed"
      }
    },`},
		{name: "pin", args: "pin v1", out: "v1 is pinned: "},
		{name: "pin what is not there", args: "pin v9", code: 1, err: "choria-provisioner: v9 is not in DIR/lib/versions\n"},
		{name: "pin what was rolled back", args: "pin v2", code: 1, err: "choria-provisioner: v2 was rolled back: crashed; release it first\n"},
		{name: "unpin", args: "unpin", before: pinned, out: "v1 is no longer pinned.\n"},
		{name: "unpin nothing", args: "unpin", out: "Nothing was pinned.\n"},
		{name: "release a halt", args: "release", before: halted, out: "No longer halted (both failed): start the launcher.\n"},
		{name: "release nothing", args: "release", out: "Nothing was halted. Name the versions to be started again.\n"},
		{name: "release a version", args: "release v2 v3", out: "Lifted: v2 was rolled-back to v1 at 2023-11-14T22:13:20Z: crashed\nv3 is started here even if another instance has rolled it back.\n"},
		{name: "release --json", args: "release v2 --json", out: "{\n  \"verdicts\": [\n    {\n      \"from\": \"v2\","},
		{name: "release what is not there", args: "release v9", code: 1, err: `choria-provisioner: "v9" is neither a version that is there nor one that was rolled back` + "\n"},
		{name: "release where no launcher was", args: "release", before: nowhere, code: 1, err: "choria-provisioner: no launcher keeps its state here: stat DIR/state: no such file or directory; name the place with --state-dir\n"},
		{name: "unpin where no launcher was", args: "unpin", before: nowhere, code: 1, err: "choria-provisioner: no launcher keeps its state here: stat DIR/state: no such file or directory; name the place with --state-dir\n"},
		{name: "retire", args: "retire --keep 0", before: running, out: "Removed v2\nRemoved 1 versions, kept 2.\n"},
		{name: "retire --json", args: "retire --keep 1 --json", before: running, out: "{\n  \"kept\": [\n    \"v3\",\n    \"v2\",\n    \"v1\"\n  ],\n  \"removed\": []\n}\n"},
		{name: "retire while nothing runs", args: "retire --keep 0", code: 1, err: "choria-provisioner: retire: it is not known which version runs\n"},
		{name: "retire less than nothing", args: "retire --keep=-1", before: running, code: 1, err: "choria-provisioner: --keep is -1, less than 0\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir, flags := ownVersions(t)
			if tc.before != nil {
				tc.before(t, dir)
			}
			var stdout, stderr strings.Builder
			code := run(context.Background(), append(append([]string{"versions"}, strings.Fields(tc.args)...), flags...), strings.NewReader(""), &stdout, &stderr)
			out, err := strings.ReplaceAll(stdout.String(), dir, "DIR"), strings.ReplaceAll(stderr.String(), dir, "DIR")
			if code != tc.code || !strings.HasPrefix(out, tc.out) || err != tc.err {
				t.Errorf("exit %d, out:\n%s\nerr: %s\nnot exit %d, out:\n%s\nerr: %s", code, out, err, tc.code, tc.out, tc.err)
			}
		})
	}
}

// Without flags, the settings of the launcher count.
func TestVersions_environment(t *testing.T) {
	dir, _ := ownVersions(t)
	t.Setenv("PROVISIONER_LAUNCH_STATE_DIR", filepath.Join(dir, "state"))
	t.Setenv("PROVISIONER_LAUNCH_LIBEXEC", filepath.Join(dir, "lib"))
	t.Setenv("PROVISIONER_LAUNCH_BIN", filepath.Join(dir, "bin"))
	var stdout, stderr strings.Builder
	if code := run(context.Background(), []string{"versions", "ls"}, strings.NewReader(""), &stdout, &stderr); code != 0 || !strings.Contains(stdout.String(), "known-good") {
		t.Errorf("exit %d: %s%s", code, &stdout, &stderr)
	}
}
