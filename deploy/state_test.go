package deploy_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A setting that cannot be read is the default; the launcher goes on.
func TestSettings(t *testing.T) {
	t.Parallel()
	defaults := map[string]string{"START_LIMIT": "3", "BACKOFF": "5", "TRIAL_BOUND": "600", "TRIAL_TICK": "5", "STOP_GRACE": "20", "RUN_ONCE": ""}
	for value, want := range map[string]string{
		"007":                     "7", // octal is not meant
		"08":                      "8", // and would be an error here
		" 4\t":                    "4",
		"00000000000000000000009": "9", // 23 digits, all but one of them zeros
		"12345678901234567890123": "",  // 23 digits
		"three":                   "",
		"5 minutes":               "",
		"  ":                      "",
		"-1":                      "",
		"1.5":                     "",
		"0x10":                    "",
		"2+2":                     "",
		"*":                       "",
		"$(exit 1)":               "",
		"":                        "",
	} {
		t.Run(value, func(t *testing.T) {
			each(t, func(t *testing.T, b *box) {
				for name := range defaults {
					b.env[name] = value
				}
				b.placeByHand()
				b.start()
				b.waits(byHand)
				environ, err := os.ReadFile(filepath.Join(b.dir, "play/environ"))
				if err != nil {
					t.Fatal(err)
				}
				for name, text := range defaults {
					if want != "" && name != "RUN_ONCE" {
						text = want
					}
					if !strings.Contains(string(environ)+"\x00", "PROVISIONER_LAUNCH_"+name+"="+text+"\x00") {
						t.Errorf("%s is not %q", name, text)
					}
				}
				b.stop()
			})
		})
	}
}

// What a state file holds for certain is used, the rest is as if it were not
// there. v1 is known to be good, v2 proved nothing, and crashes.
func TestStateFiles(t *testing.T) {
	t.Parallel()
	bar := "v2\tv1\t1700000000\trolled-back\tcrashed"
	for name, test := range map[string]struct {
		file, text string
		// last is what runs in the end, started how often v2 is started.
		last    string
		started int
	}{
		"counter: 23 digits":                       {"start-attempts", "12345678901234567890123\n", "v1", 3},
		"counter: a word":                          {"start-attempts", "two\n", "v1", 3},
		"counter: blanks":                          {"start-attempts", " \t \n", "v1", 3},
		"counter: octal":                           {"start-attempts", "08\n", "v1", 1},
		"counter: leading zeros":                   {"start-attempts", "00000000000000000000001\n", "v1", 2},
		"counter: CRLF, trailing word":             {"start-attempts", "1 failure\r\n", "v1", 2},
		"counter: no newline":                      {"start-attempts", "1", "v1", 2},
		"counter: empty":                           {"start-attempts", "", "v1", 3},
		"counter: an expression":                   {"start-attempts", "a[$(exit 1)]\n", "v1", 3},
		"known-good: CRLF":                         {"known-good", "v1\r\n", "v1", 3},
		"known-good: no newline":                   {"known-good", "v1", "v1", 3},
		"known-good: trailing words":               {"known-good", "  v1 since monday\n", "v1", 3},
		"known-good: a path":                       {"known-good", "../versions/v1\n", byHand, 3},
		"known-good: a pattern":                    {"known-good", "v*\n", byHand, 3},
		"known-good: empty":                        {"known-good", "", byHand, 3},
		"pinned: CRLF":                             {"pinned", "v1\r\n", "v1", 0},
		"pinned: trailing words":                   {"pinned", "v1 until friday", "v1", 0},
		"pinned: an option":                        {"pinned", "-e\n", "v1", 3},
		"pinned: a path":                           {"pinned", "./v1\n", "v1", 3},
		"pinned: to a barred version":              {"pinned", "v0\n", "v1", 3},
		"rollback pin: CRLF":                       {"rollback-pinned", "v1\r\n", "v1", 0}, // v0, which is barred, came last
		"rollback arrival: newest":                 {"rollback-arrival", "1000000000000002\n", "v1", 3},
		"rollback arrival: 23 digits":              {"rollback-arrival", "12345678901234567890123\n", "v1", 3},
		"verdicts: one":                            {"rolled-back", bar + "\n", "v1", 0},
		"verdicts: CRLF":                           {"rolled-back", bar + "\r\n", "v1", 0},
		"verdicts: no last newline":                {"rolled-back", "vx\tv1\t1\trolled-back\t\n" + bar, "v1", 0},
		"verdicts: torn in the why":                {"rolled-back", bar[:len(bar)-3], "v1", 0},
		"verdicts: torn in the outcome":            {"rolled-back", bar[:strings.Index(bar, "led-back")], "v1", 0},
		"verdicts: torn in the time":               {"rolled-back", bar[:8], "v1", 0},
		"verdicts: torn in the name":               {"rolled-back", "v2", "v1", 3}, // may have been v22
		"verdicts: a bare name":                    {"rolled-back", "\nv2\n", "v1", 0},
		"verdicts: halted bars nothing":            {"rolled-back", "v2\t\t1700000000\thalted\tfailed\n", "v1", 3},
		"verdicts: a torn one of the good version": {"rolled-back", "v1\t", "v1", 3},
		"trial: words":                             {"trial", "v2 yesterday\n", "v1", 3},
		"trial: 23 digits":                         {"trial", "v2 12345678901234567890123\n", "v1", 3},
		"spent: 23 digits":                         {"trial-spent", "v2 12345678901234567890123 08\n", "v1", 3},
		"spent: words":                             {"trial-spent", "v2 a[0] $x\n", "v1", 3},
		"verdict: torn":                            {"verdict", "1000000000000002\tv2\tv1\n", "v1", 3},
		"running: words":                           {"running", "v2 one two\n", "v1", 3},
		"running: another's process":               {"running", "v2 " + strconv.Itoa(os.Getpid()) + " 1\n", "v1", 3},
		"expired: another version":                 {"trial-expired", "v3\n", "v1", 3},
		"expired: this one":                        {"trial-expired", "v2\r\n", "v1", 0},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, b *box) {
				b.placeByHand("wait")
				b.proved("wait")
				b.deliver("v2", "crash")
				b.deliver("v0", "crash")
				if test.file != "rolled-back" {
					b.put("rolled-back", "v0\tv1\t1700000000\trolled-back\tcrashed\n")
				} else if err := os.RemoveAll(b.folder("v0")); err != nil {
					t.Fatal(err)
				}
				b.put(test.file, test.text)
				b.start()
				b.waits(test.last)
				started := 0
				for _, v := range b.starts() {
					if v == "v2" {
						started++
					}
				}
				b.want("starts of v2", started, test.started)
				if _, err := os.Stat(filepath.Join(b.dir, "state/halted")); err == nil {
					t.Errorf("halted: %q", b.file("halted"))
				}
				b.stop()
			})
		})
	}
}

