package deploy_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Each way in which a version on trial fails ends on the known-good one, once.
func TestRollback(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		plan []string
		// starts is how often the version is started.
		starts int
		do     func(b *box)
	}{
		"crashes START_LIMIT times in a row":    {[]string{"crash"}, 3, nil},
		"stops with nothing to stand aside for": {[]string{"exit"}, 1, nil},
		"stops later, for nothing": {[]string{"wait"}, 1, func(b *box) {
			b.waits("v2")
			b.tell(syscall.SIGUSR1)
		}},
		"reports nothing":                      {[]string{"wait"}, 1, nil},
		"reports nothing and is deaf":          {[]string{"deaf wait"}, 1, nil},
		"crashes, then reports nothing":        {[]string{"crash", "wait"}, 2, nil},
		"is blind no more and reports nothing": {[]string{"wait"}, 1, func(b *box) { b.put("trial-blind", "long ago\n") }},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, b *box) {
				b.env["TRIAL_BOUND"], b.env["STOP_GRACE"] = "3", "1"
				b.proved()
				b.deliver("v2", test.plan...)
				b.start()
				if test.do != nil {
					test.do(b)
				}
				b.wentBack("v2", "v1")
				var want []string
				for range test.starts {
					want = append(want, "v2")
				}
				b.want("starts", b.starts(), append(want, "v1"))

				// Once: neither a clean end nor a new launcher starts it again.
				b.tell(syscall.SIGUSR1)
				b.eventually("v1 runs again", func() bool { return len(b.starts()) == test.starts+2 })
				b.stop()
				b.start()
				b.waits("v1")
				b.eventually("third start of v1", func() bool { return len(b.starts()) == test.starts+3 })
				b.want("starts of v2", len(b.starts())-3, test.starts)

				// A newer delivery ends the pin.
				b.waits("v1")
				b.deliver("v3")
				b.tell(syscall.SIGUSR1)
				b.eventually("v3 proves itself", func() bool { return b.file("known-good") == "v3" })
				b.waits("v3")
				b.eventually("the pin is gone", func() bool { return b.file("rollback-pinned") == "" && b.file("trial") == "" })
				b.want("verdicts", b.verdicts(), []string{"v2 v1 rolled-back"})
				b.stop()
			})
		})
	}
}

// A version that proves itself on trial stays; its stop as it is told to by a
// newer one is no failure, proved or not.
func TestStandsAside(t *testing.T) {
	each(t, func(t *testing.T, b *box) {
		b.proved()
		b.start()
		b.waits("v1")
		b.deliver("v2", "wait")
		b.tell(syscall.SIGUSR1)
		b.waits("v2")
		b.deliver("v3", "prove wait")
		b.tell(syscall.SIGUSR1)
		b.waits("v3")
		b.want("known-good", b.file("known-good"), "v3")
		b.want("verdicts", b.verdicts(), []string(nil))
		b.want("starts", b.starts(), []string{"v1", "v2", "v3"})
		b.stop()
	})
}

// Where no known-good version was delivered there is no trial.
func TestNoTrial(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		good string
		do   func(b *box)
	}{
		"no known-good":           {"", nil},
		"known-good is not there": {"v0\n", nil},
		"known-good was rolled back": {"v0\n", func(b *box) {
			b.deliver("v0")
			b.put("rolled-back", "v0\tv9\t1700000000\trolled-back\tcrashed\n")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, b *box) {
				b.env["TRIAL_BOUND"] = "1"
				if test.do != nil {
					test.do(b)
				}
				if test.good != "" {
					b.put("known-good", test.good)
				}
				b.deliver("v1", "wait")
				b.start()
				b.waits("v1")
				before := len(b.verdicts())
				b.tell(syscall.SIGUSR1)
				b.eventually("second start", func() bool { return len(b.starts()) == 2 })
				b.waits("v1")
				// More than the bound; nothing may happen.
				time.Sleep(3 * time.Second)
				b.want("running", b.running(), []string{"v1"})
				b.want("verdicts", len(b.verdicts()), before)
				b.want("trial", b.file("trial"), "")
				b.stop()
			})
		})
	}
}

// A first version that crashes is left for the hand-placed binary; where that
// crashes too, nothing is left to go to.
func TestBackToHandPlaced(t *testing.T) {
	each(t, func(t *testing.T, b *box) {
		b.placeByHand("wait")
		b.deliver("v1", "crash")
		b.start()
		b.wentBack("v1", byHand)
		b.want("starts", b.starts(), []string{"v1", "v1", "v1", byHand})
		b.plan(byHand, "crash")
		b.tell(syscall.SIGUSR2)
		b.want("exit status", b.exit(), 0)
		b.want("verdicts", b.verdicts(), []string{"v1 placed-by-hand rolled-back", "placed-by-hand  halted"})
		b.nothingLeft()
	})
}

