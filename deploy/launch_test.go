// Package deploy_test drives the launcher script, under each shell it is meant
// for, with daemons that do what they are told.
package deploy_test

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// daemon is the program behind every version, tools the PATH of a machine that
// has nothing but busybox.
var daemon, tools string

// TestMain prepares both. Cases mostly wait, so many run at a time.
func TestMain(m *testing.M) {
	flag.Parse()
	_ = flag.Set("test.parallel", "24")
	// A signal that is ignored when the tests start, as under nohup, would be
	// ignored by every shell: one that is listened for is at its default there.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "launch-test-")
	if err == nil {
		defer os.RemoveAll(dir)
		err = prepare(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}

	return m.Run()
}

func prepare(dir string) error {
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	daemon, tools = filepath.Join(dir, "daemon"), filepath.Join(dir, "tools")
	if out, err := exec.Command("go", "build", "-o", daemon, "./testdata/daemon").CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return fmt.Errorf("%w: install the Debian package busybox", err)
	}
	if err := os.Mkdir(tools, 0o755); err != nil {
		return err
	}
	list, err := exec.Command(busybox, "--list").Output()
	if err != nil {
		return err
	}
	for _, name := range strings.Fields(string(list)) {
		if err := os.Symlink(busybox, filepath.Join(tools, name)); err != nil {
			return err
		}
	}

	return nil
}

// A shell, with the tools it is used with.
type shell struct {
	name, command, path string
}

// each runs a case under every shell, side by side with all other cases.
func each(t *testing.T, test func(t *testing.T, b *box)) {
	t.Helper()
	t.Parallel()
	for _, name := range []string{"dash", "busybox", "bash"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newBox(t, name, "box"))
		})
	}
}

// A box is a machine with the launcher: directories of its own and all
// processes that come of it.
type box struct {
	t     *testing.T
	shell shell
	dir   string
	env   map[string]string
	// before is put in front of the launcher's command line.
	before   []string
	as       *syscall.Credential
	out      *os.File
	launcher *exec.Cmd
	ended    chan error
	arrivals int
	// in is the launcher's working directory, busy a file that is held open.
	in   string
	busy *os.File
}