// A verdict is added to what is certain; nothing is lost and nothing torn
// becomes whole.
func TestVerdictIsAdded(t *testing.T) {
	each(t, func(t *testing.T, b *box) {
		b.env["START_LIMIT"] = "1"
		b.proved()
		b.deliver("v2", "crash")
		b.put("rolled-back", "a\tb\t1700000000\trolled-back\t100% \\n\r\nv")
		b.start()
		b.waits("v1")
		b.want("verdicts", b.verdicts(), []string{"a b rolled-back", "v2 v1 rolled-back"})
		if !strings.Contains(b.file("rolled-back"), "100% \\n\n") {
			t.Errorf("changed: %q", b.file("rolled-back"))
		}
		b.stop()
	})
}

// steps is the program of a tool that kills the launcher before or after its
// work, at the step that PLAY/kill names ("12 before").
const steps = `n=$(cat "$PLAY/steps" 2>/dev/null)
n=$((n + 1))
echo "$n" >"$PLAY/steps"
read -r at when <"$PLAY/kill"
if [ "$n $when" = "$at before" ]; then
	kill -KILL "$(cat "$PLAY/launcher")"
	exit 1
fi
%s "$@"
status=$?
[ "$n $when" != "$at after" ] || kill -KILL "$(cat "$PLAY/launcher")"
exit $status`

// interrupted prepares a box whose launcher is killed at a step.
func (b *box) interrupted(at int, when string) {
	b.t.Helper()
	b.before = []string{"/bin/sh", "-c", `echo "$$" >"$PLAY/launcher"; exec "$@"`, "sh"}
	for _, tool := range []string{"mv", "rm", "ln"} {
		real := "/bin/" + tool
		if b.shell.name == "busybox" {
			real = filepath.Join(tools, tool)
		}
		b.wrap(tool, "PATH=/usr/bin:/bin\n"+fmt.Sprintf(steps, real))
	}
	b.replace(filepath.Join(b.dir, "play/kill"), fmt.Sprintln(at, when), 0o644)
}

