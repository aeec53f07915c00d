//go:build linux

// Package ownversions shows, with real programs under the real launcher, how the
// daemon's own versions come and go.
package ownversions

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/choria-provisioner/provisioner/deploy/versions"
	"github.com/choria-provisioner/provisioner/e2e/harness"
	"github.com/choria-provisioner/provisioner/internal/simfleet"
	"github.com/choria-provisioner/provisioner/status"
)

// TestMain runs all tests side by side: they mostly wait.
func TestMain(m *testing.M) {
	flag.Parse()
	_ = flag.Set("test.parallel", "8")
	os.Exit(m.Run())
}

// limit is far longer than anything takes on a busy machine.
const limit = 60 * time.Second

// programs are two builds of the daemon.
type programs struct {
	harness.Binaries
	// first and second differ in the version that was built in.
	first, second string
}

// built are the programs, for all tests that run side by side.
var built struct {
	sync.Mutex
	programs
}

func build(t testing.TB) programs {
	t.Helper()

	built.Lock()
	defer built.Unlock()
	if built.first != "" {
		return built.programs
	}
	dir, err := filepath.Abs("../../build/e2e/ownversions")
	if err != nil {
		t.Fatal(err)
	}
	p := programs{
		Binaries: harness.Binaries{SiteHelper: filepath.Join(dir, "sitehelper")},
		first:    filepath.Join(dir, "provisioner-1.0.0"),
		second:   filepath.Join(dir, "provisioner-2.0.0"),
	}
	for _, args := range [][]string{
		{"-o", p.SiteHelper, "../sitehelper"},
		{"-ldflags", "-s -w -X main.version=1.0.0", "-o", p.first, "../../cmd/choria-provisioner"},
		{"-ldflags", "-s -w -X main.version=2.0.0", "-o", p.second, "../../cmd/choria-provisioner"},
	} {
		if out, err := exec.Command("go", append([]string{"build"}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("go build %v: %v: %s", args, err, out)
		}
	}
	p.Provisioner = p.first
	built.programs = p

	return p
}

// machine is one on which a launcher keeps the daemon's versions.
type machine struct {
	t        testing.TB
	name     string
	bin      programs
	dir      string
	launcher versions.Launcher
	// env are settings of the launcher, without their prefix.
	env map[string]string
	// config and choriaConfig are the paths of the daemon's configuration.
	config, choriaConfig string
	monitor              string
	process              *harness.Process
	starts               int
	// killed is set when a daemon was, without a chance to clean up.
	killed   bool
	arrivals int
}

func newMachine(t testing.TB, bin programs, broker *simfleet.Broker, identity string, keys map[string]any) *machine {
	t.Helper()

	// Short, for sockets.
	dir, err := os.MkdirTemp("", "own-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	m := &machine{
		t: t, name: identity, bin: bin, dir: dir,
		launcher: versions.Launcher{
			StateDir: filepath.Join(dir, "state"),
			Libexec:  filepath.Join(dir, "lib"),
			Bin:      filepath.Join(dir, "by-hand"),
		},
		env:          map[string]string{"START_LIMIT": "2", "BACKOFF": "0", "TRIAL_TICK": "1", "TRIAL_BOUND": "60", "STOP_GRACE": "10"},
		config:       filepath.Join(dir, "provisioner.yaml"),
		choriaConfig: harness.ProvisionerConfig(t, broker, identity),
	}
	for _, d := range []string{m.launcher.StateDir, filepath.Join(m.launcher.Libexec, "versions"), filepath.Join(dir, "tmp")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	script, err := os.ReadFile("../../deploy/launch")
	if err != nil {
		t.Fatal(err)
	}
	m.installLauncher(string(script))

	port := freePort(t)
	m.monitor = "http://127.0.0.1:" + strconv.Itoa(port)
	config := map[string]any{
		"interval": "1m", "loglevel": "info", "site": harness.Site, "state_dir": filepath.Join(dir, "daemon"),
		"monitor_port": port, "monitor_address": "127.0.0.1",
		"token":                        broker.Token(),
		"broker_provisioning_password": broker.Password(),
	}
	if err := os.Mkdir(filepath.Join(dir, "daemon"), 0o700); err != nil {
		t.Fatal(err)
	}
	for key, value := range keys {
		config[key] = value
	}
	text, err := yaml.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	m.write(m.config, string(text), 0o600)

	return m
}

func freePort(t testing.TB) int {
	t.Helper()

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()

	return l.Addr().(*net.TCPAddr).Port
}

// write writes a file by rename. Nothing is forked meanwhile: a child would hold
// it open for writing, and nobody could execute it.
func (m *machine) write(path, text string, mode os.FileMode) {
	m.t.Helper()

	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	err := os.WriteFile(path+".new", []byte(text), mode)
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) script() string { return filepath.Join(m.dir, "launch") }

func (m *machine) installLauncher(text string) { m.write(m.script(), text, 0o755) }

// deliver puts a version in place, as the newest: a program with a few bytes more,
// so that no two versions are the same.
func (m *machine) deliver(name, program string) {
	m.t.Helper()

	text, err := os.ReadFile(program)
	if err != nil {
		m.t.Fatal(err)
	}
	m.deliverText(name, string(text)+"\n"+name)
}

// deliverScript puts a shell script in place as a version.
func (m *machine) deliverScript(name, body string) {
	m.t.Helper()
	m.deliverText(name, "#!/bin/sh\n"+body+"\n")
}

func (m *machine) deliverText(name, text string) {
	m.t.Helper()

	folder := filepath.Join(m.launcher.Libexec, "versions", name)
	staged := filepath.Join(filepath.Dir(folder), ".staged")
	if err := os.Mkdir(staged, 0o755); err != nil {
		m.t.Fatal(err)
	}
	m.write(filepath.Join(staged, versions.Binary), text, 0o755)
	if err := os.Rename(staged, folder); err != nil {
		m.t.Fatal(err)
	}
	m.arrivals++
	m.write(filepath.Join(folder, ".arrived"), strconv.Itoa(m.arrivals)+"\n", 0o644)
}

// start starts the launcher.
func (m *machine) start() {
	m.t.Helper()

	env := []string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + filepath.Join(m.dir, "tmp")}
	for name, value := range m.env {
		env = append(env, "PROVISIONER_LAUNCH_"+name+"="+value)
	}
	for name, value := range map[string]string{"STATE_DIR": m.launcher.StateDir, "LIBEXEC": m.launcher.Libexec, "BIN": m.launcher.Bin} {
		env = append(env, "PROVISIONER_LAUNCH_"+name+"="+value)
	}
	m.starts++
	dir := filepath.Join(m.dir, "run-"+strconv.Itoa(m.starts))
	if err := os.Mkdir(dir, 0o755); err != nil {
		m.t.Fatal(err)
	}
	m.process = harness.Start(m.t, m.name, dir, env, m.script(), "--config", m.config, "--choria-config", m.choriaConfig)
}

// stop ends the launcher, and checks that nothing is left.
func (m *machine) stop() {
	m.t.Helper()

	family := m.process.Descendants()
	if _, err := m.process.Terminate(limit); err != nil {
		m.t.Error(err)
	}
	if m.killed {
		// What it started has nobody left who could end it or clean up.
		family = slices.DeleteFunc(family, func(id harness.ProcessID) bool { return !isDaemon(id) })
	}
	harness.ExpectGone(m.t, 5*time.Second, family)
	if m.killed {
		return
	}
	left, err := os.ReadDir(filepath.Join(m.dir, "tmp"))
	if err != nil || len(left) > 0 {
		m.t.Errorf("temporary files of %s after its end: %v, %v", m.name, left, err)
	}
}

func isDaemon(id harness.ProcessID) bool {
	return strings.Contains(id.Command(), versions.Binary+" run")
}

// snapshot is what the launcher's files say.
func (m *machine) snapshot() *versions.Snapshot {
	m.t.Helper()

	s, err := m.launcher.Read()
	if err != nil {
		m.t.Fatal(err)
	}

	return s
}

// file is the text of a state file.
func (m *machine) file(name string) string {
	text, _ := os.ReadFile(filepath.Join(m.launcher.StateDir, name))

	return string(text)
}

// says counts the lines of the log of this start that hold a text.
func (m *machine) says(text string) int { return strings.Count(m.process.Log(), text) }

// verdicts are those of the launcher, without their times and reasons.
func (m *machine) verdicts() []string {
	m.t.Helper()

	var list []string
	for _, v := range m.snapshot().Verdicts {
		list = append(list, strings.TrimSpace(v.From+" "+v.Outcome+" "+v.To))
	}

	return list
}

// command runs a command of the program to its end.
func (m *machine) command(args ...string) (string, error) {
	cmd := exec.Command(m.bin.first, args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, stderr.String())
	}

	return string(out), nil
}

