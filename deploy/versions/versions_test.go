package versions

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// born is the start time of this process.
func born(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), ") ")

	return strings.Fields(rest)[19]
}

func TestStartedBy(t *testing.T) {
	for _, tc := range []struct {
		why  string
		env  map[string]string
		want Start
		ok   bool
	}{
		{why: "no launcher", want: Start{Launcher: Default(), Tick: 5 * time.Second}},
		{
			why: "all of it",
			env: map[string]string{
				"STATE_DIR": "/s", "LIBEXEC": "/l", "BIN": "/b", "VERSION": "1.2", "SCRIPT": "/launch", "TRIAL_TICK": "007",
			},
			want: Start{Launcher: Launcher{"/s", "/l", "/b"}, Version: "1.2", Script: "/launch", Tick: 7 * time.Second}, ok: true,
		},
		{
			why: "the program placed by hand", env: map[string]string{"VERSION": ByHand},
			want: Start{Launcher: Default(), Version: ByHand, Tick: 5 * time.Second}, ok: true,
		},
		{
			why: "a tick that is none", env: map[string]string{"VERSION": "1", "TRIAL_TICK": "0"},
			want: Start{Launcher: Default(), Version: "1", Tick: 5 * time.Second}, ok: true,
		},
		{
			why: "what is no version would be written into known-good", env: map[string]string{"VERSION": "../x"},
			want: Start{Launcher: Default(), Version: "../x", Tick: 5 * time.Second},
		},
	} {
		t.Run(tc.why, func(t *testing.T) {
			got, ok := StartedBy(func(name string) string { return tc.env[strings.TrimPrefix(name, prefix)] })
			if got != tc.want || ok != tc.ok {
				t.Errorf("got %+v, %v, want %+v, %v", got, ok, tc.want, tc.ok)
			}
		})
	}
}

func TestProve(t *testing.T) {
	s := newSite(t, "v1")
	s.put(startAttempts, "2\n")
	s.put(knownGood, "v1\n")
	before, err := os.Stat(filepath.Join(s.StateDir, knownGood))
	s.check(err)
	s.check(s.Prove("v1"))
	after, err := os.Stat(filepath.Join(s.StateDir, knownGood))
	s.check(err)
	if os.SameFile(before, after) {
		t.Error("the launcher cannot tell that known-good was written anew")
	}
	if got := s.file(knownGood) + s.file(startAttempts); got != "v1\nnone" {
		t.Errorf("known-good and the counter: %q", got)
	}

	s.check(os.RemoveAll(s.StateDir))
	if err := s.Prove("v1"); err == nil {
		t.Error("a report that could not be written counts as made")
	}
	s.check(os.MkdirAll(s.StateDir, 0o755))
	s.check(s.Prove("v1"))
	left, err := os.ReadDir(s.StateDir)
	if err != nil || len(left) != 1 {
		t.Errorf("left in the directory: %v, %v", left, err)
	}
}

func TestBlind(t *testing.T) {
	s := newSite(t)
	s.check(s.Blind())
	first := s.file(trialBlind)
	s.check(s.Blind())
	if first == s.file(trialBlind) || len(first) > 256 {
		t.Errorf("not something new and short each time: %q", first)
	}
}

// A person is told at once what the launcher would ignore.
func TestPin(t *testing.T) {
	for _, tc := range []struct {
		version, want string
		hand          bool
	}{
		{version: "v1"},
		{version: ByHand, hand: true},
		{version: ByHand, want: "there is no program at "},
		{version: "v2", want: "v2 was rolled back: crashed; release it first"},
		{version: "v9", want: "v9 is not in "},
		{version: "../v1", want: `"../v1" is not a version's name`},
		{version: "copy", want: "copy is the same file as a version that was rolled back"},
	} {
		t.Run(tc.version, func(t *testing.T) {
			s := newSite(t, "v1", "v2")
			s.put(rolledBack, "v2\tv1\t1700000000\trolled-back\tcrashed\n")
			s.check(os.Mkdir(s.folder("copy"), 0o755))
			s.check(os.Link(s.Program("v2"), s.Program("copy")))
			if tc.hand {
				s.check(os.WriteFile(s.Bin, []byte("x"), 0o755))
			}
			err := s.Pin(tc.version)
			if tc.want == "" {
				if err != nil || s.snapshot().Next != tc.version {
					t.Errorf("error %v, %s is next", err, s.snapshot().Next)
				}
				return
			}
			if err == nil || !strings.HasPrefix(err.Error(), tc.want) || s.file(pinned) != "none" {
				t.Errorf("error %v, not %s; the file holds %q", err, tc.want, s.file(pinned))
			}
		})
	}
}

func TestUnpin(t *testing.T) {
	s := newSite(t, "v1", "v2")
	s.put(pinned, "v1\n")
	s.check(s.RecordStandAside("v2", 7))
	for _, want := range []string{"v1", ""} {
		was, err := s.Unpin()
		if err != nil || was != want || s.file(pinned) != "none" {
			t.Errorf("%q was pinned, not %q; %v", was, want, err)
		}
	}
	if aside, err := s.StoodAside("v2", 7); aside || err != nil {
		t.Errorf("the daemon would stay with what was pinned: %v", err)
	}
}