// The trial's start and what is spent of its bound outlive the launcher.
func TestTrialOutlivesLauncher(t *testing.T) {
	each(t, func(t *testing.T, b *box) {
		b.env["TRIAL_BOUND"] = "6"
		b.proved()
		b.deliver("v2", "wait")
		b.start()
		spent := func() int {
			f := strings.Fields(b.file("trial-spent"))
			if len(f) != 3 || f[0] != "v2" {
				return 0
			}
			n, _ := strconv.Atoi(f[1])
			return n
		}
		b.eventually("two ticks", func() bool { return spent() >= 2 })
		began := b.file("trial")
		if !strings.HasPrefix(began, "v2 1") {
			t.Errorf("trial is %q", began)
		}
		b.stop()
		before := spent()
		b.want("trial", b.file("trial"), began)
		b.start()
		b.eventually("the trial goes on", func() bool { return spent() > before })
		b.want("trial", b.file("trial"), began)
		b.wentBack("v2", "v1")
		b.stop()
	})
}

// Ticks in which the daemon says that it reaches no broker do not count, those
// after it do.
func TestBlind(t *testing.T) {
	each(t, func(t *testing.T, b *box) {
		b.env["TRIAL_BOUND"] = "2"
		b.proved()
		b.deliver("v2", "blind wait", "wait")
		b.start()
		b.eventually("six blind ticks", func() bool {
			f := strings.Fields(b.file("trial-spent"))
			if len(f) != 3 {
				return false
			}
			n, _ := strconv.Atoi(f[2])
			return n >= 6
		})
		b.want("running", b.running(), []string{"v2"})
		b.want("verdicts", b.verdicts(), []string(nil))
		b.tell(syscall.SIGUSR2) // its next start is not blind
		b.wentBack("v2", "v1")
		b.stop()
	})
}

// A day of blindness is enough: a trial ends.
func TestBlindForADay(t *testing.T) {
	each(t, func(t *testing.T, b *box) {
		b.env["TRIAL_BOUND"] = "2"
		b.proved()
		b.deliver("v2", "blind wait")
		b.put("trial", "v2 1700000000\n")
		b.put("trial-spent", "v2 0 86398\n")
		b.start()
		b.wentBack("v2", "v1")
		b.stop()
	})
}

// A report that is made after the bound, while the version is being stopped, is
// a report.
func TestLastWord(t *testing.T) {
	each(t, func(t *testing.T, b *box) {
		b.env["TRIAL_BOUND"] = "1"
		b.proved()
		b.deliver("v2", "last-word wait", "wait")
		b.start()
		b.eventually("second start", func() bool { return len(b.starts()) == 2 })
		b.waits("v2")
		b.want("starts", b.starts(), []string{"v2", "v2"})
		b.want("known-good", b.file("known-good"), "v2")
		b.want("verdicts", b.verdicts(), []string(nil))
		b.want("trial-expired", b.file("trial-expired"), "")
		b.stop()
	})
}

// What was gone back to fails as well: everything stops, until a person removes
// the halt; that gives it a start, not a try.
func TestHalted(t *testing.T) {
	each(t, func(t *testing.T, b *box) {
		b.env["START_LIMIT"] = "2"
		b.proved("crash", "crash", "crash", "wait")
		b.deliver("v2", "crash")
		b.start()
		b.want("exit status", b.exit(), 0)
		b.want("starts", b.starts(), []string{"v2", "v2", "v1", "v1"})
		b.want("verdicts", b.verdicts(), []string{"v2 v1 rolled-back", "v1  halted"})
		if !strings.Contains(b.file("halted"), "v1") {
			t.Errorf("halted is %q", b.file("halted"))
		}
		b.nothingLeft()

		b.start()
		b.want("exit status", b.exit(), 0)
		b.want("starts while halted", len(b.starts()), 4)

		if err := os.Remove(filepath.Join(b.dir, "state/halted")); err != nil {
			t.Fatal(err)
		}
		b.start()
		b.waits("v1")
		b.want("starts", b.starts(), []string{"v2", "v2", "v1", "v1", "v1", "v1"})
		b.stop()
	})
}

