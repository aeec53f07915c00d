// Command daemon stands in for the provisioner in tests of the launcher. It is
// run as "daemon BINARY run ARGUMENT..." by the BINARY of a version, and does
// what the file PLAY/plan/VERSION tells it: a line for each start, of which the
// last one stands for all that follow, holding steps separated by blanks:
//
//	prove      write this version into known-good and clear the counter
//	half       write this version into known-good only
//	crash      exit 7
//	exit       exit 0
//	deaf       take no notice of TERM from here on
//	last-word  prove when TERM comes
//	blind      change trial-blind all the time
//	wait       end at TERM or INT (0), USR1 (0) or USR2 (7); prove at WINCH
//
// Every start, step and signal is a line "VERSION PID WORD" in PLAY/events.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

var (
	play    = os.Getenv("PLAY")
	state   = os.Getenv("PROVISIONER_LAUNCH_STATE_DIR")
	version string
)

func main() {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH)
	// A disk that is full for the launcher is not for this record.
	var limit syscall.Rlimit
	_ = syscall.Getrlimit(syscall.RLIMIT_FSIZE, &limit)
	full := limit.Cur == 0
	limit.Cur = limit.Max
	_ = syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit)

	version = filepath.Base(filepath.Dir(os.Args[1]))
	if filepath.Base(filepath.Dir(filepath.Dir(os.Args[1]))) != "versions" {
		version = "placed-by-hand"
	}
	say("start")
	write(filepath.Join(play, "environ"), strings.Join(os.Environ(), "\x00"))
	write(filepath.Join(play, "arguments"), strings.Join(os.Args[2:], "\x00"))

	deaf, lastWord := false, false
	for _, step := range steps() {
		switch step {
		case "prove":
			prove(full)
		case "half":
			write(filepath.Join(state, "known-good"), version)
		case "crash":
			say("crash")
			os.Exit(7)
		case "exit":
			say("exit")
			os.Exit(0)
		case "deaf":
			deaf = true
		case "last-word":
			lastWord = true
		case "blind":
			go blind()
		case "wait":
			say("wait")
			for s := range signals {
				say(s.String())
				switch {
				case s == syscall.SIGWINCH:
					prove(full)
				case s == syscall.SIGUSR1:
					os.Exit(0)
				case s == syscall.SIGUSR2:
					os.Exit(7)
				case !deaf:
					if lastWord {
						prove(full)
					}
					os.Exit(0)
				}
			}
		}
	}
}

func steps() []string {
	text, err := os.ReadFile(filepath.Join(play, "plan", version))
	if err != nil {
		return []string{"prove", "wait"}
	}
	events, _ := os.ReadFile(filepath.Join(play, "events"))
	starts := 0
	for line := range strings.Lines(string(events)) {
		f := strings.Fields(line)
		if f[0] == version && f[2] == "start" {
			starts++
		}
	}
	plan := strings.Split(strings.TrimSpace(string(text)), "\n")

	return strings.Fields(plan[min(starts, len(plan))-1])
}

func prove(full bool) {
	if full {
		say("no-room")
		return
	}
	fresh := filepath.Join(state, ".known-good.daemon")
	err := os.WriteFile(fresh, []byte(version+"\n"), 0o644)
	if err == nil {
		err = os.Rename(fresh, filepath.Join(state, "known-good"))
	}
	if err == nil {
		if err = os.Remove(filepath.Join(state, "start-attempts")); errors.Is(err, os.ErrNotExist) {
			err = nil
		}
	}
	if err != nil {
		say("no-room")
		return
	}
	say("proved")
}

func blind() {
	for i := 0; ; i++ {
		fresh := filepath.Join(state, ".trial-blind.daemon")
		if os.WriteFile(fresh, fmt.Appendln(nil, i), 0o644) == nil {
			_ = os.Rename(fresh, filepath.Join(state, "trial-blind"))
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func say(word string) {
	f, err := os.OpenFile(filepath.Join(play, "events"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		os.Exit(99)
	}
	fmt.Fprintln(f, version, os.Getpid(), strings.ReplaceAll(word, " ", "-"))
	_ = f.Close()
}

func write(path, text string) {
	_ = os.WriteFile(path+".new", []byte(text), 0o666)
	_ = os.Rename(path+".new", path)
}
