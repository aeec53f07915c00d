package ownversion

import (
	"errors"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/choria-provisioner/provisioner/status"
)

// single runs a test on one host that runs v1, in a bubble with its own time.
func single(t *testing.T, test func(t *testing.T, h *host)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h := newNetwork(t).host("one")
		h.deliver("v1", 1)
		test(t, h)
	})
}

// Nothing is reported before all of it is there; then it is, at once.
func TestProof(t *testing.T) {
	for _, tc := range []struct {
		missing string
		lack    func(h *host)
		fill    func(h *host)
		says    string
	}{
		{
			missing: "what the daemon needs", says: "the helper is crash-loop",
			lack: func(h *host) { h.healthy = errors.New("the helper is crash-loop") }, fill: func(h *host) { h.healthy = nil },
		},
		{
			missing: "the broker", says: "our own status does not come back through the broker: no connection",
			lack: func(h *host) { h.net.down = true }, fill: func(h *host) { h.net.down = false },
		},
		{
			missing: "an answer", says: "our own status does not come back through the broker: timeout",
			lack: func(h *host) {
				h.answer = func(status.Status) (status.Status, error) { return status.Status{}, errors.New("timeout") }
			},
			fill: func(h *host) { h.answer = nil },
		},
		{
			missing: "our build in it", says: `our own status comes back as build "0.9" of instance "one-1"`,
			lack: func(h *host) {
				h.answer = func(s status.Status) (status.Status, error) { s.Build = "0.9"; return s, nil }
			},
			fill: func(h *host) { h.answer = nil },
		},
		{
			missing: "our program in it", says: `our own status comes back as build "1" of instance "one-1"`,
			lack: func(h *host) {
				h.answer = func(s status.Status) (status.Status, error) { s.Digest = "other"; return s, nil }
			},
			fill: func(h *host) { h.answer = nil },
		},
		{
			missing: "our instance in it", says: `our own status comes back as build "1" of instance "other"`,
			lack: func(h *host) {
				h.answer = func(s status.Status) (status.Status, error) { s.Instance = "other"; return s, nil }
			},
			fill: func(h *host) { h.answer = nil },
		},
	} {
		t.Run(tc.missing, func(t *testing.T) {
			single(t, func(t *testing.T, h *host) {
				change := func(do func(*host)) {
					h.net.mu.Lock()
					do(h)
					h.net.mu.Unlock()
				}
				h.put("known-good", "v0\n")
				h.put("start-attempts", "2\n")
				change(tc.lack)
				h.start("v1")
				time.Sleep(10 * time.Minute)
				if own := h.own(); own.Proved || own.Missing != tc.says || h.file("known-good") != "v0\n" || h.file("start-attempts") != "2\n" {
					t.Errorf("proved %v, missing %q, known-good %q", own.Proved, own.Missing, h.file("known-good"))
				}

				change(tc.fill)
				time.Sleep(5 * time.Second)
				if own := h.own(); !own.Proved || own.Missing != "" || h.file("known-good") != "v1\n" || h.file("start-attempts") != "" {
					t.Errorf("proved %v, missing %q, known-good %q", own.Proved, own.Missing, h.file("known-good"))
				}

				// What fails later is another matter.
				change(tc.lack)
				time.Sleep(10 * time.Minute)
				if own := h.own(); !own.Proved || h.file("known-good") != "v1\n" {
					t.Errorf("proved %v, known-good %q after a later failure", own.Proved, h.file("known-good"))
				}
			})
		})
	}
}

// A full disk delays the report, which is made when there is room.
func TestProof_noRoom(t *testing.T) {
	single(t, func(t *testing.T, h *host) {
		if err := os.RemoveAll(h.StateDir); err != nil {
			t.Fatal(err)
		}
		h.start("v1")
		time.Sleep(time.Minute)
		if own := h.own(); own.Proved || !strings.HasPrefix(own.Missing, "state file known-good: ") {
			t.Errorf("proved %v, missing %q", own.Proved, own.Missing)
		}
		if err := os.MkdirAll(h.StateDir, 0o755); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if own := h.own(); !own.Proved || h.file("known-good") != "v1\n" {
			t.Errorf("proved %v, known-good %q", own.Proved, h.file("known-good"))
		}
	})
}

// The launcher looks once a tick: while there is no broker it must find something
// new each time, and nothing once there is one.
func TestBlind(t *testing.T) {
	single(t, func(t *testing.T, h *host) {
		h.net.down = true
		h.start("v1")
		last := ""
		for range 20 {
			time.Sleep(5 * time.Second)
			if now := h.file("trial-blind"); now == last {
				t.Fatalf("trial-blind has not changed: %q", now)
			}
			last = h.file("trial-blind")
		}
		h.net.mu.Lock()
		h.net.down, h.healthy = false, errors.New("the helper is restarting")
		h.net.mu.Unlock()
		time.Sleep(3 * time.Second)
		last = h.file("trial-blind")
		time.Sleep(time.Minute)
		if now := h.file("trial-blind"); now != last {
			t.Error("a daemon that reaches a broker says that it is blind")
		}
	})
}

