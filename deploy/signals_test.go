package deploy_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Whatever ends the launcher ends the daemon first, as TERM; the launcher waits
// for it and is gone soon after.
func TestStop(t *testing.T) {
	t.Parallel()
	term, kill := []string{"terminated"}, []string(nil)
	for name, test := range map[string]struct {
		signals []syscall.Signal
		plan    string
		told    []string
	}{
		"TERM":           {[]syscall.Signal{syscall.SIGTERM}, "wait", term},
		"INT":            {[]syscall.Signal{syscall.SIGINT}, "wait", term},
		"HUP":            {[]syscall.Signal{syscall.SIGHUP}, "wait", term},
		"QUIT":           {[]syscall.Signal{syscall.SIGQUIT}, "wait", term},
		"TERM twice":     {[]syscall.Signal{syscall.SIGTERM, syscall.SIGTERM}, "deaf wait", term},
		"INT, then TERM": {[]syscall.Signal{syscall.SIGINT, syscall.SIGTERM}, "deaf wait", term},
		"a deaf daemon":  {[]syscall.Signal{syscall.SIGTERM}, "deaf wait", term},
		"deaf to all":    {[]syscall.Signal{syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGINT, syscall.SIGTERM}, "deaf wait", kill},
	} {
		for _, trial := range []bool{false, true} {
			t.Run(name+map[bool]string{true: ", on trial"}[trial], func(t *testing.T) {
				each(t, func(t *testing.T, b *box) {
					version := "v1"
					b.proved(test.plan)
					if trial {
						version = "v2"
						b.deliver("v2", test.plan)
					}
					deaf := strings.HasPrefix(test.plan, "deaf")
					if deaf {
						b.env["STOP_GRACE"] = "3"
					}
					b.start()
					b.waits(version)
					// Old enough not to be told twice.
					time.Sleep(3500 * time.Millisecond)
					begin := time.Now()
					for _, s := range test.signals {
						b.signal(s)
						time.Sleep(300 * time.Millisecond)
					}
					b.want("exit status", b.exit(), 0)
					took := time.Since(begin)
					b.nothingLeft()
					if deaf && (took < 2500*time.Millisecond || took > 10*time.Second) {
						t.Errorf("a deaf daemon was killed after %v", took)
					}
					if !deaf && took > 4*time.Second {
						t.Errorf("gone after %v", took)
					}
					told := b.events(version)[2:] // start, wait
					if test.told != nil {
						b.want("told", told[len(told)-1:], test.told)
						b.want("times told", len(told), 1)
					}
					b.want("verdicts", b.verdicts(), []string(nil))
					b.want("counter", b.file("start-attempts"), "")
				})
			})
		}
	}
}

// A stop in a wait ends the wait; in the grace of an expired trial it changes
// nothing about the verdict.
func TestStopWhileWaiting(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		plan    string
		ready   func(b *box) bool
		verdict []string
	}{
		"backoff": {"crash", func(b *box) bool { return b.file("start-attempts") == "1" }, nil},
		"grace": {"deaf wait", func(b *box) bool {
			e := b.events("v2")
			return len(e) > 0 && e[len(e)-1] == "terminated"
		}, []string{"v2 v1 rolled-back"}},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, b *box) {
				b.env["BACKOFF"], b.env["TRIAL_BOUND"], b.env["STOP_GRACE"] = "60", "2", "3"
				b.proved()
				b.deliver("v2", test.plan)
				b.start()
				b.eventually(name, func() bool { return test.ready(b) })
				begin := time.Now()
				b.stop()
				if took := time.Since(begin); took > 3*time.Second+4*time.Second {
					t.Errorf("gone after %v", took)
				}
				b.want("verdicts", b.verdicts(), test.verdict)
				b.want("starts", b.starts(), []string{"v2"})
			})
		})
	}
}

// TERM at any moment of a start: nothing is left, and the signal is not lost to
// a daemon that is a shell still. Were it lost, the grace would have to pass.
func TestStopAtAnyMoment(t *testing.T) {
	rounds := 6
	if long() {
		rounds = 200
	}
	each(t, func(t *testing.T, b *box) {
		rng := random(t)
		b.env["STOP_GRACE"] = "50"
		b.proved("wait")
		for range rounds {
			_ = os.Remove(filepath.Join(b.dir, "play/events"))
			b.start()
			time.Sleep(time.Duration(rng.IntN(120)) * time.Millisecond)
			begin := time.Now()
			b.signal(syscall.SIGTERM)
			_ = b.exit() // killed by it, where it came before the trap
			b.nothingLeft()
			if took := time.Since(begin); took > 20*time.Second {
				t.Fatalf("gone after %v", took)
			}
			b.want("counter", b.file("start-attempts"), "")
		}
	})
}

// A launcher that was killed leaves its daemon behind. The next one stops it
// before it starts its own.
func TestOrphan(t *testing.T) {
	each(t, func(t *testing.T, b *box) {
		b.env["STOP_GRACE"] = "1"
		b.proved("deaf wait", "wait")
		b.start()
		b.waits("v1")
		orphan := b.daemon()
		b.kill()
		b.want("running", b.running(), []string{"v1"})
		b.start()
		b.eventually("second start", func() bool { return len(b.starts()) == 2 })
		b.waits("v1")
		if b.daemon() == orphan {
			t.Error("the orphan goes on")
		}
		b.stop()
	})
}

// A second launcher waits until the first has ended, and starts nothing.
func TestSecondLauncher(t *testing.T) {
	each(t, func(t *testing.T, b *box) {
		b.proved("wait")
		b.start()
		b.waits("v1")
		first, firstEnded := b.launcher, b.ended

		b.start()
		second, secondEnded := b.launcher, b.ended
		time.Sleep(2 * time.Second)
		b.want("starts", b.starts(), []string{"v1"})
		b.stopped(second, secondEnded)

		b.start()
		third, thirdEnded := b.launcher, b.ended
		b.stopped(first, firstEnded)
		b.launcher, b.ended = third, thirdEnded
		b.eventually("it takes over", func() bool { return len(b.starts()) == 2 })
		b.waits("v1")
		b.stop()
		if _, err := os.Lstat(filepath.Join(b.dir, "state/lock")); err == nil {
			t.Error("the lock is left")
		}
	})
}

// The lock of a process that is gone, or of another one by now, is none.
func TestStaleLock(t *testing.T) {
	t.Parallel()
	for name, holder := range map[string]string{
		"gone":            "2147483646:1",
		"another process": strconv.Itoa(os.Getpid()) + ":1",
		"unreadable":      "../x y",
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, b *box) {
				for _, lock := range []string{"lock", "lock.next"} {
					if err := os.Symlink(holder, filepath.Join(b.dir, "state", lock)); err != nil {
						t.Fatal(err)
					}
				}
				b.proved("wait")
				b.start()
				b.waits("v1")
				if got, _ := os.Readlink(filepath.Join(b.dir, "state/lock")); !strings.HasPrefix(got, strconv.Itoa(b.launcher.Process.Pid)+":") {
					t.Errorf("the lock is held by %q", got)
				}
				b.stop()
			})
		})
	}
}

// A log that nobody reads any more ends neither the launcher nor its work.
func TestClosedLog(t *testing.T) {
	each(t, func(t *testing.T, b *box) {
		read, write, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		_ = read.Close()
		defer write.Close()
		b.out = write
		b.proved()
		b.deliver("v2", "crash")
		b.start()
		b.wentBack("v2", "v1")
		b.stop()
	})
}
