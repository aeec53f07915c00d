//go:build linux

package harness

import (
	"testing"
	"time"
)

// The lease lasts simfleet.MinElectionTTL, 4 seconds; candidates campaign every
// 3 seconds, after a splay of up to 5, and lead from the second campaign on.
const (
	firstLeaderLimit = 20 * time.Second
	// a lease that was given back is won by the next campaign
	handoverLimit = 15 * time.Second
	// a lease that was not has to run out first
	takeoverLimit = 20 * time.Second
)

// Standby is what the test of a change of leader needs of a network.
type Standby struct {
	// StartDaemon starts a daemon with leader election.
	StartDaemon func(t testing.TB, name string) *Daemon
	StartNode   func(t testing.TB, identity string) *Node
}

// TestStandby shows that a standby takes over, and provisions, when the leader
// gets SIGTERM and when it is killed.
func TestStandby(t *testing.T, s Standby) {
	first := s.StartDaemon(t, "first")
	Eventually(t, firstLeaderLimit, "first leader", first.leads)

	second := s.StartDaemon(t, "second")
	Eventually(t, 10*time.Second, "standby", second.standsBy)

	TerminateDaemon(t, first)
	Eventually(t, handoverLimit, "takeover after SIGTERM", second.leads)
	s.StartNode(t, "after-term.example.net")
	Eventually(t, 15*time.Second, "node for the second leader", func() error {
		return second.ExpectMetric("choria_provisioner_provisioned", 1)
	})

	third := s.StartDaemon(t, "third")
	Eventually(t, 10*time.Second, "standby", third.standsBy)

	second.KillAlone(t)
	Eventually(t, takeoverLimit, "takeover after SIGKILL", third.leads)
	s.StartNode(t, "after-kill.example.net")
	Eventually(t, 15*time.Second, "node for the third leader", func() error {
		return third.ExpectMetric("choria_provisioner_provisioned", 1)
	})
}

// leads is an error unless the daemon works.
func (d *Daemon) leads() error { return d.ExpectMetric("choria_provisioner_paused", 0) }

// standsBy is an error unless the daemon runs and waits for the lease.
func (d *Daemon) standsBy() error {
	err := d.ExpectMetric("choria_provisioner_paused", 1)
	if err != nil {
		return err
	}

	return d.ExpectMetric("choria_provisioner_discover_cycles", 0)
}
