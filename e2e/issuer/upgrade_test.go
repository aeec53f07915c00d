//go:build linux

package issuer

import (
	"slices"
	"testing"
	"time"

	"github.com/choria-provisioner/provisioner/e2e/harness"
	"github.com/choria-provisioner/provisioner/helper"
	"github.com/choria-provisioner/provisioner/internal/simfleet"
	"github.com/choria-provisioner/provisioner/version/ledger"
)

// upgradeLimit is how long a node may take until it is provisioned with another
// version and seen in the fleet.
const upgradeLimit = 90 * time.Second

// A node is upgraded before it gets its key. It proves its version in the main
// account, which the provisioner sees over a connection of its own. What else
// releases do is tested in e2e/selfupdate.
func testUpgrade(t *testing.T, bin harness.Binaries) {
	broker := harness.StartBroker(t, simfleet.Issuer)
	token, seed, err := broker.EventsViewer()
	if err != nil {
		t.Fatal(err)
	}
	// with a trial so long, nothing is presumed
	s := startUpgrade(t, bin, broker, 10*time.Minute, map[string]any{
		"servers": []string{broker.URL()}, "token_file": token, "seed_file": seed,
	})

	s.expectKnownGood(t, ledger.Proved)
	s.node.ExpectStarts(t,
		harness.NodeStart{Provisioning: true, Version: "1.0.0"},
		harness.NodeStart{Provisioning: true, Version: "2.0.0"},
		harness.NodeStart{Version: "2.0.0"})
	s.node.ExpectProgram(t, s.to, s.from)
	s.node.ExpectConfiguration(t, harness.IssuerConfiguration(broker))
	expectServerToken(t, broker, s.node)
	harness.Eventually(t, 10*time.Second, "ping in the main collective", func() error { return harness.Ping(bin, broker, s.node.Identity) })
	if err := harness.Connections(broker, s.node, "provisioning", "provisioning", "choria"); err != nil {
		t.Error(err)
	}
	if got := s.repository.Requests(); !slices.Equal(got, harness.Fetches("2.0.0")) {
		t.Errorf("the repository was asked for %v", got)
	}
}

// upgraded is a node that a daemon upgrades.
type upgraded struct {
	from, to   harness.Release
	repository *harness.Repository
	node       *harness.Node
	stateDir   string
}

// startUpgrade starts a daemon, with a connection to the main account unless nats
// is nil, and a node for which its helper wants another version.
func startUpgrade(t *testing.T, bin harness.Binaries, broker *simfleet.Broker, trial time.Duration, nats map[string]any) *upgraded {
	t.Helper()

	s := &upgraded{
		from:       harness.LinkRelease(t, "1.0.0"),
		repository: harness.StartRepository(t),
		stateDir:   t.TempDir(),
	}
	s.to = s.from.As(t, "2.0.0", "")
	s.repository.Publish(t, s.to)
	decider := harness.NewDecider(t, bin, harness.IssuerConfiguration(broker))
	decider.Decide(t, "upgrade.example.net", helper.Upgrade("2.0.0", "the test wants it"))

	config := map[string]any{
		"helper":              decider.Helper,
		"state_dir":           s.stateDir,
		"upgrades_repository": s.repository.URL,
		"versions":            map[string]string{"trial": trial.String(), "release_timeout": "30s"},
	}
	if nats != nil {
		config["state"] = map[string]any{"nats": nats}
	}
	startDaemon(t, bin, broker, harness.DaemonOptions{Name: "provisioner", Config: config})
	s.node = harness.StartRelease(t, s.from, "upgrade.example.net", harness.ProvisioningToken(t, broker))

	return s
}

// expectKnownGood waits until the new version is known as good.
func (s *upgraded) expectKnownGood(t *testing.T, source ledger.Source) {
	t.Helper()

	want := ledger.KnownGood{Version: "2.0.0", Source: source}
	harness.AwaitRecord(t, upgradeLimit, s.stateDir, s.node.Identity, "has 2.0.0 "+string(source), func(rec ledger.Record) bool {
		return rec.State == ledger.Idle && rec.KnownGood != nil && *rec.KnownGood == want
	})
}
