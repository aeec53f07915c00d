//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/choria-provisioner/provisioner/internal/demo"
)

// demoLimit is how long a demo may take to show something, or to end. Most of
// it is for machines that do much else.
const demoLimit = 30 * time.Second

// demoProcess is a demo that runs, as a process.
type demoProcess struct {
	t   *testing.T
	cmd *exec.Cmd
	// tmp is what TMPDIR says, to the demo and to all that it starts.
	tmp            string
	stdout, stderr string
}

// startDemo starts a demo; its output goes to files. It is killed with the test.
func startDemo(t *testing.T, args ...string) *demoProcess {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// t.TempDir is too long for a socket
	tmp, err := os.MkdirTemp("", "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(tmp) })

	dir := t.TempDir()
	d := &demoProcess{t: t, tmp: tmp, stdout: filepath.Join(dir, "stdout"), stderr: filepath.Join(dir, "stderr")}
	ctx, cancel := context.WithTimeout(context.Background(), 2*demoLimit)
	t.Cleanup(cancel)
	d.cmd = exec.CommandContext(ctx, self, append([]string{"demo"}, args...)...)
	d.cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	d.cmd.Stdout, d.cmd.Stderr = create(t, d.stdout), create(t, d.stderr)
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, pid := range d.processes() {
			t.Errorf("process %d of the demo is left", pid)
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if t.Failed() {
			t.Logf("stdout: %s\nstderr: %s", read(t, d.stdout), read(t, d.stderr))
		}
	})

	return d
}

func create(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })

	return f
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	return string(b)
}

// processes are those that run with the demo's TMPDIR: the demo, the
// provisioner and its helper, wherever their parents have gone.
func (d *demoProcess) processes() []int {
	var pids []int
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, file := range files {
		// of a process that has ended, or another user's, nothing can be read
		env, _ := os.ReadFile(file)
		if !bytes.Contains(env, []byte("TMPDIR="+d.tmp)) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil {
			pids = append(pids, pid)
		}
	}

	return pids
}

// process is the one with this command, else 0.
func (d *demoProcess) process(command string) int {
	for _, pid := range d.processes() {
		line, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
		if args := strings.Split(string(line), "\x00"); len(args) > 1 && args[1] == command {
			return pid
		}
	}

	return 0
}