// What a release changes: the files, and what is started next.
func TestRelease(t *testing.T) {
	const line2, line3, halt = "v2\tv1\t1700000000\trolled-back\tcrashed\r\n", "v3\tv1\t1700000001\trolled-back\tsilent\n", "v1\t\t1700000002\thalted\tboth\n"
	for _, tc := range []struct {
		why      string
		names    []string
		verdicts string
		next     string
		lifted   string
	}{
		{why: "the halt alone", verdicts: line2 + line3 + halt, next: "v1", lifted: "halted both"},
		{why: "the newest", names: []string{"v3"}, verdicts: line2 + halt, next: "v3", lifted: "halted both; v3"},
		{why: "an older one", names: []string{"v2"}, verdicts: line3 + halt, next: "v2", lifted: "halted both; v2"},
		{why: "all", names: []string{"v2", "v3"}, verdicts: halt, next: "v3", lifted: "halted both; v2; v3"},
		{why: "one that was rolled back elsewhere only", names: []string{"v1"}, verdicts: line2 + line3, next: "v1", lifted: "halted both; elsewhere v1"},
	} {
		t.Run(tc.why, func(t *testing.T) {
			s := newSite(t, "v1", "v2", "v3")
			s.put(knownGood, "v1\n")
			s.put(rolledBack, line2+line3+halt)
			s.put(rollbackPinned, "v1\n")
			s.put(rollbackArrival, "1000000000000003\n")
			s.put(halted, "both\n")
			for i, name := range []string{"v1", "v2", "v3"} {
				s.check(s.RecordStandAside(name, int64(i)))
			}

			got, err := s.Release(tc.names...)
			s.check(err)
			text := "halted " + got.Halted
			for _, v := range got.Verdicts {
				text += "; " + v.From
			}
			for _, name := range got.Elsewhere {
				text += "; elsewhere " + name
			}
			if text != tc.lifted {
				t.Errorf("lifted %s, not %s", text, tc.lifted)
			}
			if s.file(halted) != "none" || s.file(rolledBack) != tc.verdicts {
				t.Errorf("halted %q, verdicts %q", s.file(halted), s.file(rolledBack))
			}
			if next := s.snapshot().Next; next != tc.next {
				t.Errorf("%s is next, not %s", next, tc.next)
			}
			for i, name := range []string{"v1", "v2", "v3"} {
				named := strings.Contains(fmt.Sprint(tc.names), name)
				if aside, err := s.StoodAside(name, int64(i)); err != nil || aside == named {
					t.Errorf("the daemon makes way for %s: %v, %v", name, !aside, err)
				}
				if released, err := s.Released(name); err != nil || released != named {
					t.Errorf("%s is released: %v, %v", name, released, err)
				}
			}
		})
	}
}

func TestRelease_unknown(t *testing.T) {
	s := newSite(t, "v1")
	s.put(halted, "both\n")
	_, err := s.Release("v1", "v8", "v9")
	if err == nil || !strings.Contains(err.Error(), `"v8" is neither`) || !strings.Contains(err.Error(), `"v9" is neither`) {
		t.Errorf("error %v", err)
	}
	if s.file(halted) == "none" {
		t.Error("half of it was done")
	}
}

func TestRetire(t *testing.T) {
	all := []string{"v1", "v2", "v3", "v4", "v5", "v6", "v7"}
	for _, tc := range []struct {
		why     string
		keep    int
		state   map[string]string
		running string
		removed string
		err     error
	}{
		{why: "all but the running one and what came later", running: "v5", removed: "[v4 v3 v2 v1]"},
		{why: "some more, the newest", running: "v5", keep: 2, removed: "[v2 v1]"},
		{why: "more than there are", running: "v5", keep: 20, removed: "[]"},
		{why: "the known-good one", running: "v5", state: map[string]string{knownGood: "v2\n"}, removed: "[v4 v3 v1]"},
		{why: "the one a person pinned", running: "v5", state: map[string]string{pinned: "v2\n"}, removed: "[v4 v3 v1]"},
		{why: "the one gone back to", running: "v5", state: map[string]string{rollbackPinned: "v2\n"}, removed: "[v4 v3 v1]"},
		{why: "the one on trial", running: "v5", state: map[string]string{trial: "v2 1700000000\n"}, removed: "[v4 v3 v1]"},
		{why: "none of these counts for what is kept", running: "v5", keep: 1, state: map[string]string{knownGood: "v4\n"}, removed: "[v2 v1]"},
		{why: "no daemon runs", err: ErrRunningUnknown},
		{why: "it is another process by now", state: map[string]string{running: "v5 1 12345\n"}, err: ErrRunningUnknown},
		{why: "half a line", state: map[string]string{running: "v5"}, err: ErrRunningUnknown},
		{why: "the running one was removed by hand", running: "v9", err: ErrRunningUnknown},
		{why: "the program placed by hand arrived never", running: ByHand, removed: "[]"},
	} {
		t.Run(tc.why, func(t *testing.T) {
			s := newSite(t, all...)
			for name, text := range tc.state {
				s.put(name, text)
			}
			if tc.running != "" {
				s.runs(tc.running)
			}
			removed, kept, err := s.Retire(tc.keep)
			if !errors.Is(err, tc.err) {
				t.Fatalf("error %v, not %v", err, tc.err)
			}
			if tc.err != nil {
				tc.removed = "[]"
			} else if len(kept)+len(removed) != len(all) {
				t.Errorf("kept %v, removed %v", kept, removed)
			}
			if fmt.Sprint(removed) != tc.removed {
				t.Errorf("removed %v, not %s", removed, tc.removed)
			}
			entries, err := os.ReadDir(filepath.Join(s.Libexec, "versions"))
			if err != nil || len(entries) != len(all)-len(removed) {
				t.Errorf("left are %v, %v", entries, err)
			}
		})
	}
}

