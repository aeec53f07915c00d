//go:build linux

package ownversions

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/choria-provisioner/provisioner/e2e/harness"
	"github.com/choria-provisioner/provisioner/internal/simfleet"
	"github.com/choria-provisioner/provisioner/status"
)

// Two instances change their version, one after the other, while nodes come in
// all the time: none is lost, and none is configured twice.
func TestCluster(t *testing.T) {
	t.Parallel()
	bin, broker := build(t), harness.StartBroker(t, simfleet.Issuer)
	fleet := harness.StartFleet(t, broker, 20, simfleet.NodeOptions{})
	var machines []*machine
	for _, name := range []string{"one.example.net", "two.example.net"} {
		m := newMachine(t, bin, broker, name, clustered(bin, broker))
		m.deliver("v1", bin.first)
		m.start()
		machines = append(machines, m)
	}
	for _, m := range machines {
		m.runs("v1")
	}

	ctx, stop := context.WithCancel(t.Context())
	var coming sync.WaitGroup
	coming.Go(func() { comeIn(ctx, t, fleet) })
	for _, m := range machines {
		m.deliver("v2", bin.second)
	}
	both := watchBoth(ctx, machines[0], &coming)
	for _, m := range machines {
		m.runs("v2")
	}
	stop()
	coming.Wait()
	if seen := both(); seen != "" {
		t.Errorf("both at once: %s", seen)
	}

	harness.ExpectProvisioned(t, fleet, limit)
	for _, node := range fleet.Nodes() {
		configured := 0
		for _, call := range node.Calls() {
			if call.Action == "choria_provision#configure" {
				configured++
			}
		}
		if configured != 1 {
			t.Errorf("%s was configured %d times", node.Identity(), configured)
		}
	}
	t.Logf("%d nodes; errors %v", len(fleet.Nodes()), fleet.Counts().Errors)

	// One goes back from a version; the other does not start it before a person
	// says so.
	one, two := machines[0], machines[1]
	one.deliverScript("v3", "exit 7")
	harness.Eventually(t, limit, "v3 is left by one", func() error {
		if got := fmt.Sprint(one.verdicts()); got != "[v3 rolled-back v2]" {
			return fmt.Errorf("verdicts %s", got)
		}
		return nil
	})
	one.runs("v2")
	two.deliver("v3", bin.second)
	harness.Eventually(t, limit, "two says that it does not start v3", func() error {
		list, err := two.status()
		if err != nil {
			return err
		}
		for _, s := range list {
			if s.Identity == two.name && s.Version.Successor == "v3" && !s.Version.Ready && s.Version.Waits != "" {
				return nil
			}
		}
		return fmt.Errorf("it does not: %+v", list)
	})
	two.want("running", two.snapshot().Running, "v2")
	// Neither after a restart of that machine.
	two.stop()
	two.start()
	two.runs("v2")
	if _, err := two.command("versions", "release", "v3", "--state-dir", two.launcher.StateDir, "--libexec", two.launcher.Libexec); err != nil {
		t.Fatal(err)
	}
	two.runs("v3")
	for _, m := range machines {
		m.stop()
	}
}

// clustered are the keys of one of several daemons on an issuer network.
func clustered(bin programs, broker *simfleet.Broker) map[string]any {
	return map[string]any{
		"leader_election":   true,
		"workers":           4,
		"jwt_verify_cert":   broker.VerifyCert(),
		"jwt_signing_key":   broker.SigningKey(),
		"jwt_signing_token": broker.SigningToken(),
		"features":          map[string]bool{"ed25519": true},
		"helper":            harness.SiteHelper(bin.Binaries, harness.IssuerConfiguration(broker)),
	}
}

// comeIn adds one node after the other until ctx ends.
func comeIn(ctx context.Context, t *testing.T, fleet *simfleet.Fleet) {
	for i := 0; ctx.Err() == nil; i++ {
		if _, err := fleet.Add(ctx, fmt.Sprintf("late-%05d.example.net", i), nil); err != nil && ctx.Err() == nil {
			t.Error(err)
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// watchBoth looks all the time whether both instances make way at once, or one is
// away while the other makes way.
func watchBoth(ctx context.Context, m *machine, tasks *sync.WaitGroup) (seen func() string) {
	var mu sync.Mutex
	var what string
	tasks.Go(func() {
		for ctx.Err() == nil {
			list, err := m.status()
			select {
			case <-ctx.Done():
				return
			case <-time.After(200 * time.Millisecond):
			}
			if err != nil {
				continue
			}
			aside := 0
			for _, s := range list {
				if s.Version != nil && (s.Version.StandsAside || !s.Version.Proved) {
					aside++
				}
			}
			if aside > 1 {
				mu.Lock()
				what = fmt.Sprint(short(list))
				mu.Unlock()
			}
		}
	})

	return func() string {
		mu.Lock()
		defer mu.Unlock()
		return what
	}
}

func short(list []status.Status) (texts []string) {
	for _, s := range list {
		texts = append(texts, fmt.Sprintf("%s %+v", s.Identity, *s.Version))
	}

	return texts
}
