//go:build linux

// Package issuer tests the provisioner with real Choria servers on a network
// with an Organization Issuer. go-choria decides by a global whether requests
// are signed, so the insecure network has a test binary of its own.
package issuer

import (
	"crypto/ed25519"
	"encoding/hex"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/choria-io/tokens"

	"github.com/choria-provisioner/provisioner/e2e/harness"
	"github.com/choria-provisioner/provisioner/internal/simfleet"
)

// enrolLimit is how long a node may take from its start to its answer in the
// main collective: discovery, the sequence, and a splay of up to 12 seconds
// before it executes itself again.
const enrolLimit = 45 * time.Second

func TestIssuer(t *testing.T) {
	bin := harness.Build(t)

	for _, test := range []struct {
		name string
		run  func(*testing.T, harness.Binaries)
	}{
		{"Go plugin", testGoPlugin},
		{"exec helper", testExecHelper},
		{"standby", testStandby},
		{"upgrade", testUpgrade},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(t, bin)
		})
	}
}

// A node that was there first is found by discovery, one that comes later by
// its startup event. Both end up in the main collective, through a plugin.
func testGoPlugin(t *testing.T, bin harness.Binaries) {
	broker := harness.StartBroker(t, simfleet.Issuer)
	configuration := harness.IssuerConfiguration(broker)

	early := startNode(t, bin, broker, "early.example.net")
	harness.Eventually(t, 15*time.Second, "connection of the first node", func() error { return harness.Connections(broker, early, "provisioning") })

	daemon := startDaemon(t, bin, broker, harness.DaemonOptions{
		Name:   "provisioner",
		Config: map[string]any{"helper": harness.SiteHelper(bin, configuration)},
	})
	// the only discovery of this minute
	harness.Eventually(t, 20*time.Second, "first discovery", func() error { return daemon.ExpectMetric("choria_provisioner_discovered", 1) })
	late := startNode(t, bin, broker, "late.example.net")

	for _, node := range []*harness.Node{early, late} {
		expectEnrolled(t, bin, broker, node, configuration)
	}
	for metric, want := range map[string]float64{
		"choria_provisioner_provisioned":      2,
		"choria_provisioner_discovered":       1,
		"choria_provisioner_event_discovered": 1,
		"choria_provisioner_provision_errors": 0,
		"choria_provisioner_helper_errors":    0,
		"choria_provisioner_waiting_nodes":    0,
	} {
		harness.Eventually(t, 5*time.Second, metric, func() error { return daemon.ExpectMetric(metric, want) })
	}

	harness.TerminateDaemon(t, daemon, "sitehelper", "sleep 600")
}

// A script that knows nothing of us enrols a node as it did with the older
// provisioner.
func testExecHelper(t *testing.T, bin harness.Binaries) {
	broker := harness.StartBroker(t, simfleet.Issuer)
	configuration := harness.IssuerConfiguration(broker)

	startDaemon(t, bin, broker, harness.DaemonOptions{
		Name:   "provisioner",
		Config: map[string]any{"helper": harness.ExecHelper(t, configuration)},
		// it needs nothing of it
		BareEnvironment: true,
	})
	node := startNode(t, bin, broker, "scripted.example.net")

	expectEnrolled(t, bin, broker, node, configuration)
}

func testStandby(t *testing.T, bin harness.Binaries) {
	broker := harness.StartBroker(t, simfleet.Issuer)
	configuration := harness.IssuerConfiguration(broker)

	harness.TestStandby(t, harness.Standby{
		StartDaemon: func(t testing.TB, name string) *harness.Daemon {
			return startDaemon(t, bin, broker, harness.DaemonOptions{
				Name: name,
				Config: map[string]any{
					"leader_election": true,
					"helper":          harness.SiteHelper(bin, configuration),
				},
			})
		},
		StartNode: func(t testing.TB, identity string) *harness.Node {
			return startNode(t, bin, broker, identity)
		},
	})
}

func startNode(t testing.TB, bin harness.Binaries, broker *simfleet.Broker, identity string) *harness.Node {
	t.Helper()

	return harness.StartNode(t, bin, identity, harness.ProvisioningToken(t, broker))
}

// startDaemon starts a daemon on the broker; options say what it does there.
func startDaemon(t testing.TB, bin harness.Binaries, broker *simfleet.Broker, opts harness.DaemonOptions) *harness.Daemon {
	t.Helper()

	opts.Config["token"] = broker.Token()
	opts.Config["broker_provisioning_password"] = broker.Password()
	opts.Config["jwt_verify_cert"] = broker.VerifyCert()
	opts.Config["jwt_signing_key"] = broker.SigningKey()
	opts.Config["jwt_signing_token"] = broker.SigningToken()
	features := map[string]bool{"jwt": true, "ed25519": true}
	if opts.Config["upgrades_repository"] != nil {
		features["upgrades"] = true
	}
	opts.Config["features"] = features
	opts.ChoriaConfig = harness.ProvisionerConfig(t, broker, opts.Name+".example.net")

	return harness.StartDaemon(t, bin, opts)
}

// expectEnrolled waits until the node answers in the main collective, and
// checks what the provisioner left on its disk.
func expectEnrolled(t testing.TB, bin harness.Binaries, broker *simfleet.Broker, node *harness.Node, configuration map[string]string) {
	t.Helper()

	harness.Eventually(t, enrolLimit, "ping of "+node.Identity+" in the main collective", func() error {
		if !node.ID.Alive() {
			t.Fatalf("%s ended", node.Identity)
		}
		return harness.Ping(bin, broker, node.Identity)
	})

	node.ExpectReexecuted(t)
	node.ExpectConfiguration(t, configuration)
	err := harness.Connections(broker, node, "provisioning", "choria")
	if err != nil {
		t.Error(err)
	}
	expectServerToken(t, broker, node)
}

func expectServerToken(t testing.TB, broker *simfleet.Broker, node *harness.Node) {
	t.Helper()

	token, err := node.Read("server.jwt")
	if err != nil {
		t.Fatal(err)
	}
	issuer, err := hex.DecodeString(broker.IssuerPublic())
	if err != nil {
		t.Fatal(err)
	}
	// the signer is not the issuer: this follows the chain of trust to it
	claims, err := tokens.ParseServerToken(token, ed25519.PublicKey(issuer))
	if err != nil {
		t.Fatalf("server.jwt of %s: %v", node.Identity, err)
	}

	if !strings.HasPrefix(claims.Issuer, tokens.ChainIssuerPrefix) || claims.TrustChainSignature == "" {
		t.Errorf("server.jwt of %s has no chain of trust: issuer %q, signature %q", node.Identity, claims.Issuer, claims.TrustChainSignature)
	}
	if claims.ChoriaIdentity != node.Identity {
		t.Errorf("identity in server.jwt is %q, not %q", claims.ChoriaIdentity, node.Identity)
	}
	if !slices.Equal(claims.Collectives, []string{harness.Collective}) {
		t.Errorf("collectives in server.jwt are %v", claims.Collectives)
	}
	if claims.OrganizationUnit != "choria" {
		t.Errorf("organization unit in server.jwt is %q", claims.OrganizationUnit)
	}
	// server_jwt_validity has a year as default
	if left := time.Until(claims.ExpireTime()); left > 366*24*time.Hour || left < time.Hour {
		t.Errorf("server.jwt is valid for %v", left)
	}
	matches, err := claims.IsMatchingSeedFile(node.Path("server.seed"))
	if err != nil || !matches {
		t.Errorf("server.jwt is not for the key in server.seed: %v", err)
	}
}
