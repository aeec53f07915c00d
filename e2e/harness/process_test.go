//go:build linux

package harness

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

// What a failed test leaves running would spoil the ones after it.
func TestKillLeavesNothing(t *testing.T) {
	for _, test := range []struct {
		name, script string
		processes    int
	}{
		{"a child", "sleep 603; true", 1},
		{"a child of a child", "sh -c 'sleep 603; true'; true", 2},
		{"a child whose parent has ended", "(sleep 603 &); sleep 603; true", 2},
		{"a child of a process that has ended", "sleep 603 &", 1},
		{"a child elsewhere", "(cd / && exec sleep 603); true", 1},
		{"a child that heeds no signal", "trap '' TERM HUP; sleep 603; true", 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := Start(t, "shell", t.TempDir(), nil, "/bin/sh", "-c", test.script)

			var family []ProcessID
			Eventually(t, 5*time.Second, "start of the children", func() error {
				family = p.Descendants()
				sleeping := 0
				for _, id := range family {
					if id.Command() == "sleep 603" {
						sleeping++
					}
				}
				if len(family) != test.processes || sleeping == 0 {
					return fmt.Errorf("%v run", family)
				}
				return nil
			})

			p.Kill()
			if p.Running() {
				t.Error("the process runs")
			}
			ExpectGone(t, time.Second, family)
		})
	}
}

// Terminate tells a clean end from others.
func TestTerminate(t *testing.T) {
	for _, test := range []struct {
		name, script string
		want         error
	}{
		{"exit code 0", "trap 'exit 0' TERM; echo ready; while :; do sleep 0.01; done", nil},
		{"another exit code", "trap 'exit 3' TERM; echo ready; while :; do sleep 0.01; done", errors.New("shell ended by SIGTERM: exit status 3")},
		{"ended by the signal", "echo ready; while :; do sleep 0.01; done", errors.New("shell ended by SIGTERM: signal: terminated")},
		{"no end", "trap '' TERM; echo ready; while :; do sleep 0.01; done", errors.New("shell still runs 300ms after SIGTERM")},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := Start(t, "shell", t.TempDir(), nil, "/bin/sh", "-c", test.script)
			Eventually(t, 5*time.Second, "start", func() error {
				if p.Log() != "ready\n" {
					return errors.New("not ready")
				}
				return nil
			})

			_, err := p.Terminate(300 * time.Millisecond)
			if fmt.Sprint(err) != fmt.Sprint(test.want) {
				t.Errorf("got %v, want %v", err, test.want)
			}
		})
	}
}
