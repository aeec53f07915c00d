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
	"strconv"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

// Site is the value of the site label on the metrics of every daemon.
const Site = "e2e"

// Daemon is the provisioner as a process.
type Daemon struct {
	*Process
	PIDFile string
	// Monitor is the base URL of its metrics and health pages.
	Monitor string
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
	// Env is the whole environment.
	Env []string
}

// StartDaemon starts the provisioner.
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
	}
	d.Process = Start(t, opts.Name, dir, opts.Env, bin.Provisioner,
		"run", "--config", file, "--choria-config", opts.ChoriaConfig, "--pid", d.PIDFile)

	return d
}

// Metric is the value of a metric with the site label alone.
func (d *Daemon) Metric(name string) (float64, error) {
	if !d.Running() {
		return 0, fmt.Errorf("the daemon ended: %v", d.err)
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

// Ready is an error until the daemon says that it is ready.
func (d *Daemon) Ready() error {
	if !d.Running() {
		return fmt.Errorf("the daemon ended: %v", d.err)
	}

	client := http.Client{Timeout: 2 * time.Second}
	response, err := client.Get(d.Monitor + "/readyz")
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(response.Body)
		return errors.New(strings.TrimSpace(string(body)))
	}

	return nil
}

// ExpectStopped checks what a daemon leaves behind: nothing. The family is what
// Descendants said while it ran.
func (d *Daemon) ExpectStopped(t testing.TB, family []ProcessID) {
	t.Helper()

	for _, id := range family {
		// the kernel may still be at it when the daemon's exit is known
		Eventually(t, time.Second, fmt.Sprintf("end of process %s", id), func() error {
			if id.Alive() {
				return errors.New("it runs")
			}
			return nil
		})
	}

	_, err := os.Stat(d.PIDFile)
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("pid file after the end: %v", err)
	}
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