// An old verdict is no reason to halt: neither a version that has proved itself
// since, nor one that reported again after it was gone back to.
func TestOldVerdict(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		pinned string
		plan   []string
	}{
		"a new known-good":                {"v0", []string{"crash"}},
		"gone back to and reported again": {"v1", []string{"prove crash", "crash"}},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, b *box) {
				b.proved(test.plan...)
				b.put("rolled-back", "bad\t"+test.pinned+"\t1700000000\trolled-back\tcrashed\n")
				b.put("rollback-pinned", test.pinned+"\n")
				b.start()
				b.eventually("five starts", func() bool { return len(b.starts()) >= 5 })
				b.want("halted", b.file("halted"), "")
				b.want("verdicts", b.verdicts(), []string{"bad " + test.pinned + " rolled-back"})
				b.stop()
			})
		})
	}
}

// What was gone back to and reported again has done so for good, also when the
// launcher had no time to see it to its end: a power cut months later is no reason
// to halt when the daemon does not come up at once.
func TestSettledOutlivesLauncher(t *testing.T) {
	each(t, func(t *testing.T, b *box) {
		b.env["START_LIMIT"] = "2"
		b.proved("prove wait", "crash", "crash", "crash", "wait")
		b.deliver("v2", "crash")
		b.start()
		b.eventually("v1 is settled", func() bool { return b.file("rollback-settled") == "v1" })
		b.waits("v1")
		b.kill()
		b.start()
		b.waits("v1")
		b.want("starts", b.starts(), []string{"v2", "v2", "v1", "v1", "v1", "v1", "v1"})
		b.want("halted", b.file("halted"), "")
		b.want("verdicts", b.verdicts(), []string{"v2 v1 rolled-back"})
		b.stop()
	})
}

// A version that another instance rolled back waits for a person, also over a
// restart of the machine; what is known to be good waits for nothing.
func TestRolledBackElsewhere(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		files map[string]string
		runs  string
	}{
		"waits":                       {map[string]string{"rolled-back-elsewhere": "v0 there\nv2 there\n"}, "v1"},
		"known to be good":            {map[string]string{"rolled-back-elsewhere": "v2 there\n", "known-good": "v2\n"}, "v2"},
		"released":                    {map[string]string{"rolled-back-elsewhere": "v2 there\n", "released": "v0\nv2\n"}, "v2"},
		"pinned":                      {map[string]string{"rolled-back-elsewhere": "v2 there\n", "pinned": "v2\n"}, "v2"},
		"nothing is known to be good": {map[string]string{"rolled-back-elsewhere": "v2 there\n", "known-good": ""}, "v2"},
		"torn":                        {map[string]string{"rolled-back-elsewhere": "v2\nx y z\nv2 th"}, "v2"},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, b *box) {
				b.proved()
				b.deliver("v2")
				for file, text := range test.files {
					b.put(file, text)
				}
				b.start()
				b.waits(test.runs)
				b.want("starts", b.starts(), []string{test.runs})
				b.stop()
			})
		})
	}
}

// Failures are charged to the version that failed.
func TestCharging(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		do     func(b *box)
		starts []string
		last   string
	}{
		"not to a successor": {func(b *box) {
			b.proved()
			b.deliver("v2", "crash", "crash", "wait")
			b.start()
			b.waits("v2")
			b.deliver("v3", "crash", "crash", "prove wait")
			b.tell(syscall.SIGUSR1)
		}, []string{"v2", "v2", "v2", "v3", "v3", "v3"}, "v3"},
		"not to a successor that comes with a new launcher": {func(b *box) {
			b.proved()
			b.deliver("v2", "crash", "crash", "wait")
			b.start()
			b.waits("v2")
			b.stop()
			b.deliver("v3", "crash", "crash", "prove wait")
			b.start()
		}, []string{"v2", "v2", "v2", "v3", "v3", "v3"}, "v3"},
		"not to the one gone back to": {func(b *box) {
			b.proved("crash", "crash", "wait")
			b.deliver("v2", "crash")
			b.start()
		}, []string{"v2", "v2", "v2", "v1", "v1", "v1"}, "v1"},
		"not to the one gone back to from an expired trial": {func(b *box) {
			b.env["TRIAL_BOUND"] = "2"
			b.proved("crash", "crash", "wait")
			b.deliver("v2", "crash", "crash", "wait")
			b.start()
		}, []string{"v2", "v2", "v2", "v1", "v1", "v1"}, "v1"},
		"a report in the run that failed counts": {func(b *box) {
			b.proved()
			b.deliver("v2", "crash", "crash", "prove crash", "crash", "wait")
			b.start()
		}, []string{"v2", "v2", "v2", "v2", "v2"}, "v2"},
		"a report counts, even if the daemon failed before it cleared the counter": {func(b *box) {
			b.proved()
			b.deliver("v2", "crash", "crash", "half crash", "crash", "wait")
			b.start()
			b.waits("v2")
			b.want("counter", b.file("start-attempts"), "2")
			b.want("trial", b.file("trial"), "")
		}, []string{"v2", "v2", "v2", "v2", "v2"}, "v2"},
		"a counter of an unknown version is not charged to a new trial": {func(b *box) {
			b.proved()
			b.put("start-attempts", "2\n")
			b.put("trial", "v0 1700000000\n")
			b.deliver("v2", "crash", "crash", "wait")
			b.start()
		}, []string{"v2", "v2", "v2"}, "v2"},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, b *box) {
				test.do(b)
				b.eventually("all starts", func() bool { return len(b.starts()) >= len(test.starts) })
				b.waits(test.last)
				b.want("starts", b.starts(), test.starts)
				b.want("halted", b.file("halted"), "")
				b.stop()
			})
		})
	}
}