// Killed at any step of its work, the launcher ends where it would have ended:
// here v2 is left for v1, which fails as well.
func TestKilledAtEveryStep(t *testing.T) {
	t.Parallel()
	scenario := func(b *box) {
		b.env["START_LIMIT"] = "1"
		b.proved("crash")
		b.deliver("v2", "crash")
		b.start()
	}
	// masked is the state without its times.
	masked := func(b *box) map[string]string {
		s := b.state()
		s["rolled-back"] = strings.Join(b.verdicts(), "\n")
		return s
	}
	for i, name := range []string{"dash", "busybox", "bash"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			whole := newBox(t, name, "box")
			whole.interrupted(0, "never")
			scenario(whole)
			whole.want("exit status", whole.exit(), 0)
			whole.want("verdicts", whole.verdicts(), []string{"v2 v1 rolled-back", "v1  halted"})
			text, err := os.ReadFile(filepath.Join(whole.dir, "play/steps"))
			if err != nil {
				t.Fatal(err)
			}
			last, err := strconv.Atoi(strings.TrimSpace(string(text)))
			if err != nil || last < 20 {
				t.Fatalf("%d steps, %v", last, err)
			}
			t.Logf("%d steps", last)
			for step := range last {
				for j, when := range []string{"before", "after"} {
					// Between them the shells go through all.
					if !long() && (2*step+j)%3 != i {
						continue
					}
					t.Run(fmt.Sprintf("%s step %d", when, step+1), func(t *testing.T) {
						t.Parallel()
						b := newBox(t, name, "box")
						b.interrupted(step+1, when)
						scenario(b)
						switch code := b.exit(); code {
						case -1:
							b.interrupted(0, "never")
							b.start()
							b.want("exit status", b.exit(), 0)
						case 0: // the step came after the end of a run that needed fewer
						default:
							t.Errorf("exit status %d", code)
						}
						b.want("state", masked(b), masked(whole))
						if n := len(b.starts()); n > 3 {
							t.Errorf("started: %q", b.starts())
						}
						b.nothingLeft()
					})
				}
			}
		})
	}
}

// The same for a trial whose time is up, and with daemons that go on when the
// launcher is gone: never do two run.
func TestKilledInAnExpiringTrial(t *testing.T) {
	t.Parallel()
	rounds := 2
	if long() {
		rounds = 40
	}
	for round := range rounds {
		t.Run(strconv.Itoa(round), func(t *testing.T) {
			each(t, func(t *testing.T, b *box) {
				b.env["TRIAL_BOUND"], b.env["STOP_GRACE"] = "2", "1"
				b.proved("wait")
				b.deliver("v2", "deaf wait")
				rng := random(t)
				for range 3 {
					b.start()
					time.Sleep(time.Duration(rng.IntN(2500)) * time.Millisecond)
					if n := len(b.running()); n > 1 {
						t.Errorf("%d daemons run", n)
					}
					b.kill()
				}
				b.start()
				b.eventually("verdict", func() bool { return b.file("rollback-pinned") == "v1" })
				b.wentBack("v2", "v1")
				b.stop()
			})
		})
	}
}

// nobody is the launcher's user where its state directory is not to be written,
// because root may write everywhere.
func (b *box) nobody() {
	if os.Geteuid() == 0 {
		b.as = &syscall.Credential{Uid: 65534, Gid: 65534}
	}
}

