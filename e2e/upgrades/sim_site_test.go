//go:build linux

// Package upgrades tests what becomes of nodes that are sent another version, or
// are not: the real daemon with a helper that decides, over simulated nodes.
package upgrades

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/choria-provisioner/provisioner/e2e/harness"
	"github.com/choria-provisioner/provisioner/helper"
	"github.com/choria-provisioner/provisioner/internal/simfleet"
	"github.com/choria-provisioner/provisioner/version/ledger"
	"github.com/choria-provisioner/provisioner/version/ledger/socket"
)

// The versions of nodes: what they run at first, and what they are sent.
const (
	before = "1.0.0"
	after  = "2.0.0"
)

// releaseTimeout is more than the 22 seconds that a call takes which is not
// answered.
const releaseTimeout = 40 * time.Second

// site is a network, its nodes, and what a daemon needs that decides about their
// versions.
type site struct {
	bin      harness.Binaries
	broker   *simfleet.Broker
	fleet    *simfleet.Fleet
	decider  *harness.Decider
	stateDir string
}

func newSite(t *testing.T, bin harness.Binaries, mode simfleet.Mode) *site {
	t.Helper()

	// a short name, for the ledger's socket is in it
	dir, err := os.MkdirTemp("", "e2e-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})

	s := &site{bin: bin, broker: harness.StartBroker(t, mode), stateDir: dir}
	s.fleet = harness.StartFleet(t, s.broker, 0, simfleet.NodeOptions{Version: before, Joins: true})
	s.decider = harness.NewDecider(t, s.bin, map[string]string{"identity": "{identity}", "plugin.choria.server.provision": "false"})

	return s
}

// start starts a daemon; settings go over those that it has otherwise.
func (s *site) start(t *testing.T, settings map[string]any) *harness.Daemon {
	t.Helper()

	config := map[string]any{
		"choria_insecure":     s.broker.Mode() == simfleet.Insecure,
		"token":               s.broker.Token(),
		"jwt_verify_cert":     s.broker.VerifyCert(),
		"state_dir":           s.stateDir,
		"logfile":             harness.JSONLog,
		"loglevel":            "info",
		"features":            map[string]bool{"jwt": true, "upgrades": true},
		"upgrades_repository": "http://repository.example.net/choria",
		"upgrades_optional":   true,
		"versions":            map[string]any{"trial": "100s", "release_timeout": releaseTimeout.String()},
		"helper":              s.decider.Helper,
	}
	if s.broker.Mode() == simfleet.Issuer {
		config["broker_provisioning_password"] = s.broker.Password()
	}
	maps.Copy(config, settings)

	return harness.StartDaemon(t, s.bin, harness.DaemonOptions{
		Name:         "provisioner",
		ChoriaConfig: harness.ProvisionerConfig(t, s.broker, "provisioner.example.net"),
		Config:       config,
	})
}

// node starts a node; change may be nil.
func (s *site) node(t *testing.T, identity string, change func(*simfleet.NodeOptions)) *simfleet.Node {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	n, err := s.fleet.Add(ctx, identity, change)
	if err != nil {
		t.Fatal(err)
	}

	return n
}

// upgrade makes the helper want a version for a node.
func (s *site) upgrade(t *testing.T, identity, version string) {
	t.Helper()

	s.decider.Decide(t, identity, helper.Upgrade(version, "the test wants it"))
}

// record asks the daemon for what it remembers of a node.
func (s *site) record(t *testing.T, identity string) (ledger.Record, error) {
	t.Helper()

	client, err := socket.Dial(t.Context(), s.stateDir)
	if err != nil {
		return ledger.Record{}, err
	}
	defer client.Close()

	return client.Get(t.Context(), identity)
}

// await waits until nothing is wrong with the record of a node, and returns it.
func (s *site) await(t *testing.T, limit time.Duration, identity string, wrong func(ledger.Record) error) ledger.Record {
	t.Helper()

	var rec ledger.Record
	harness.Eventually(t, limit, "record of "+identity, func() (err error) {
		rec, err = s.record(t, identity)
		if err != nil {
			return err
		}
		if err = wrong(rec); err != nil {
			return fmt.Errorf("%w: it is %s, its known-good version %+v, its hold %+v, and its last evidence %+v",
				err, rec.State, rec.KnownGood, rec.Hold, rec.Evidence[max(0, len(rec.Evidence)-3):])
		}
		return nil
	})

	return rec
}

// everyFewSeconds calls do until the test ends.
func everyFewSeconds(t *testing.T, do func(ctx context.Context) error) {
	t.Helper()

	done := make(chan struct{})
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(func() {
		stop()
		<-done
	})
	go func() {
		defer close(done)
		again := time.NewTicker(3 * time.Second)
		defer again.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-again.C:
			}
			if err := do(ctx); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		}
	}()
}

// expectSent checks every release_update that a node ever got.
func expectSent(t *testing.T, n *simfleet.Node, want ...string) {
	t.Helper()

	var got []string
	for _, u := range n.ReleaseUpdates() {
		got = append(got, u.Version)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s was sent %q, not %q", n.Identity(), got, want)
	}
}

// configured is how often a node was told its configuration.
func configured(n *simfleet.Node) int {
	count := 0
	for _, c := range n.Calls() {
		if c.Action == "choria_provision#configure" {
			count++
		}
	}

	return count
}

var errOther = errors.New("it is not what it should be")