func newBox(t *testing.T, name, inside string) *box {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("%v: install the Debian package %s", err, name)
	}
	sh := shell{name, path, "/usr/sbin:/usr/bin:/sbin:/bin"}
	if name == "busybox" {
		sh.command, sh.path = path+" sh", tools
	}
	// Not t.TempDir, which only its owner may enter.
	dir, err := os.MkdirTemp("", "launch-"+name+"-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	b := &box{t: t, shell: sh, dir: filepath.Join(dir, inside)}
	for _, d := range []string{"state", "lib/versions", "play/plan"} {
		if err := os.MkdirAll(filepath.Join(b.dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(b.dir, "play"), 0o777); err != nil {
		t.Fatal(err)
	}
	b.env = map[string]string{
		"PATH":        sh.path,
		"PLAY":        filepath.Join(b.dir, "play"),
		"STATE_DIR":   filepath.Join(b.dir, "state"),
		"LIBEXEC":     filepath.Join(b.dir, "lib"),
		"BIN":         filepath.Join(b.dir, "bin"),
		"BACKOFF":     "0",
		"TRIAL_TICK":  "1",
		"TRIAL_BOUND": "60",
		"STOP_GRACE":  "20",
	}
	b.installLauncher(b.script())
	t.Cleanup(b.close)

	return b
}

// script is the launcher as it is in the source, for the shell of the box.
func (b *box) script() string {
	b.t.Helper()
	text, err := os.ReadFile("launch")
	if err != nil {
		b.t.Fatal(err)
	}

	return strings.Replace(string(text), "/bin/sh", b.shell.command, 1)
}

func (b *box) installLauncher(text string) {
	b.t.Helper()
	b.replace(filepath.Join(b.dir, "launch"), text, 0o755)
}

// replace writes a file by rename. Nothing is forked meanwhile: a child would
// hold the file open for writing for a moment, and nobody could execute it.
func (b *box) replace(path, text string, mode os.FileMode) {
	b.t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path+".new", []byte(text), mode); err != nil {
		b.t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		b.t.Fatal(err)
	}
}

// put writes a state file, text as it is.
func (b *box) put(name, text string) {
	b.t.Helper()
	b.replace(filepath.Join(b.dir, "state", name), text, 0o644)
}

// plan says what a version does at each of its starts.
func (b *box) plan(version string, starts ...string) {
	b.t.Helper()
	b.replace(filepath.Join(b.dir, "play/plan", version), strings.Join(starts, "\n"), 0o644)
}

// binary is the text of a version's program.
func (b *box) binary() string {
	return "#!/bin/sh\nexec '" + daemon + "' \"$0\" \"$@\"\n"
}

// folder is where a version is.
func (b *box) folder(version string) string {
	return filepath.Join(b.dir, "lib/versions", version)
}

// place puts a version there whole, without a marker.
func (b *box) place(version string) {
	b.t.Helper()
	staged := filepath.Join(b.dir, "lib/versions/.staged")
	if err := os.Mkdir(staged, 0o755); err != nil {
		b.t.Fatal(err)
	}
	b.replace(filepath.Join(staged, "choria-provisioner"), b.binary(), 0o755)
	if err := os.Rename(staged, b.folder(version)); err != nil {
		b.t.Fatal(err)
	}
}

// deliver puts a version there as the newest, which does as planned.
func (b *box) deliver(version string, starts ...string) {
	b.t.Helper()
	if len(starts) > 0 {
		b.plan(version, starts...)
	}
	b.place(version)
	b.arrivals++
	b.mark(version, strconv.Itoa(b.arrivals))
}

// mark writes the marker of a version's arrival.
func (b *box) mark(version, text string) {
	b.t.Helper()
	b.replace(filepath.Join(b.folder(version), ".arrived"), text+"\n", 0o644)
}

// proved delivers v1, which is known to be good.
func (b *box) proved(starts ...string) {
	b.t.Helper()
	b.deliver("v1", starts...)
	b.put("known-good", "v1\n")
}

// placeByHand puts the hand-placed binary there.
func (b *box) placeByHand(starts ...string) {
	b.t.Helper()
	if len(starts) > 0 {
		b.plan(byHand, starts...)
	}
	b.replace(filepath.Join(b.dir, "bin"), b.binary(), 0o755)
}

const byHand = "placed-by-hand"

// command is a launcher of the box that has not been started.
func (b *box) command(arguments ...string) *exec.Cmd {
	line := append(slices.Clone(b.before), filepath.Join(b.dir, "launch"))
	line = append(line, arguments...)
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Dir = b.in
	for name, value := range b.env {
		if name != "PATH" && name != "PLAY" && name != "USER" {
			name = "PROVISIONER_LAUNCH_" + name
		}
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	if b.as != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: b.as}
	}

	return cmd
}

