//go:build linux

package harness

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

// ExitLimit is how long the daemon may take to exit, as it promises; patience is
// what it is given in tests that run beside others.
const (
	ExitLimit = 2 * time.Second
	patience  = 20 * time.Second
)

// Site is the value of the site label on the metrics of every daemon.
const Site = "e2e"

// Daemon is the provisioner as a process.
type Daemon struct {
	*Process
	PIDFile string
	// Monitor is the base URL of its metrics and health pages.
	Monitor string
	// TempDir is what TMPDIR says.
	TempDir string
}

// DaemonOptions say what a daemon runs with.
type DaemonOptions struct {
	// Name is the file name of its log; two daemons of one test differ.
	Name string
	// Config is the configuration file; interval, log, site, state directory
	// and monitoring are set by StartDaemon unless they are there.
	Config map[string]any
	// ChoriaConfig is the path of the Choria client configuration.
	ChoriaConfig string
	// BareEnvironment starts the daemon with no environment at all; else it has
	// the PATH of the test, a TMPDIR of its own, and nothing else.
	BareEnvironment bool
}

// StartDaemon starts the provisioner. One that still runs at the end of its test
// is terminated as TerminateDaemon does.
func StartDaemon(t testing.TB, bin Binaries, opts DaemonOptions) *Daemon {
	t.Helper()

	dir := t.TempDir()
	port := freePort(t)
	config := map[string]any{
		"interval":        "1m",
		"loglevel":        "debug",
		"site":            Site,
		"state_dir":       dir,
		"monitor_port":    port,
		"monitor_address": "127.0.0.1",
	}
	for key, value := range opts.Config {
		config[key] = value
	}
	text, err := yaml.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "provisioner.yaml")
	err = os.WriteFile(file, text, 0o600)
	if err != nil {
		t.Fatal(err)
	}

	d := &Daemon{
		PIDFile: filepath.Join(dir, "provisioner.pid"),
		Monitor: "http://127.0.0.1:" + strconv.Itoa(port),
		TempDir: shortTempDir(t),
	}
	var env []string
	if !opts.BareEnvironment {
		env = []string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + d.TempDir}
	}
	d.Process = Start(t, opts.Name, dir, env, bin.Provisioner,
		"run", "--config", file, "--choria-config", opts.ChoriaConfig, "--pid", d.PIDFile)
	t.Cleanup(func() {
		if d.Running() {
			TerminateDaemon(t, d)
		}
	})

	Eventually(t, 10*time.Second, "start of "+opts.Name, func() error {
		_, err := d.Metric("choria_provisioner_paused")
		return err
	})

	return d
}

// Metric is the value of a metric with the site label alone.
func (d *Daemon) Metric(name string) (float64, error) {
	if !d.Running() {
		return 0, fmt.Errorf("%s: %w: %v", d.Name, errEnded, d.err)
	}

	client := http.Client{Timeout: 2 * time.Second}
	response, err := client.Get(d.Monitor + "/metrics")
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err
	}

	sample := fmt.Sprintf("%s{site=%q} ", name, Site)
	for line := range strings.SplitSeq(string(body), "\n") {
		value, ok := strings.CutPrefix(line, sample)
		if ok {
			return strconv.ParseFloat(value, 64)
		}
	}

	return 0, fmt.Errorf("%s/metrics has no %s", d.Monitor, name)
}

// ExpectMetric is an error until the metric has the value.
func (d *Daemon) ExpectMetric(name string, want float64) error {
	got, err := d.Metric(name)
	if err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("%s is %v, not %v", name, got, want)
	}

	return nil
}

// TerminateDaemon sends SIGTERM and checks that the daemon exits and leaves
// nothing: no process that it started, no pid file, no temporary files. Each of
// programs must be part of the command line of a process that it had.
func TerminateDaemon(t testing.TB, d *Daemon, programs ...string) {
	t.Helper()
	terminate(t, d, patience, programs...)
}

// TerminateInTime is TerminateDaemon within ExitLimit, for tests that nothing
// runs beside.
func TerminateInTime(t testing.TB, d *Daemon, programs ...string) {
	t.Helper()
	terminate(t, d, ExitLimit, programs...)
}

func terminate(t testing.TB, d *Daemon, limit time.Duration, programs ...string) {
	t.Helper()

	family := d.Descendants()
	for _, program := range programs {
		if !slices.ContainsFunc(family, func(id ProcessID) bool { return strings.Contains(id.Command(), program) }) {
			t.Errorf("%s runs no %s, but %v", d.Name, program, family)
		}
	}

	took, err := d.Terminate(limit)
	if err != nil {
		t.Error(err)
	}
	t.Logf("%s exited after %v", d.Name, took.Round(time.Millisecond))

	// the kernel may still be at it when the daemon's exit is known
	ExpectGone(t, time.Second, family)
	_, err = os.Stat(d.PIDFile)
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("pid file of %s after its end: %v", d.Name, err)
	}
	left, err := os.ReadDir(d.TempDir)
	if err != nil || len(left) > 0 {
		t.Errorf("temporary files of %s after its end: %v, %v", d.Name, left, err)
	}
}

// shortTempDir is a directory for Unix sockets, whose paths have 107 bytes at
// most; t.TempDir is too long with the name of the test in it.
func shortTempDir(t testing.TB) string {
	t.Helper()

	dir, err := os.MkdirTemp("", "e2e-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := os.RemoveAll(dir)
		if err != nil {
			t.Error(err)
		}
	})

	return dir
}

// freePort is a TCP port that was free a moment ago.
func freePort(t testing.TB) int {
	t.Helper()

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()

	return listener.Addr().(*net.TCPAddr).Port
}
