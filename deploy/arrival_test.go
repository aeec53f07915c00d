package deploy_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The newest by arrival: a marker before every time stamp, and what cannot be
// read never the newest.
func TestArrival(t *testing.T) {
	t.Parallel()
	hours := func(b *box, version string, n time.Duration) {
		at := time.Now().Add(n * time.Hour)
		for _, path := range []string{b.folder(version), filepath.Join(b.folder(version), "choria-provisioner")} {
			if err := os.Chtimes(path, at, at); err != nil {
				b.t.Fatal(err)
			}
		}
	}
	for name, test := range map[string]struct {
		do   func(b *box)
		want string
	}{
		"two in one second": {func(b *box) {
			b.deliver("b")
			b.deliver("a")
		}, "a"},
		"a preserved old time stamp": {func(b *box) {
			b.deliver("a")
			b.deliver("b")
			hours(b, "b", -1000)
		}, "b"},
		"a touched old folder": {func(b *box) {
			b.deliver("b")
			b.deliver("a")
			hours(b, "b", 0)
		}, "a"},
		"a touched old folder without a marker": {func(b *box) {
			b.place("b")
			b.deliver("a")
			hours(b, "b", 10)
		}, "a"},
		"time stamps where there are no markers": {func(b *box) {
			b.place("b")
			b.place("a")
			b.place("c")
			hours(b, "b", -1)
			hours(b, "a", -2)
			hours(b, "c", -3)
		}, "b"},
		"numbers, not texts": {func(b *box) {
			b.place("a")
			b.place("b")
			b.mark("a", "9")
			b.mark("b", "10")
		}, "b"},
		"leading zeros, CRLF, trailing words": {func(b *box) {
			b.place("a")
			b.place("b")
			b.mark("a", "0000000000000000000000008 x\r")
			b.mark("b", "0010\r")
		}, "b"},
		"15 digits": {func(b *box) {
			b.place("a")
			b.place("b")
			b.mark("a", "999999999999998")
			b.mark("b", "999999999999999")
		}, "b"},
		"23 digits": {func(b *box) {
			b.place("a")
			b.place("b")
			b.mark("a", "1")
			b.mark("b", "12345678901234567890123")
		}, "a"},
		"a marker that is being written": {func(b *box) {
			b.place("a")
			b.place("b")
			b.replace(filepath.Join(b.folder("b"), ".arrived"), "", 0o644)
		}, "a"},
		"the same number: the one that proved itself": {func(b *box) {
			b.place("a")
			b.place("b")
			b.place("c")
			for _, v := range []string{"a", "b", "c"} {
				b.mark(v, "1")
				at := time.Unix(1e9, 0)
				if err := os.Chtimes(b.folder(v), at, at); err != nil {
					b.t.Fatal(err)
				}
			}
			b.put("known-good", "b\n")
		}, "b"},
		"a folder from the future": {func(b *box) {
			b.place("a")
			hours(b, "a", 100000)
			b.deliver("b")
		}, "b"},
		"what arrived before the one that was rolled back is not tried": {func(b *box) {
			b.proved("wait")
			b.deliver("a", "wait")
			b.deliver("b", "crash")
			b.env["START_LIMIT"] = "1"
			b.start()
			b.wentBack("b", "v1")
			b.stop()
			if err := os.RemoveAll(b.folder("b")); err != nil {
				b.t.Fatal(err)
			}
			_ = os.Remove(filepath.Join(b.dir, "play/events"))
		}, "v1"},
		"what arrived after one from the future was rolled back is tried": {func(b *box) {
			b.proved("wait")
			if err := os.Remove(filepath.Join(b.folder("v1"), ".arrived")); err != nil {
				b.t.Fatal(err)
			}
			hours(b, "v1", -10)
			b.plan("b", "crash")
			b.place("b")
			hours(b, "b", 100000)
			b.env["START_LIMIT"] = "1"
			b.start()
			b.wentBack("b", "v1")
			b.stop()
			b.place("c")
			hours(b, "c", 1)
			_ = os.Remove(filepath.Join(b.dir, "play/events"))
		}, "c"},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, b *box) {
				test.do(b)
				b.start()
				b.waits(test.want)
				b.want("starts", b.starts(), []string{test.want})
				b.stop()
			})
		})
	}
}