// until waits for something to become true.
func (d *demoProcess) until(what string, is func() bool) {
	d.t.Helper()
	deadline := time.Now().Add(demoLimit)
	for !is() {
		if time.Now().After(deadline) {
			d.t.Fatalf("%s: not within %v", what, demoLimit)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// inTheMiddle waits until some nodes are provisioned.
func (d *demoProcess) inTheMiddle() {
	d.t.Helper()
	d.until("progress", func() bool { return strings.Contains(read(d.t, d.stdout), " a minute") })
	for _, command := range []string{"run", demo.HelperCommand} {
		if d.process(command) == 0 {
			d.t.Fatalf("no process %q runs", command)
		}
	}
}

// end waits for the demo, checks that it left nothing, and returns its code.
func (d *demoProcess) end() int {
	d.t.Helper()
	err := d.cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		d.t.Fatal(err)
	}
	if pids := d.processes(); len(pids) > 0 {
		d.t.Errorf("processes %v are left", pids)
	}
	left, err := os.ReadDir(d.tmp)
	if err != nil || len(left) > 0 {
		d.t.Errorf("files are left: %v, %v", left, err)
	}

	return d.cmd.ProcessState.ExitCode()
}

// Faults are shown with what became of them; those that exclude each other, or
// do not exist, are refused.
func TestDemoFaults(t *testing.T) {
	t.Parallel()
	d := startDemo(t, "--nodes", "20", "--json", "--fault", "csr-no-pem", "--fault", "identity-dash", "--fault", "update-broken")
	if code := d.end(); code != 0 {
		t.Errorf("code %d", code)
	}
	var s demo.Summary
	if err := json.Unmarshal([]byte(read(t, d.stdout)), &s); err != nil {
		t.Fatal(err)
	}
	if s.Provisioned != 20 || len(s.Faults) != 3 {
		t.Fatalf("%d nodes are provisioned, and there are %d faults", s.Provisioned, len(s.Faults))
	}
	if f := s.Faults[0]; f.State != "waiting" || !strings.Contains(f.Said, "it is no PEM") {
		t.Errorf("bad request: %+v", f)
	}
	if f := s.Faults[1]; f.State != "restarted" || f.Node != "--config=.example.net" {
		t.Errorf("odd name: %+v", f)
	}
	if f := s.Faults[2]; f.State != "waiting" || !strings.Contains(f.Said, "server in broken state") {
		t.Errorf("broken update: %+v", f)
	}

	for name, args := range map[string][]string{
		"there is no fault":             {"--fault", "none-such"},
		"only one of the two can be on": {"--fault", "csr-no-pem", "--fault", "key-short"},
	} {
		d := startDemo(t, args...)
		if code := d.end(); code == 0 || !strings.Contains(read(t, d.stderr), name) {
			t.Errorf("%q: code %d, %s", args, code, read(t, d.stderr))
		}
	}
}

func TestDemoJSON(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "log")
	d := startDemo(t, "--nodes", "40", "--workers", "8", "--json", "--log", log)
	if code := d.end(); code != 0 {
		t.Errorf("code %d", code)
	}

	line, more, _ := strings.Cut(read(t, d.stdout), "\n")
	if more != "" {
		t.Errorf("more than a line: %s", more)
	}
	var s demo.Summary
	if err := json.Unmarshal([]byte(line), &s); err != nil {
		t.Fatal(err)
	}
	if s.Nodes != 40 || s.Provisioned != 40 || s.Failed != 0 {
		t.Errorf("of %d nodes %d are provisioned and %d failed", s.Nodes, s.Provisioned, s.Failed)
	}
	if want := 40 / s.Seconds * 60; s.Seconds <= 0 || math.Abs(s.NodesPerMinute-want) > want/100 {
		t.Errorf("%v nodes a minute in %v seconds", s.NodesPerMinute, s.Seconds)
	}
	calls, failed := map[string]int{}, map[string]int{}
	for _, action := range []string{"choria_provision#jwt", "choria_provision#gen25519", "rpcutil#inventory", "choria_provision#configure", "choria_provision#restart"} {
		calls[action], failed[action] = 40, 0
	}
	if !maps.Equal(s.Calls, calls) || !maps.Equal(s.Errors, failed) {
		t.Errorf("calls %v, errors %v", s.Calls, s.Errors)
	}
	var fields map[string]any
	if err := json.Unmarshal([]byte(line), &fields); err != nil {
		t.Fatal(err)
	}
	keys := []string{"calls", "errors", "failed", "nodes", "nodes_per_minute", "provisioned", "seconds"}
	if got := slices.Sorted(maps.Keys(fields)); !slices.Equal(got, keys) {
		t.Errorf("keys %v", got)
	}

	said := read(t, d.stderr)
	for _, want := range []string{
		"  broker       127.0.0.1:",
		"  fleet        40 simulated nodes",
		"  provisioner  pid ", " 8 workers,",
		"  helper       demo-helper",
		"  40/40 nodes ",
		"40 of 40 nodes provisioned in ",
		"  choria_provision#restart              40        0 ",
		"  slowest call: ",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("%q is not in what people read", want)
		}
	}
	for _, never := range []string{"\x1b", "\r", "the nodes recorded"} {
		if strings.Contains(said, never) {
			t.Errorf("%q is in what people read, which is no terminal", never)
		}
	}
	if !strings.Contains(read(t, log), "The node is provisioned") {
		t.Error("the log that was to be kept says nothing of a node")
	}
}

func TestDemoCutShort(t *testing.T) {
	t.Parallel()

	for _, tt := range []struct {
		name string
		cut  func(t *testing.T, d *demoProcess)
		want string
	}{
		{"Ctrl-C", signalDemo(syscall.SIGINT), "interrupted: "},
		// the second must not end the cleaning up
		{"Ctrl-C twice", signalDemo(syscall.SIGINT, syscall.SIGINT), "interrupted: "},
		{"a service manager", signalDemo(syscall.SIGTERM), "interrupted: "},
		{"the terminal was closed", signalDemo(syscall.SIGHUP), "interrupted: "},
		{
			"the provisioner dies",
			func(t *testing.T, d *demoProcess) { kill(t, d.process("run"), syscall.SIGKILL) },
			") ended by itself: signal: killed\nThe log of the provisioner ends with:\n",
		},
		{
			// to be told from its end at our own wish
			"the provisioner is told to end by another",
			func(t *testing.T, d *demoProcess) { kill(t, d.process("run"), syscall.SIGTERM) },
			") ended by itself: exit status 0\nThe log of the provisioner ends with:\n",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d := startDemo(t, "--nodes", "1000")
			d.inTheMiddle()
			tt.cut(t, d)
			if code := d.end(); code != 1 {
				t.Errorf("code %d", code)
			}
			if got := read(t, d.stderr); !strings.Contains(got, tt.want) {
				t.Errorf("%q is not in %s", tt.want, got)
			}
		})
	}
}

