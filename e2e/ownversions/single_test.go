//go:build linux

package ownversions

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/choria-provisioner/provisioner/e2e/harness"
	"github.com/choria-provisioner/provisioner/internal/simfleet"
)

// insecure are the keys of a daemon without TLS.
func insecure(bin programs, broker *simfleet.Broker) map[string]any {
	return map[string]any{
		"choria_insecure": true,
		"helper":          harness.SiteHelper(bin.Binaries, harness.InsecureConfiguration(broker)),
	}
}

// The life of an installation: each version that works takes over from the one
// before, each that does not is left for it, once.
func TestVersionsComeAndGo(t *testing.T) {
	t.Parallel()
	bin, broker := build(t), harness.StartBroker(t, simfleet.Insecure)
	m := newMachine(t, bin, broker, "provisioner.example.net", insecure(bin, broker))
	m.env["TRIAL_BOUND"] = "10"
	m.deliver("v1", bin.first)
	m.start()
	s := m.runs("v1")
	m.want("build", s.Build, "1.0.0")

	m.deliver("v2", bin.second)
	s = m.runs("v2")
	m.want("build", s.Build, "2.0.0")

	m.deliverScript("v3", "exit 7")
	harness.Eventually(t, limit, "v3 is left", func() error {
		if got := fmt.Sprint(m.verdicts()); got != "[v3 rolled-back v2]" {
			return fmt.Errorf("verdicts %s", got)
		}
		return nil
	})
	s = m.runs("v2")
	m.want("verdicts in the status", len(s.Version.Verdicts), 1)

	// It works, but reports to nobody.
	m.deliverScript("v4", "PROVISIONER_LAUNCH_STATE_DIR="+t.TempDir()+" exec '"+bin.second+`' "$@"`)
	harness.Eventually(t, limit, "v4 is left", func() error {
		if got := fmt.Sprint(m.verdicts()); got != "[v3 rolled-back v2 v4 rolled-back v2]" {
			return fmt.Errorf("verdicts %s", got)
		}
		return nil
	})
	m.runs("v2")

	m.deliver("v5", bin.second)
	s = m.runs("v5")
	m.want("verdicts in the status", len(s.Version.Verdicts), 2)
	m.stop()
}

// A version that reaches no broker is blind, not bad: its trial lasts for as long
// as that.
func TestBrokerDownDuringATrial(t *testing.T) {
	t.Parallel()
	bin, broker := build(t), harness.StartBroker(t, simfleet.Insecure)
	m := newMachine(t, bin, broker, "provisioner.example.net", insecure(bin, broker))
	m.deliver("v1", bin.first)
	m.start()
	m.runs("v1")
	m.stop()

	broker.Stop()
	m.env["TRIAL_BOUND"] = "5"
	m.deliver("v2", bin.second)
	m.start()
	harness.Eventually(t, limit, "v2 is blind for longer than the bound", func() error {
		words := strings.Fields(m.file("trial-spent"))
		if len(words) != 3 || words[0] != "v2" {
			return fmt.Errorf("trial-spent holds %v", words)
		}
		if blind, err := strconv.Atoi(words[2]); err != nil || blind < 12 {
			return fmt.Errorf("blind for %s seconds", words[2])
		}
		return nil
	})
	m.want("running", m.snapshot().Running, "v2")
	m.want("verdicts", m.verdicts(), []string(nil))
	if err := broker.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.runs("v2")
	m.want("verdicts", m.verdicts(), []string(nil))
	m.stop()
}

// A launcher that is replaced is run at once, and with it what came with it. Alone
// it costs one restart of the daemon, and no more.
func TestLauncherReplaced(t *testing.T) {
	t.Parallel()
	bin, broker := build(t), harness.StartBroker(t, simfleet.Insecure)
	m := newMachine(t, bin, broker, "provisioner.example.net", insecure(bin, broker))
	m.deliver("v1", bin.first)
	m.start()
	m.runs("v1")
	pid := m.process.ID

	launcher := func(name string) string {
		text, err := os.ReadFile("../../deploy/launch")
		if err != nil {
			t.Fatal(err)
		}
		return strings.Replace(string(text), "\nmain \"$@\"; exit", "\nsay 'the "+name+" launcher'\nmain \"$@\"; exit", 1)
	}
	m.installLauncher(launcher("second"))
	m.deliver("v2", bin.second)
	before := m.runs("v2")
	m.want("starts of the second launcher", m.says("the second launcher"), 1)

	m.installLauncher(launcher("third"))
	harness.Eventually(t, limit, "the third launcher", func() error {
		if m.says("the third launcher") != 1 {
			return errors.New("it does not run")
		}
		return nil
	})
	after := m.runs("v2")
	if before.Instance == after.Instance {
		t.Error("the daemon did not end for the third launcher")
	}

	// One that cannot be run costs a restart too; the one that runs goes on.
	m.installLauncher("#!/bin/sh\nif\n")
	harness.Eventually(t, limit, "the daemon ends for a broken launcher", func() error {
		if m.says("the new launcher has a syntax error") != 1 {
			return errors.New("it does not")
		}
		return nil
	})
	again := m.runs("v2")
	// Some rounds of the daemon, in which it must not end once more.
	time.Sleep(5 * time.Second)
	m.want("instance", m.runs("v2").Instance, again.Instance)
	if m.process.ID != pid || !m.process.ID.Alive() {
		t.Error("the launcher is not the process it was")
	}
	m.want("verdicts", m.verdicts(), []string(nil))
	m.stop()
}