// What a daemon ends for, and what not, all else being well.
func TestStandAside(t *testing.T) {
	for _, tc := range []struct {
		why string
		do  func(h *host)
		// runs is what runs in the end, left how often a daemon ended for it.
		runs  string
		left  int
		waits string
	}{
		{why: "a newer version", do: func(h *host) { h.deliver("v2", 2) }, runs: "v2", left: 1},
		{why: "two, one after the other", do: func(h *host) {
			h.deliver("v2", 2)
			time.Sleep(10 * time.Minute)
			h.deliver("v3", 3)
		}, runs: "v3", left: 2},
		{why: "nothing new", do: func(*host) {}, runs: "v1"},
		{why: "what arrived before it", do: func(h *host) { h.deliver("v0", 0) }, runs: "v1"},
		{why: "what was rolled back", do: func(h *host) {
			h.put("rolled-back", "v2\tv1\t1700000000\trolled-back\tcrashed\n")
			h.deliver("v2", 2)
		}, runs: "v1"},
		{why: "a pin on ours", do: func(h *host) {
			h.put("pinned", "v1\n")
			h.deliver("v2", 2)
		}, runs: "v1"},
		{why: "an older one, when its own folder is gone", do: func(h *host) {
			h.deliver("v0", 0)
			if err := os.RemoveAll(h.Libexec + "/versions/v1"); err != nil {
				h.net.t.Error(err)
			}
		}, runs: "v1"},
		{why: "a newer one, when its own folder is gone", do: func(h *host) {
			if err := os.RemoveAll(h.Libexec + "/versions/v1"); err != nil {
				h.net.t.Error(err)
			}
			h.deliver("v2", 2)
		}, runs: "v2", left: 1},
		{why: "a pin on an older one", do: func(h *host) {
			h.deliver("v0", 0)
			h.put("pinned", "v0\n")
		}, runs: "v1"},
		{why: "the program placed by hand", do: func(h *host) {
			h.write(h.Bin, "x", 0o755)
			h.put("pinned", "placed-by-hand\n")
		}, runs: "v1"},
		{why: "one that was released", do: func(h *host) {
			h.put("rolled-back", "v2\tv1\t1700000000\trolled-back\tcrashed\n")
			h.deliver("v2", 2)
			time.Sleep(10 * time.Minute)
			if _, err := h.Release("v2"); err != nil {
				h.net.t.Error(err)
			}
		}, runs: "v2", left: 1},
		{why: "one that goes back: not again", do: func(h *host) {
			h.does["v2"] = behaviour{proves: time.Hour, crashes: time.Minute}
			h.deliver("v2", 2)
		}, runs: "v1", left: 1},
		{why: "one that the launcher does not start: not again", do: func(h *host) {
			h.deliver("v2", 2)
			if err := h.RecordStandAside("v2", 1_000_000_000_000_002); err != nil {
				h.net.t.Error(err)
			}
		}, runs: "v1"},
		{why: "the same name delivered anew", do: func(h *host) {
			if err := h.RecordStandAside("v2", 1_000_000_000_000_002); err != nil {
				h.net.t.Error(err)
			}
			h.deliver("v2", 3)
		}, runs: "v2", left: 1},
		{why: "one that comes and goes at once", do: func(h *host) {
			h.deliver("v2", 2)
			time.Sleep(time.Second)
			if err := os.RemoveAll(h.Libexec + "/versions/v2"); err != nil {
				h.net.t.Error(err)
			}
		}, runs: "v1"},
		{why: "what could not be recorded would be done again and again", do: func(h *host) {
			if err := os.Mkdir(h.StateDir+"/stood-aside", 0o755); err != nil {
				h.net.t.Error(err)
			}
			if err := os.Mkdir(h.StateDir+"/stood-aside/x", 0o755); err != nil {
				h.net.t.Error(err)
			}
			h.deliver("v2", 2)
		}, runs: "v1", waits: "state file stood-aside: "},
		{why: "no broker for a while: the others cannot be asked", do: func(h *host) {
			h.net.mu.Lock()
			h.net.down = true
			h.net.mu.Unlock()
			h.deliver("v2", 2)
			time.Sleep(Patience - time.Minute)
		}, runs: "v1", waits: "the others cannot be asked: no connection"},
		{why: "no broker for long: a newer version may be the cure", do: func(h *host) {
			h.net.mu.Lock()
			h.net.down = true
			h.net.mu.Unlock()
			h.deliver("v2", 2)
			time.Sleep(Patience)
		}, runs: "v2", left: 1},
		{why: "answers that the broker keeps from us", do: func(h *host) {
			h.net.locked(func() { h.net.mute = true })
			h.deliver("v2", 2)
		}, runs: "v1", waits: "the others cannot be asked: our own answer does not come back"},
		{why: "a version of an odd name", do: func(h *host) { h.deliver("launcher", 2) }, runs: "launcher", left: 1},
		{why: "another launcher", do: func(h *host) { h.replaceLauncher("second") }, runs: "v1", left: 1},
		{why: "two more, one after the other", do: func(h *host) {
			h.replaceLauncher("second")
			time.Sleep(10 * time.Minute)
			h.replaceLauncher("third")
		}, runs: "v1", left: 2},
		{why: "one for which a daemon ended before", do: func(h *host) {
			h.replaceLauncher("second")
			time.Sleep(10 * time.Minute)
			h.replaceLauncher("first")
			time.Sleep(10 * time.Minute)
			h.replaceLauncher("first")
		}, runs: "v1", left: 2},
		{why: "one that could not be run", do: func(h *host) { h.write(h.script, "", 0o755) }, runs: "v1"},
		{why: "both at once", do: func(h *host) {
			h.deliver("v2", 2)
			h.replaceLauncher("second")
		}, runs: "v2", left: 1},
	} {
		t.Run(tc.why, func(t *testing.T) {
			single(t, func(t *testing.T, h *host) {
				h.start("v1")
				time.Sleep(time.Minute)
				tc.do(h)
				// Not a minute more than Patience may be left to a down broker.
				time.Sleep(30 * time.Second)
				if tc.left > 0 {
					time.Sleep(10 * time.Minute)
				}
				running, left := h.now()
				if running != tc.runs || left != tc.left {
					t.Errorf("%s runs after %d ends, not %s after %d; %v", running, left, tc.runs, tc.left, h.own())
				}
				if own := h.own(); !strings.HasPrefix(own.Waits, tc.waits) || (tc.waits == "") != (own.Waits == "") {
					t.Errorf("waits %q, not %q", own.Waits, tc.waits)
				}
			})
		})
	}
}