// What the daemon remembers is bounded, and half a line is none.
func TestRemembered(t *testing.T) {
	s := newSite(t)
	for i := range 3 * remembered {
		s.check(s.RecordStandAside("v", int64(i)))
	}
	s.check(s.RecordStandAside("v", 250))
	if n := strings.Count(s.file(stoodAside), "\n"); n != remembered {
		t.Errorf("%d lines", n)
	}
	for arrival, want := range map[int64]bool{299: true, 250: true, 200: true, 199: false, 1: false} {
		if got, err := s.StoodAside("v", arrival); err != nil || got != want {
			t.Errorf("stood aside for arrival %d: %v, %v", arrival, got, err)
		}
	}

	want := []Elsewhere{{"v1", "a"}, {"v2", "b"}}
	s.check(s.RecordElsewhere(want))
	got, err := s.RolledBackElsewhere()
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("elsewhere %v, %v", got, err)
	}
	s.put(rolledBackByPeer, "v1 a\nv2 b c\nv3\nv4 d")
	if got, err := s.RolledBackElsewhere(); err != nil || fmt.Sprint(got) != "[{v1 a}]" {
		t.Errorf("elsewhere %v, %v", got, err)
	}
	s.check(s.RecordElsewhere(nil))
	if s.file(rolledBackByPeer) != "none" {
		t.Error("an empty file is left")
	}

	s.check(s.RecordLauncherLeft("abc"))
	for digest, want := range map[string]bool{"abc": true, "ab": false, "": false} {
		if got, err := s.LauncherLeft(digest); err != nil || got != want {
			t.Errorf("left for %q: %v, %v", digest, got, err)
		}
	}
}

// A launcher that would not be run is no reason to end.
func TestScriptDigest(t *testing.T) {
	path := filepath.Join(t.TempDir(), "launch")
	if _, err := ScriptDigest(path); err == nil {
		t.Error("missing: no error")
	}
	for text, mode := range map[string]os.FileMode{"": 0o755, "#!/bin/sh\n": 0o644, "exit\n": 0o755} {
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := ScriptDigest(path); err == nil {
			t.Errorf("%q, %v: no error", text, mode)
		}
	}
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o755); err != nil {
		t.Fatal(err)
	}
	script, err := ScriptDigest(path)
	if err != nil {
		t.Fatal(err)
	}
	if digest, err := Digest(path); err != nil || digest != script {
		t.Errorf("digests %s and %s, %v", digest, script, err)
	}
}

// The newest verdict on each version that keeps it from being started.
func TestStanding(t *testing.T) {
	s := newSite(t)
	s.put(rolledBack, "a\tb\t1\trolled-back\tx\nc\t\t2\thalted\ty\na\tb\t3\trolled-back\tz\nd\n\n")
	want := []Verdict{
		{From: "a", To: "b", At: time.Unix(3, 0).UTC(), Outcome: RolledBack, Why: "z"},
		{From: "d"},
	}
	if got := s.snapshot().Standing(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// A state that cannot be read is an error, and not an empty one.
func TestRead_errors(t *testing.T) {
	s := newSite(t)
	s.StateDir = filepath.Join(s.Bin, "state")
	s.check(os.WriteFile(s.Bin, []byte("a file"), 0o644))
	if _, err := s.Read(); err == nil {
		t.Error("no error")
	}
}

// Every daemon of one launcher has the same place, each launcher another; without
// room there is none.
func TestPlace(t *testing.T) {
	one, two := newSite(t), newSite(t)
	first, err := one.Place()
	one.check(err)
	again, err := one.Place()
	one.check(err)
	other, err := two.Place()
	two.check(err)
	if first != again || first == other || !ValidName(first) {
		t.Errorf("places %q, %q and %q", first, again, other)
	}
	two.check(os.RemoveAll(two.StateDir))
	if place, err := two.Place(); err == nil {
		t.Errorf("place %q is not kept, and no error", place)
	}
}