// status is what the command status shows of all instances.
func (m *machine) status() ([]status.Status, error) {
	out, err := m.command("status", "--config", m.config, "--choria-config", m.choriaConfig, "--json")
	if err != nil {
		return nil, err
	}
	var list []status.Status
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}

	return list, nil
}

// runs waits until a version runs that has proved itself, and returns what it
// says of itself.
func (m *machine) runs(name string) status.Status {
	m.t.Helper()

	began := time.Now()
	defer func() { m.t.Logf("%s ran on %s after %v", name, m.name, time.Since(began).Round(time.Millisecond)) }()
	var found status.Status
	harness.Eventually(m.t, limit, name+" runs on "+m.name+" and proves itself", func() error {
		if !m.process.Running() {
			return errors.New("the launcher ended")
		}
		if s := m.snapshot(); s.Running != name || s.KnownGood != name {
			return fmt.Errorf("%q runs and %q is known to be good", s.Running, s.KnownGood)
		}
		list, err := m.status()
		if err != nil {
			return err
		}
		i := slices.IndexFunc(list, func(s status.Status) bool {
			return s.Identity == m.name && s.Version != nil && s.Version.Running == name && s.Version.Proved
		})
		if i < 0 {
			return fmt.Errorf("no instance of it says so: %+v", list)
		}
		found = list[i]
		return nil
	})

	return found
}

func (m *machine) want(what string, got, want any) {
	m.t.Helper()
	if g, w := fmt.Sprintf("%#v", got), fmt.Sprintf("%#v", want); g != w {
		m.t.Errorf("%s: got %s, want %s", what, g, w)
	}
}