func kill(t *testing.T, pid int, sig syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, sig); err != nil {
		t.Fatal(err)
	}
}

func signalDemo(signals ...syscall.Signal) func(*testing.T, *demoProcess) {
	return func(t *testing.T, d *demoProcess) {
		for _, sig := range signals {
			kill(t, d.cmd.Process.Pid, sig)
		}
	}
}

// A demo that is killed cannot clean up, but nothing goes on running.
func TestDemoKilled(t *testing.T) {
	t.Parallel()
	d := startDemo(t, "--nodes", "1000")
	d.inTheMiddle()
	kill(t, d.cmd.Process.Pid, syscall.SIGKILL)
	_ = d.cmd.Wait()
	d.until("end of all processes", func() bool { return len(d.processes()) == 0 })
}

// A reader that has seen enough, such as head, is no reason to leave anything.
func TestDemoReaderGone(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	tmp, err := os.MkdirTemp("", "")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(tmp)

	cmd := exec.Command(self, "demo", "--nodes", "1000")
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(stdout, make([]byte, 10)); err != nil {
		t.Error(err)
	}
	stdout.Close()

	_ = cmd.Wait()
	d := &demoProcess{t: t, tmp: tmp}
	left, err := os.ReadDir(tmp)
	if pids := d.processes(); cmd.ProcessState.ExitCode() != 1 || len(left) > 0 || err != nil || len(pids) > 0 {
		t.Errorf("%v; files %v, processes %v, %v: %s", cmd.ProcessState, left, pids, err, stderr.String())
	}
}

func TestDemoTimeout(t *testing.T) {
	t.Parallel()
	d := startDemo(t, "--nodes", "1000", "--timeout", "3s", "--json")
	if code := d.end(); code != 1 {
		t.Errorf("code %d", code)
	}
	if got := read(t, d.stderr); !strings.Contains(got, "of 1000 nodes, such as node-") || !strings.Contains(got, "were not provisioned within 3s (--timeout)\n") {
		t.Errorf("said: %s", got)
	}
	var s demo.Summary
	if err := json.Unmarshal([]byte(read(t, d.stdout)), &s); err != nil || s.Failed == 0 || s.Failed+s.Provisioned != 1000 {
		t.Errorf("summary %+v, %v", s, err)
	}
}

func TestDemoFlags(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	port := strconv.Itoa(busy.Addr().(*net.TCPAddr).Port)

	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"--nodes=0"}, "--nodes is 0 and must be 1 to 20000"},
		{[]string{"--nodes=-1"}, "--nodes is -1 and must be 1 to 20000"},
		// memory would be gone first
		{[]string{"--nodes=100000000"}, "--nodes is 100000000 and must be 1 to 20000"},
		{[]string{"--nodes=many"}, `strconv.ParseFloat: parsing "many": invalid syntax`},
		// 0 is the default in a configuration file, and nobody means it here
		{[]string{"--workers=0"}, "--workers is 0 and must be 1 to 1000"},
		{[]string{"--workers=-1"}, "--workers is -1 and must be 1 to 1000"},
		{[]string{"--workers=1001"}, "--workers is 1001 and must be 1 to 1000"},
		{[]string{"--timeout=-1s"}, "--timeout is -1s and must not be negative"},
		{[]string{"--monitor-port=65536"}, "--monitor-port is 65536 and must be 1 to 65535"},
		{[]string{"--nodes=0", "--workers=2000"}, "--nodes is 0 and must be 1 to 20000\n--workers is 2000 and must be 1 to 1000"},
		{[]string{"--nodes=1", "--monitor-port", port}, "port " + port + " is in use: choose another --monitor-port, or none for any that is free"},
		{[]string{"--nodes=1", "--log", filepath.Join(t.TempDir(), "absent", "log")}, "absent/log: no such file or directory"},
	} {
		t.Run(strings.Join(tt.args, " "), func(t *testing.T) {
			tmp := t.TempDir()
			t.Setenv("TMPDIR", tmp)
			code, _, stderr := invoke(t, "", append([]string{"demo"}, tt.args...)...)
			if code != 1 || !strings.Contains(stderr, tt.want) {
				t.Errorf("code %d: %s", code, stderr)
			}
			if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
				t.Errorf("files are left: %v, %v", left, err)
			}
		})
	}
}