// Clean exits break a row of failures, and are none.
func TestCleanExitsAreNoFailures(t *testing.T) {
	each(t, func(t *testing.T, b *box) {
		b.proved("crash", "crash", "exit", "crash", "crash", "wait")
		b.put("rolled-back", "bad\tv1\t1700000000\trolled-back\tcrashed\n")
		b.put("rollback-pinned", "v1\n")
		b.start()
		b.eventually("six starts", func() bool { return len(b.starts()) == 6 })
		b.waits("v1")
		b.want("halted", b.file("halted"), "")
		b.want("counter", b.file("start-attempts"), "2")
		b.stop()
	})
}

// With nothing to go back to it is tried again and again, ever more slowly.
func TestNothingToGoBackTo(t *testing.T) {
	each(t, func(t *testing.T, b *box) {
		b.env["BACKOFF"] = "1"
		b.env["START_LIMIT"] = "1"
		b.deliver("v1", "crash")
		b.start()
		var at []time.Time
		b.eventually("four starts", func() bool {
			for len(b.starts()) > len(at) {
				at = append(at, time.Now())
			}
			return len(at) >= 4
		})
		for i, least := range []time.Duration{1, 2, 4} {
			if gap := at[i+1].Sub(at[i]); gap < least*time.Second-200*time.Millisecond {
				t.Errorf("wait %d was %v", i+1, gap)
			}
		}
		b.want("verdicts", b.verdicts(), []string(nil))
		b.want("halted", b.file("halted"), "")
		b.stop()
	})
}

// Waits double up to twelve times the first, and clean exits in quick succession
// are paced the same way after the first. A sleep that only notes its length
// makes hours of it pass.
func TestPace(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		plan, backoff string
		want          []int
	}{
		"failures":                {"crash", "5", []int{5, 10, 20, 40, 60, 60, 60}},
		"failures, no backoff":    {"crash", "0", []int{1, 2, 4, 8, 12, 12}},
		"failures, long backoff":  {"crash", "100", []int{100, 200}},
		"clean exits":             {"exit", "5", []int{5, 10, 20, 40, 60, 60, 60}},
		"clean exits, no backoff": {"exit", "0", []int{1, 2, 4, 8, 12, 12}},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, b *box) {
				slept := filepath.Join(b.dir, "play/events")
				b.wrap("sleep", `echo "sleep 0 $1" >>'`+slept+`'`)
				b.env["BACKOFF"] = test.backoff
				b.deliver("v1", test.plan)
				b.start()
				sum := 0
				for _, w := range test.want {
					sum += w
				}
				var waits []int
				b.eventually("all waits", func() bool {
					waits = nil
					n := 0
					for _, e := range b.events("") {
						switch e {
						case "sleep 1":
							n++
						case "v1 start":
							if n > 0 {
								waits = append(waits, n)
							}
							n = 0
						}
					}
					return len(waits) >= len(test.want)
				})
				b.want("waits", fmt.Sprint(waits[:len(test.want)]), fmt.Sprint(test.want))
				b.stop()
			})
		})
	}
}

// RUN_ONCE ends at the first failure, with its status, and at nothing else.
func TestRunOnce(t *testing.T) {
	each(t, func(t *testing.T, b *box) {
		b.env["RUN_ONCE"] = "1"
		b.env["START_LIMIT"] = "2"
		b.proved("exit", "wait", "wait")
		b.start()
		b.eventually("two starts", func() bool { return len(b.starts()) == 2 })
		b.waits("v1")
		b.deliver("v2", "crash")
		b.tell(syscall.SIGUSR1)
		b.want("exit status", b.exit(), 7)
		b.want("counter", b.file("start-attempts"), "1")
		b.start()
		b.want("exit status", b.exit(), 7)
		b.want("verdicts", b.verdicts(), []string{"v2 v1 rolled-back"})
		b.start()
		b.waits("v1")
		b.want("starts of v2", len(slices.DeleteFunc(b.starts(), func(v string) bool { return v != "v2" })), 2)
		b.stop()
	})
}