// On trial, the launcher takes an end for nothing as a failure.
func TestOnTrial(t *testing.T) {
	for _, tc := range []struct {
		why  string
		do   func(h *host)
		left int
	}{
		{why: "a newer version is a reason", do: func(h *host) { h.deliver("v3", 3) }, left: 1},
		{why: "another launcher is none", do: func(h *host) { h.replaceLauncher("second") }},
		{why: "one that was there at the start is none: the launcher passed it over", do: func(*host) {}},
	} {
		t.Run(tc.why, func(t *testing.T) {
			single(t, func(t *testing.T, h *host) {
				h.put("known-good", "v1\n")
				h.deliver("v2", 2)
				if tc.left == 0 {
					h.deliver("v3", 3)
				}
				h.does["v2"] = behaviour{proves: time.Hour}
				h.does["v3"] = behaviour{proves: time.Hour}
				if tc.left > 0 {
					h.start("v2")
					time.Sleep(time.Minute)
				} else {
					h.start("v2")
				}
				tc.do(h)
				time.Sleep(50 * time.Minute)
				if _, left := h.now(); left != tc.left {
					t.Errorf("%d ends, not %d", left, tc.left)
				}
				if tc.left > 0 {
					return
				}
				// Proved, an end costs nothing.
				time.Sleep(20 * time.Minute)
				if _, left := h.now(); left != 1 {
					t.Errorf("%d ends once it has proved itself", left)
				}
			})
		})
	}
}

// What must not be forgotten is in the log at the start.
func TestSaysVerdicts(t *testing.T) {
	single(t, func(t *testing.T, h *host) {
		h.put("rolled-back", "v2\tv1\t1700000000\trolled-back\tcrashed\nv1\t\t1700000001\thalted\tboth\n")
		h.put("halted", "both\n")
		h.start("v1")
		time.Sleep(10 * time.Minute)
		for _, line := range []string{
			"Version v2 was rolled back to v1 at 2023-11-14T22:13:20Z and is not started: crashed",
			"The launcher is halted: both",
			"Version v1 has proved itself and is known to be good",
		} {
			if n := h.says(line); n != 1 {
				t.Errorf("said %d times: %s", n, line)
			}
		}
		own := h.own()
		if len(own.Verdicts) != 1 || own.Halted != "both" || own.KnownGood != "v1" {
			t.Errorf("status %+v", own)
		}
	})
}
