package deploy_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A launcher that was replaced is run at the next clean exit, as the same
// process and with the same arguments; it knows what the old one knew.
func TestSuccessor(t *testing.T) {
	each(t, func(t *testing.T, b *box) {
		b.proved()
		b.start("--config", "a b", "")
		b.waits("v1")
		// A version and a launcher in one go.
		b.installLauncher(strings.Replace(b.script(), "\nmain \"$@\"; exit\n", "\necho \"launcher 0 new\" >>\"$PLAY/events\"\nmain \"$@\"; exit\n", 1))
		b.deliver("v2", "crash")
		b.tell(syscall.SIGUSR1)
		b.wentBack("v2", "v1")
		b.want("successors", len(b.events("launcher")), 1)
		arguments, err := os.ReadFile(filepath.Join(b.dir, "play/arguments"))
		if err != nil {
			t.Fatal(err)
		}
		b.want("arguments", strings.Split(string(arguments), "\x00"), []string{"run", "--config", "a b", ""})

		// It is run once, and not because it was touched.
		b.tell(syscall.SIGUSR1)
		b.eventually("a start", func() bool { return len(b.starts()) == 6 })
		b.waits("v1")
		b.installLauncher(strings.Replace(b.script(), "\nmain \"$@\"; exit\n", "\necho \"launcher 0 new\" >>\"$PLAY/events\"\nmain \"$@\"; exit\n", 1))
		b.tell(syscall.SIGUSR1)
		b.eventually("a start", func() bool { return len(b.starts()) == 7 })
		b.waits("v1")
		b.want("successors", len(b.events("launcher")), 1)
		b.stop()
	})
}

// One that could not run is not run; the old one goes on and is replaced later.
func TestBadSuccessor(t *testing.T) {
	t.Parallel()
	for name, replace := range map[string]func(b *box, path string){
		"empty":          func(b *box, path string) { b.replace(path, "", 0o755) },
		"not executable": func(b *box, path string) { b.replace(path, b.script()+"# new\n", 0o644) },
		"missing": func(b *box, path string) {
			if err := os.Remove(path); err != nil {
				b.t.Fatal(err)
			}
		},
		"with a syntax error": func(b *box, path string) { b.replace(path, b.script()+"\nif then\n", 0o755) },
		"cut off":             func(b *box, path string) { b.replace(path, b.script()[:9000], 0o755) },
		// What is left is a good script, of functions that nobody calls.
		"cut off before its last line": func(b *box, path string) {
			whole, _, _ := strings.Cut(b.script(), "\nmain \"$@\"; exit\n")
			b.replace(path, whole+"\n", 0o755)
		},
		"no script":         func(b *box, path string) { b.replace(path, "echo hello\n", 0o755) },
		"without its shell": func(b *box, path string) { b.replace(path, "#!/nowhere/sh\n", 0o755) },
		// The running one is read whole before it starts.
		"written over in place": func(b *box, path string) {
			if err := os.WriteFile(path, []byte(strings.Repeat("exit 3\n", 8000)+"if\n"), 0o755); err != nil {
				b.t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, b *box) {
				b.proved()
				b.start()
				b.waits("v1")
				replace(b, filepath.Join(b.dir, "launch"))
				for starts := range 2 {
					b.tell(syscall.SIGUSR1)
					b.eventually("a start", func() bool { return len(b.starts()) == starts+2 })
					b.waits("v1")
				}
				log, err := os.ReadFile(filepath.Join(b.dir, "log"))
				if err != nil {
					t.Fatal(err)
				}
				b.want("said", strings.Count(string(log), "this one goes on"), 1)
				b.installLauncher(strings.Replace(b.script(), "\nmain \"$@\"; exit\n", "\necho \"launcher 0 new\" >>\"$PLAY/events\"\nmain \"$@\"; exit\n", 1))
				b.tell(syscall.SIGUSR1)
				b.eventually("a start", func() bool { return len(b.starts()) == 4 })
				b.waits("v1")
				b.want("successors", len(b.events("launcher")), 1)
				b.stop()
			})
		})
	}
}

// The script is plain POSIX shell.
func TestShellcheck(t *testing.T) {
	out, err := exec.Command("shellcheck", "--shell=sh", "launch").CombinedOutput()
	if err != nil {
		t.Errorf("%v (the Debian package is shellcheck)\n%s", err, out)
	}
}