// start starts the launcher.
func (b *box) start(arguments ...string) {
	b.t.Helper()
	cmd := b.command(arguments...)
	if b.out == nil {
		out, err := os.OpenFile(filepath.Join(b.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			b.t.Fatal(err)
		}
		defer out.Close()
		cmd.Stdout, cmd.Stderr = out, out
	} else {
		cmd.Stdout, cmd.Stderr = b.out, b.out
	}
	if err := cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	b.launcher, b.ended = cmd, make(chan error, 1)
	go func(ended chan error) { ended <- cmd.Wait() }(b.ended)
}

// signal sends the launcher a signal.
func (b *box) signal(s syscall.Signal) {
	b.t.Helper()
	if err := b.launcher.Process.Signal(s); err != nil {
		b.t.Fatal(err)
	}
}

// exit waits for the launcher's end and returns its exit status, -1 for a
// signal.
func (b *box) exit() int {
	b.t.Helper()
	select {
	case <-b.ended:
	case <-time.After(patience):
		b.t.Fatal("the launcher goes on")
	}

	return b.launcher.ProcessState.ExitCode()
}

// stop ends the launcher and asserts that nothing of it is left.
func (b *box) stop() {
	b.t.Helper()
	b.signal(syscall.SIGTERM)
	if code := b.exit(); code != 0 {
		b.t.Errorf("exit status %d", code)
	}
	b.nothingLeft()
}

// kill ends the launcher alone, at once.
func (b *box) kill() {
	b.t.Helper()
	b.signal(syscall.SIGKILL)
	b.exit()
}

// stopped stops one of several launchers.
func (b *box) stopped(cmd *exec.Cmd, ended chan error) {
	b.t.Helper()
	b.launcher, b.ended = cmd, ended
	b.signal(syscall.SIGTERM)
	b.want("exit status", b.exit(), 0)
}

func (b *box) nothingLeft() {
	b.t.Helper()
	b.eventually("no process is left", func() bool { return len(b.processes()) == 0 })
}

// close ends what a failed test left, by its ids, and shows what happened.
func (b *box) close() {
	if b.t.Failed() {
		log, _ := os.ReadFile(filepath.Join(b.dir, "log"))
		events, _ := os.ReadFile(filepath.Join(b.dir, "play/events"))
		b.t.Logf("log:\n%s\nevents:\n%s\nstate: %q\nprocesses: %v", log, events, b.state(), b.processes())
	}
	for range 50 {
		left := b.processes()
		if len(left) == 0 {
			return
		}
		for _, p := range left {
			_ = syscall.Kill(p.pid, syscall.SIGKILL)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// A process is one that belongs to a box; version is that of a daemon.
type process struct {
	pid     int
	command string
	version string
}

// processes are all that live and came of the box, by their environment.
func (b *box) processes() []process {
	all, _ := filepath.Glob("/proc/[0-9]*")
	var list []process
	for _, p := range all {
		environ, err := os.ReadFile(p + "/environ")
		if err != nil || !bytes.Contains(environ, []byte("PLAY="+b.env["PLAY"]+"\x00")) {
			continue
		}
		cmdline, err := os.ReadFile(p + "/cmdline")
		if err != nil || len(cmdline) == 0 {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(p))
		words := strings.Split(strings.TrimSuffix(string(cmdline), "\x00"), "\x00")
		this := process{pid: pid, command: strings.Join(words, " ")}
		// The version's script runs for a moment before it is the daemon.
		for _, w := range words {
			switch {
			case filepath.Base(w) == "choria-provisioner":
				this.version = filepath.Base(filepath.Dir(w))
			case w == b.env["BIN"]:
				this.version = byHand
			}
		}
		list = append(list, this)
	}

	return list
}

func (b *box) daemons() []process {
	return slices.DeleteFunc(b.processes(), func(p process) bool { return p.version == "" })
}

// running are the versions of which a daemon runs.
func (b *box) running() []string {
	var list []string
	for _, p := range b.daemons() {
		list = append(list, p.version)
	}

	return list
}

// daemon is the pid of the only daemon.
func (b *box) daemon() int {
	b.t.Helper()
	for _, p := range b.daemons() {
		return p.pid
	}
	b.t.Fatal("no daemon runs")

	return 0
}

// parent is the pid of a process's parent, 0 when it has ended.
func parent(pid int) int {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := bytes.Cut(stat, []byte(") "))
	f := strings.Fields(string(rest))
	if len(f) < 2 {
		return 0
	}
	ppid, _ := strconv.Atoi(f[1])

	return ppid
}

// tell sends the daemon a signal.
func (b *box) tell(s syscall.Signal) {
	b.t.Helper()
	if err := syscall.Kill(b.daemon(), s); err != nil {
		b.t.Fatal(err)
	}
}

// events are the words the daemons of a version left, or of all versions as
// "version word" when it is empty.
func (b *box) events(version string) []string {
	text, _ := os.ReadFile(filepath.Join(b.dir, "play/events"))
	var list []string
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		switch {
		case version == "":
			list = append(list, f[0]+" "+f[2])
		case f[0] == version:
			list = append(list, f[2])
		}
	}

	return list
}

// starts are the versions in the order in which they were started.
func (b *box) starts() []string {
	var list []string
	for _, e := range b.events("") {
		if v, ok := strings.CutSuffix(e, " start"); ok {
			list = append(list, v)
		}
	}

	return list
}

// state is what is in the state directory, without the launcher's own files
// about its processes.
func (b *box) state() map[string]string {
	entries, _ := os.ReadDir(filepath.Join(b.dir, "state"))
	files := map[string]string{}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") || e.Name() == "lock" || e.Name() == "running" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(b.dir, "state", e.Name()))
		if err == nil {
			files[e.Name()] = string(text)
		}
	}

	return files
}

// file is a state file's text without its last newline, empty when it is not
// there.
func (b *box) file(name string) string {
	return strings.TrimSuffix(b.state()[name], "\n")
}

// verdicts are the lines of rolled-back without their times, blanks for tabs.
func (b *box) verdicts() []string {
	var list []string
	for line := range strings.Lines(b.state()["rolled-back"]) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(f) != 5 {
			list = append(list, "unreadable "+line)
			continue
		}
		if at, err := strconv.ParseInt(f[2], 10, 64); err != nil || at < 1e9 {
			list = append(list, "no time "+line)
			continue
		}
		list = append(list, strings.Join([]string{f[0], f[1], f[3]}, " "))
	}

	return list
}

// patience is far longer than anything takes on a busy machine.
const patience = 60 * time.Second

func (b *box) eventually(what string, ok func() bool) {
	b.t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			b.t.Fatalf("not seen: %s", what)
		}
	}
}