// What is still on its way is neither started nor barred; the known-good version
// runs, and later the new one, when it is whole.
func TestOnItsWay(t *testing.T) {
	t.Parallel()
	binary := func(b *box) string { return filepath.Join(b.folder("v2"), "choria-provisioner") }
	for name, test := range map[string]struct {
		begin  func(b *box)
		finish func(b *box)
	}{
		"an empty folder": {func(b *box) {
			if err := os.Mkdir(b.folder("v2"), 0o755); err != nil {
				b.t.Fatal(err)
			}
		}, func(b *box) { b.replace(binary(b), b.binary(), 0o755) }},
		"an empty file": {func(b *box) {
			b.deliver("v2")
			b.replace(binary(b), "", 0o755)
		}, func(b *box) { b.replace(binary(b), b.binary(), 0o755) }},
		"not executable": {func(b *box) {
			b.deliver("v2")
			b.replace(binary(b), b.binary(), 0o644)
		}, func(b *box) { b.replace(binary(b), b.binary(), 0o755) }},
		"a folder in place of the binary": {func(b *box) {
			if err := os.MkdirAll(binary(b), 0o755); err != nil {
				b.t.Fatal(err)
			}
		}, func(b *box) {
			if err := os.Remove(binary(b)); err != nil {
				b.t.Fatal(err)
			}
			b.replace(binary(b), b.binary(), 0o755)
		}},
		"staged": {func(b *box) {
			b.deliver(".v2")
		}, func(b *box) {
			if err := os.Rename(b.folder(".v2"), b.folder("v2")); err != nil {
				b.t.Fatal(err)
			}
		}},
		// A shell of another process holds the file open, as a copy does.
		"busy": {func(b *box) {
			b.deliver("v2")
			f, err := os.OpenFile(binary(b), os.O_WRONLY, 0)
			if err != nil {
				b.t.Fatal(err)
			}
			b.t.Cleanup(func() { _ = f.Close() })
			b.busy = f
		}, func(b *box) { _ = b.busy.Close() }},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, b *box) {
				b.env["START_LIMIT"] = "1"
				b.proved()
				test.begin(b)
				b.start()
				b.waits("v1")
				for n := range 3 {
					b.tell(syscall.SIGUSR1)
					b.eventually("v1 runs again", func() bool { return len(b.starts()) == n+2 })
					b.waits("v1")
				}
				b.want("starts", b.starts(), []string{"v1", "v1", "v1", "v1"})
				b.want("verdicts", b.verdicts(), []string(nil))
				test.finish(b)
				b.mark("v2", "7")
				b.tell(syscall.SIGUSR1)
				b.waits("v2")
				b.want("known-good", b.file("known-good"), "v2")
				b.stop()
			})
		})
	}
}

// Names that could be misread are no versions, neither in the folder nor in the
// files that a person or a daemon writes.
func TestNames(t *testing.T) {
	names := []string{
		" ", " v2", "v2 ", "v 2", "v2\n", "\n", "v1\nv2", "-v2", "-", "--", "*", "v*", "[v]2", "?2", `v\2`, `\`, "v2\t", "$v", "`v`", "'v'", `"`,
		"é", "v2;reboot", "v2&", "..v2", "_v2", byHand, strings.Repeat("v", 129),
	}
	each(t, func(t *testing.T, b *box) {
		b.proved("wait")
		for _, name := range names {
			b.deliver(name)
		}
		for _, name := range append(names, "..", "../versions/v2", "/") {
			b.put("pinned", name+"\n")
			b.put("known-good", name+"\n")
			b.start()
			b.waits("v1")
			b.stop()
		}
		for _, v := range b.starts() {
			if v != "v1" {
				t.Errorf("started: %q", v)
			}
		}
	})
}

// Names that look odd and are allowed.
func TestOddNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"0", "1:2.0~rc1^git-3+b_4", strings.Repeat("v", 128), "v-", "V1"} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, b *box) {
				b.proved("wait")
				b.deliver(name, "crash")
				b.env["START_LIMIT"] = "1"
				b.start()
				b.wentBack(name, "v1")
				b.stop()
			})
		})
	}
}

// A version that was rolled back is not started under another name.
func TestOtherNames(t *testing.T) {
	t.Parallel()
	for name, link := range map[string]func(b *box) error{
		"a link to its folder": func(b *box) error { return os.Symlink("v2", b.folder("v3")) },
		"a link to its binary": func(b *box) error {
			b.place("v3")
			path := filepath.Join(b.folder("v3"), "choria-provisioner")
			if err := os.Remove(path); err != nil {
				return err
			}
			return os.Symlink("../v2/choria-provisioner", path)
		},
		"the same file": func(b *box) error {
			b.place("v3")
			path := filepath.Join(b.folder("v3"), "choria-provisioner")
			if err := os.Remove(path); err != nil {
				return err
			}
			b.mark("v3", "9")
			return os.Link(filepath.Join(b.folder("v2"), "choria-provisioner"), path)
		},
		"the hand-placed binary": func(b *box) error {
			b.put("pinned", byHand+"\n")
			return os.Symlink("lib/versions/v2/choria-provisioner", filepath.Join(b.dir, "bin"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, b *box) {
				b.proved("wait")
				b.deliver("v2", "crash")
				b.put("rolled-back", "v2\tv1\t1700000000\trolled-back\tcrashed\n")
				if err := link(b); err != nil {
					t.Fatal(err)
				}
				b.start()
				b.waits("v1")
				b.want("starts", b.starts(), []string{"v1"})
				b.stop()
			})
		})
	}
}

// The launcher's own paths may hold anything.
func TestPaths(t *testing.T) {
	t.Parallel()
	for _, inside := range []string{"a b", "a\nb", "-n", "*", "[a]", `a\nb`, "$(exit)", "'", `"`, "é"} {
		t.Run(inside, func(t *testing.T) {
			t.Parallel()
			for _, name := range []string{"dash", "busybox", "bash"} {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					b := newBox(t, name, inside)
					b.env["START_LIMIT"] = "1"
					b.proved("wait")
					b.deliver("v2", "crash")
					b.start()
					b.wentBack("v2", "v1")
					b.stop()
				})
			}
		})
	}
}

// Relative settings are relative to where the launcher was started, and none is
// taken for an option.
func TestRelativePaths(t *testing.T) {
	each(t, func(t *testing.T, b *box) {
		for name, to := range map[string]string{"-state": "state", "-lib": "lib"} {
			if err := os.Rename(filepath.Join(b.dir, to), filepath.Join(b.dir, name)); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(name, filepath.Join(b.dir, to)); err != nil {
				t.Fatal(err)
			}
		}
		b.env["STATE_DIR"], b.env["LIBEXEC"] = "-state", "-lib"
		b.in = b.dir
		b.env["START_LIMIT"] = "1"
		b.proved("wait")
		b.deliver("v2", "crash")
		b.start()
		b.wentBack("v2", "v1")
		b.stop()
	})
}
