//go:build linux

package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Process is a program under test. It is gone when its test ends, with every
// process it started, and its log is shown when the test failed.
type Process struct {
	Name string
	ID   ProcessID

	logFile string
	cmd     *exec.Cmd
	ended   chan struct{}
	// err is how the process ended; read it after ended is closed.
	err error
}

// ProcessID is a process that is told from a later one with the same pid.
type ProcessID struct {
	PID int
	// parent is the pid of the process that started it.
	parent int
	// start is the start time in clock ticks since boot (field 22 of
	// /proc/PID/stat). Executing another program does not change it.
	start string
}

// Start runs a program in the directory dir, which is its own, with exactly the
// environment env. Its output goes to a file there.
func Start(t testing.TB, name, dir string, env []string, path string, args ...string) *Process {
	t.Helper()

	p := &Process{
		Name:    name,
		logFile: filepath.Join(dir, name+".log"),
		cmd:     exec.Command(path, args...),
		ended:   make(chan struct{}),
	}

	// a file and not a pipe: it outlives this process, and a child that keeps
	// it open holds nobody up
	out, err := os.OpenFile(p.logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatalf("log of %s: %v", name, err)
	}
	defer out.Close()

	p.cmd.Dir = dir
	p.cmd.Stdout = out
	p.cmd.Stderr = out
	// nil would be the environment of the test
	p.cmd.Env = append([]string{}, env...)
	// for the day on which the test dies without its clean-up
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}

	started := make(chan error, 1)
	go func() {
		// the parent of Pdeathsig is the thread that started the process
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()

		err := p.cmd.Start()
		if err != nil {
			started <- err
			return
		}
		// before Wait, for until then there is something to read
		stat, err := readStat(p.cmd.Process.Pid)
		p.ID = stat.id
		started <- err

		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	err = <-started
	if err != nil {
		t.Fatalf("starting %s: %v", name, err)
	}

	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("log of %s (pid %d):\n%s", name, p.ID.PID, excerpt(p.Log()))
		}
	})

	return p
}

// Log is what the process has written so far.
func (p *Process) Log() string {
	b, err := os.ReadFile(p.logFile)
	if err != nil {
		return err.Error()
	}

	return string(b)
}

// Running says whether the process has not ended.
func (p *Process) Running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// Kill ends the process and all it started, at once and without a chance to
// clean up, and waits until it is gone.
func (p *Process) Kill() {
	family := p.Descendants()
	p.ID.kill()
	<-p.ended
	// again for what it started meanwhile
	for _, id := range append(family, p.Descendants()...) {
		id.kill()
	}
}

// KillAlone kills the process without a chance to clean up and checks that its
// children end by themselves. Those below have nobody left who could end them,
// and are killed as well.
func (p *Process) KillAlone(t testing.TB) {
	t.Helper()

	family := p.Descendants()
	defer p.Kill()

	p.ID.kill()
	<-p.ended
	ExpectGone(t, time.Second, slices.DeleteFunc(slices.Clone(family), func(id ProcessID) bool { return id.parent != p.ID.PID }))
}

// Terminate sends SIGTERM and returns how long the process took to exit; it is
// an error when that was longer than limit or the exit code is not 0.
func (p *Process) Terminate(limit time.Duration) (time.Duration, error) {
	return p.End(syscall.SIGTERM, limit)
}

// End is Terminate with another signal.
func (p *Process) End(sig syscall.Signal, limit time.Duration) (time.Duration, error) {
	begin := time.Now()
	err := p.cmd.Process.Signal(sig)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", p.Name, err)
	}

	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-p.ended:
	case <-timer.C:
		return time.Since(begin), fmt.Errorf("%s still runs %v after %s", p.Name, limit, unix.SignalName(sig))
	}
	if p.err != nil {
		return time.Since(begin), fmt.Errorf("%s ended by %s: %w", p.Name, unix.SignalName(sig), p.err)
	}

	return time.Since(begin), nil
}

// Again runs the very same command line to its end and returns what it printed.
func (p *Process) Again(limit time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	again := exec.CommandContext(ctx, p.cmd.Path, p.cmd.Args[1:]...)
	again.Dir, again.Env = p.cmd.Dir, p.cmd.Env
	out, err := again.CombinedOutput()

	return string(out), err
}

// Descendants are the running children of the process, their children, and so
// on. Those whose parent has ended are known by the directory they work in,
// which is no other process's.
func (p *Process) Descendants() []ProcessID {
	var inDir []ProcessID
	children := map[int][]ProcessID{}
	entries, _ := filepath.Glob("/proc/[0-9]*")
	for _, entry := range entries {
		pid, err := strconv.Atoi(filepath.Base(entry))
		if err != nil {
			continue
		}
		stat, err := readStat(pid)
		if err != nil {
			continue // it ended meanwhile
		}
		children[stat.id.parent] = append(children[stat.id.parent], stat.id)
		dir, err := os.Readlink(entry + "/cwd")
		if err == nil && dir == p.cmd.Dir {
			inDir = append(inDir, stat.id)
		}
	}

	var found []ProcessID
	add := func(ids []ProcessID) {
		for _, id := range ids {
			if id != p.ID && !slices.Contains(found, id) {
				found = append(found, id)
			}
		}
	}
	add(inDir)
	if p.ID.Alive() {
		add(children[p.ID.PID])
	}
	// found grows on the way
	for i := 0; i < len(found); i++ {
		add(children[found[i].PID])
	}

	return found
}

// Alive says whether the process still runs. One that only waits for its parent
// to take note of its end does not.
func (id ProcessID) Alive() bool {
	stat, err := readStat(id.PID)

	return err == nil && stat.id.start == id.start && stat.state != "Z" && stat.state != "X"
}

// Command is the command line of the process; empty when it ended.
func (id ProcessID) Command() string {
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", id.PID))
	if err != nil {
		return ""
	}

	return strings.TrimSpace(strings.ReplaceAll(string(cmdline), "\x00", " "))
}

func (id ProcessID) String() string {
	return fmt.Sprintf("%d (%s)", id.PID, id.Command())
}

func (id ProcessID) kill() {
	if id.Alive() {
		_ = syscall.Kill(id.PID, syscall.SIGKILL)
	}
}

// ExpectGone checks that processes end within limit.
func ExpectGone(t testing.TB, limit time.Duration, ids []ProcessID) {
	t.Helper()

	for _, id := range ids {
		Eventually(t, limit, "end of process "+id.String(), func() error {
			if id.Alive() {
				return errors.New("it runs")
			}
			return nil
		})
	}
}

// procStat is the part of /proc/PID/stat that is of use here (proc(5)).
type procStat struct {
	id    ProcessID
	state string
}

func readStat(pid int) (procStat, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return procStat{}, err
	}

	// the second field is the program's name in parentheses and may itself
	// hold spaces and parentheses
	_, rest, ok := cutLast(string(b), ") ")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 20 {
		return procStat{}, errors.New("unreadable stat")
	}
	parent, err := strconv.Atoi(fields[1])
	if err != nil {
		return procStat{}, err
	}

	return procStat{id: ProcessID{PID: pid, parent: parent, start: fields[19]}, state: fields[0]}, nil
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}

	return s[:i], s[i+len(sep):], true
}

// excerpt is the beginning and the end of a text that may be long.
func excerpt(s string) string {
	const head, tail = 100, 200
	lines := strings.SplitAfter(s, "\n")
	left := len(lines) - head - tail
	if left <= 0 {
		return s
	}

	return fmt.Sprintf("%s… %d lines left out\n%s",
		strings.Join(lines[:head], ""), left, strings.Join(lines[head+left:], ""))
}