// waits waits until the only daemon is one of the version, the launcher's child,
// and has done all its steps.
func (b *box) waits(version string) {
	b.t.Helper()
	b.eventually(version+" runs", func() bool {
		if events := b.events(""); len(events) == 0 || events[len(events)-1] != version+" wait" {
			return false
		}
		d := b.daemons()
		return len(d) == 1 && d[0].version == version && parent(d[0].pid) == b.launcher.Process.Pid
	})
}

func (b *box) want(what string, got, want any) {
	b.t.Helper()
	if g, w := fmt.Sprintf("%#v", got), fmt.Sprintf("%#v", want); g != w {
		b.t.Errorf("%s: got %s, want %s", what, g, w)
	}
}

// wentBack asserts everything that a rollback from one version to another
// leaves behind, once.
func (b *box) wentBack(from, to string) {
	b.t.Helper()
	b.eventually("verdict on "+from, func() bool { return b.file("rollback-pinned") == to && b.file("verdict") == "" })
	b.waits(to)
	b.want("verdicts", b.verdicts(), []string{from + " " + to + " rolled-back"})
	if n := b.file("start-attempts"); n != "0" && n != "" {
		b.t.Errorf("counter is %q", n)
	}
	for _, name := range []string{"trial", "trial-spent", "trial-expired", "trial-blind", "halted"} {
		if _, is := b.state()[name]; is {
			b.t.Errorf("%s is left: %q", name, b.file(name))
		}
	}
}

// wrap puts a script of a tool's name in front of the tools of the launcher.
func (b *box) wrap(tool, script string) {
	b.t.Helper()
	dir := filepath.Join(b.dir, "wrapped")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		b.t.Fatal(err)
	}
	b.replace(filepath.Join(dir, tool), "#!/bin/sh\n"+script+"\n", 0o755)
	b.env["PATH"] = dir + ":" + b.shell.path
}

// long is set for the rounds that take too long for every day.
func long() bool { return os.Getenv("LAUNCH_LONG") != "" }

// random is a source whose seed is told when the test fails; LAUNCH_SEED sets
// it.
func random(t *testing.T) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if s, err := strconv.ParseUint(os.Getenv("LAUNCH_SEED"), 10, 64); err == nil {
		seed = s
	}
	t.Logf("LAUNCH_SEED=%d", seed)

	return rand.New(rand.NewPCG(seed, 0))
}
