package deploy_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// The daemon is the launcher's child, gets its arguments as they are, and the
// settings.
func TestHandsOn(t *testing.T) {
	each(t, func(t *testing.T, b *box) {
		b.placeByHand()
		b.env["TRIAL_BOUND"] = "077"
		b.start("--config", "a b", "*", "", "-x", "two\nlines", `back\slash`)
		b.waits(byHand)
		arguments, err := os.ReadFile(filepath.Join(b.dir, "play/arguments"))
		if err != nil {
			t.Fatal(err)
		}
		b.want("arguments", strings.Split(string(arguments), "\x00"), []string{"run", "--config", "a b", "*", "", "-x", "two\nlines", `back\slash`})
		environ, err := os.ReadFile(filepath.Join(b.dir, "play/environ"))
		if err != nil {
			t.Fatal(err)
		}
		for name, value := range map[string]string{
			"STATE_DIR": b.env["STATE_DIR"], "LIBEXEC": b.env["LIBEXEC"], "BIN": b.env["BIN"],
			"START_LIMIT": "3", "BACKOFF": "0", "TRIAL_BOUND": "77", "TRIAL_TICK": "1", "STOP_GRACE": "20", "RUN_ONCE": "",
			"VERSION": byHand, "SCRIPT": filepath.Join(b.dir, "launch"),
		} {
			if !strings.Contains(string(environ)+"\x00", "PROVISIONER_LAUNCH_"+name+"="+value+"\x00") {
				t.Errorf("%s is not %q in %q", name, value, environ)
			}
		}
		b.stop()
	})
}

// Without a version or a hand-placed binary there is nothing to run; once there
// is, nobody has to remove the halt.
func TestNoHostBinary(t *testing.T) {
	each(t, func(t *testing.T, b *box) {
		if err := os.MkdirAll(b.folder("v1"), 0o755); err != nil {
			t.Fatal(err)
		}
		b.start()
		b.want("exit status", b.exit(), 0)
		b.want("halted", b.file("halted"), "no host binary")
		b.placeByHand()
		b.start()
		b.waits(byHand)
		b.want("halted", b.file("halted"), "")
		b.stop()
	})
}

// What runs is asked at every turn.
func TestChoice(t *testing.T) {
	each(t, func(t *testing.T, b *box) {
		b.placeByHand()
		b.start()
		b.waits(byHand)
		turn := func(why, version string) {
			t.Helper()
			starts := len(b.starts())
			b.tell(syscall.SIGUSR1)
			b.eventually("a start", func() bool { return len(b.starts()) > starts })
			b.want(why, b.starts()[starts:], []string{version})
			b.waits(version)
		}
		b.deliver("1.9")
		turn("a version comes before the hand-placed binary", "1.9")
		b.deliver("1.10")
		turn("the newest by arrival, not by name", "1.10")
		b.deliver("1.2")
		turn("the newest by arrival, not by order of numbers", "1.2")
		b.put("pinned", "1.9\n")
		turn("a person's pin", "1.9")
		b.deliver("1.11")
		turn("a person's pin holds against what arrives", "1.9")
		b.put("pinned", byHand+"\n")
		turn("a person may pin the hand-placed binary", byHand)
		b.put("pinned", "ghost\n")
		turn("a pin on nothing is none", "1.11")
		b.stop()
	})
}