// Without room for its state the launcher never stops a healthy daemon, and goes
// back from one that crashes or is silent, which it remembers. When there is
// room again, it is written.
func TestNoRoom(t *testing.T) {
	t.Parallel()
	rooms := map[string]func(b *box){
		"not writable": func(b *box) {
			b.nobody()
			if err := os.Chmod(filepath.Join(b.dir, "state"), 0o555); err != nil {
				b.t.Fatal(err)
			}
		},
		"full": func(b *box) {
			b.before = []string{"/bin/sh", "-c", `trap '' XFSZ; ulimit -S -f 0; exec "$@"`, "sh"}
		},
	}
	for room, fill := range rooms {
		for name, plan := range map[string]string{"crashes": "crash", "is silent": "wait", "stops": "exit"} {
			t.Run(room+", "+name, func(t *testing.T) {
				each(t, func(t *testing.T, b *box) {
					b.env["TRIAL_BOUND"] = "3"
					b.proved()
					b.deliver("v2", plan)
					fill(b)
					b.start()
					b.waits("v1")
					before := b.starts()
					if len(before) > 4 || before[0] != "v2" {
						t.Errorf("started: %q", before)
					}
					b.tell(syscall.SIGUSR1)
					b.eventually("the next start", func() bool { return len(b.starts()) > len(before) })
					b.waits("v1")
					b.want("started", b.starts()[len(before):], []string{"v1"})
					b.want("verdicts", b.verdicts(), []string(nil))
					if room == "not writable" {
						if err := os.Chmod(filepath.Join(b.dir, "state"), 0o777); err != nil {
							t.Fatal(err)
						}
						b.tell(syscall.SIGUSR1)
						b.eventually("the verdict is written", func() bool { return b.file("rollback-pinned") == "v1" })
						b.waits("v1")
						b.want("verdicts", b.verdicts(), []string{"v2 v1 rolled-back"})
					}
					b.stop()
				})
			})
		}
		t.Run(room+", healthy", func(t *testing.T) {
			each(t, func(t *testing.T, b *box) {
				b.env["TRIAL_BOUND"] = "1"
				b.proved()
				fill(b)
				b.start()
				b.waits("v1")
				pid := b.daemon()
				// Longer than the bound; nothing may happen.
				time.Sleep(3 * time.Second)
				b.want("daemon", b.daemon(), pid)
				b.stop()
			})
		})
	}
	t.Run("no directory", func(t *testing.T) {
		each(t, func(t *testing.T, b *box) {
			b.replace(filepath.Join(b.dir, "file"), "", 0o644)
			b.env["STATE_DIR"] = filepath.Join(b.dir, "file/state")
			b.deliver("v1", "crash", "crash", "crash", "crash", "wait")
			b.start()
			b.waits("v1")
			b.stop()
		})
	})
}

// The clock jumps by hours, or a stamp lies in the future: no healthy daemon is
// rolled back and no trial goes on without an end.
func TestClock(t *testing.T) {
	t.Parallel()
	for name, hours := range map[string]int{"forward": 30, "back": -30} {
		for plan, proves := range map[string]bool{"in time": true, "never": false} {
			t.Run(name+", proves "+plan, func(t *testing.T) {
				each(t, func(t *testing.T, b *box) {
					b.env["TRIAL_BOUND"] = "8"
					clock := filepath.Join(b.dir, "play/clock")
					b.replace(clock, "0\n", 0o644)
					b.wrap("date", `PATH=/usr/bin:/bin
read -r offset <"$PLAY/clock"
echo "$(($(date +%s) + offset))"`)
					b.proved("wait")
					b.deliver("v2", "wait")
					b.start()
					b.waits("v2")
					b.eventually("a tick", func() bool { return b.file("trial-spent") != "" })
					b.replace(clock, fmt.Sprintln(hours*3600), 0o644)
					spent := b.file("trial-spent")
					b.eventually("the next tick", func() bool { return b.file("trial-spent") != spent })
					if !proves {
						b.wentBack("v2", "v1")
						b.stop()
						return
					}
					b.want("running", b.running(), []string{"v2"})
					b.tell(syscall.SIGWINCH)
					b.eventually("proved", func() bool { return b.file("known-good") == "v2" && b.file("trial") == "" })
					b.want("running", b.running(), []string{"v2"})
					b.want("verdicts", b.verdicts(), []string(nil))
					b.stop()
				})
			})
		}
	}
	for _, stamp := range []string{"9999999999", "1", "99999999999999999999999"} {
		t.Run("trial since "+stamp, func(t *testing.T) {
			each(t, func(t *testing.T, b *box) {
				b.env["TRIAL_BOUND"] = "3"
				b.proved("wait")
				b.deliver("v2", "wait")
				b.put("trial", "v2 "+stamp+"\n")
				b.start()
				b.waits("v2")
				b.eventually("a tick", func() bool { return b.file("trial-spent") != "" })
				b.want("running", b.running(), []string{"v2"})
				b.wentBack("v2", "v1")
				b.stop()
			})
		})
	}
}
