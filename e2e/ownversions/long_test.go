//go:build linux && long

package ownversions

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/choria-provisioner/provisioner/e2e/harness"
	"github.com/choria-provisioner/provisioner/internal/simfleet"
)

// Killed at any moment, launcher or daemon, an installation ends up with the
// newest version, with one daemon, and with nothing held against any version.
func TestKilledAtAnyMoment(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	bin, broker := build(t), harness.StartBroker(t, simfleet.Insecure)
	m := newMachine(t, bin, broker, "provisioner.example.net", insecure(bin, broker))
	// A kill must not look like a version that fails.
	m.env["START_LIMIT"] = "1000"
	m.deliver("v1", bin.first)
	m.start()
	m.runs("v1")

	last := ""
	for i := 2; i <= 6; i++ {
		last = "v" + strconv.Itoa(i)
		m.deliver(last, []string{bin.first, bin.second}[i%2])
		for range 3 {
			time.Sleep(time.Duration(random.IntN(5000)) * time.Millisecond)
			if random.IntN(2) == 0 {
				m.killDaemon()
				continue
			}
			_ = syscall.Kill(m.process.ID.PID, syscall.SIGKILL)
			m.start()
		}
	}
	m.runs(last)
	m.want("verdicts", m.verdicts(), []string(nil))
	daemons := slices.DeleteFunc(m.process.Descendants(), func(id harness.ProcessID) bool { return !isDaemon(id) })
	m.want("daemons", len(daemons), 1)
	m.stop()
}

// killDaemon kills the daemon alone, if one runs.
func (m *machine) killDaemon() {
	words := strings.Fields(m.file("running"))
	if len(words) < 3 || m.snapshot().Running == "" {
		return
	}
	if pid, err := strconv.Atoi(words[1]); err == nil {
		m.killed = true
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// A version that does nothing at all is left when its time is up.
func TestHangs(t *testing.T) {
	t.Parallel()
	bin, broker := build(t), harness.StartBroker(t, simfleet.Insecure)
	m := newMachine(t, bin, broker, "provisioner.example.net", insecure(bin, broker))
	m.env["TRIAL_BOUND"], m.env["STOP_GRACE"] = "10", "2"
	m.deliver("v1", bin.first)
	m.start()
	m.runs("v1")
	m.deliverScript("v2", "trap '' TERM; while :; do sleep 1; done")
	harness.Eventually(t, limit, "v2 is left", func() error {
		if got := fmt.Sprint(m.verdicts()); got != "[v2 rolled-back v1]" {
			return fmt.Errorf("verdicts %s", got)
		}
		return nil
	})
	m.runs("v1")
	m.stop()
}

// Three instances go through some versions, one of which fails on one of them,
// while nodes come in and leaders are killed; no node is lost.
func TestClusterThroughVersions(t *testing.T) {
	t.Parallel()
	bin, broker := build(t), harness.StartBroker(t, simfleet.Issuer)
	fleet := harness.StartFleet(t, broker, 50, simfleet.NodeOptions{})
	var machines []*machine
	for _, name := range []string{"one.example.net", "two.example.net", "three.example.net"} {
		m := newMachine(t, bin, broker, name, clustered(bin, broker))
		m.env["START_LIMIT"] = "3"
		m.deliver("v1", bin.first)
		m.start()
		machines = append(machines, m)
	}
	ctx, stop := context.WithCancel(t.Context())
	var coming sync.WaitGroup
	defer coming.Wait()
	defer stop()
	coming.Go(func() { comeIn(ctx, t, fleet) })
	everywhere := func(version string) {
		t.Helper()
		for _, m := range machines {
			m.runs(version)
		}
	}
	everywhere("v1")

	for _, m := range machines {
		m.deliver("v2", bin.second)
	}
	everywhere("v2")
	for _, m := range machines {
		m.killDaemon()
		m.runs("v2")
	}

	two := machines[1]
	two.deliverScript("v3", "exit 7")
	harness.Eventually(t, limit, "v3 is left by two", func() error {
		if got := fmt.Sprint(two.verdicts()); got != "[v3 rolled-back v2]" {
			return fmt.Errorf("verdicts %s", got)
		}
		return nil
	})
	everywhere("v2")
	for _, m := range []*machine{machines[0], machines[2]} {
		m.deliver("v3", bin.first)
	}
	time.Sleep(20 * time.Second)
	everywhere("v2")

	for _, m := range machines {
		m.deliver("v4", bin.first)
	}
	everywhere("v4")
	stop()
	coming.Wait()
	harness.ExpectProvisioned(t, fleet, 2*limit)
	t.Logf("%d nodes; errors %v", len(fleet.Nodes()), fleet.Counts().Errors)
	for _, m := range machines {
		m.stop()
	}
}
