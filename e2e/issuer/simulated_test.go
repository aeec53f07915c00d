//go:build linux

package issuer

import (
	"fmt"
	"testing"
	"time"

	"github.com/choria-io/go-choria/providers/agent/mcorpc"

	"github.com/choria-provisioner/provisioner/e2e/harness"
	"github.com/choria-provisioner/provisioner/internal/simfleet"
)

// simulatedDaemon starts a daemon with the example helper for simulated nodes.
func simulatedDaemon(t testing.TB, bin harness.Binaries, broker *simfleet.Broker, features map[string]bool) *harness.Daemon {
	t.Helper()

	return harness.StartDaemon(t, bin, harness.DaemonOptions{
		Name:         "provisioner",
		ChoriaConfig: harness.ProvisionerConfig(t, broker, "provisioner.example.net"),
		Config: map[string]any{
			"token":                        broker.Token(),
			"broker_provisioning_password": broker.Password(),
			"jwt_verify_cert":              broker.VerifyCert(),
			"jwt_signing_key":              broker.SigningKey(),
			"jwt_signing_token":            broker.SigningToken(),
			"features":                     features,
			"loglevel":                     "info",
			"helper": map[string]any{"plugin": harness.BuildExample(t, "localca"), "config": map[string]any{
				"dir": t.TempDir(), "brokers": []string{broker.Addr()}, "issuer": broker.IssuerPublic(),
			}},
		},
	})
}

// Every set of features: each node sees its calls, each once and in order, and
// nothing else.
func TestFeatureSets(t *testing.T) {
	bin := harness.Build(t)

	for _, set := range harness.FeatureSets() {
		t.Run(set.Name, func(t *testing.T) {
			t.Parallel()
			broker := harness.StartBroker(t, simfleet.Issuer)
			fleet := harness.StartFleet(t, broker, 5, simfleet.NodeOptions{})
			simulatedDaemon(t, bin, broker, set.Features)

			harness.ExpectProvisioned(t, fleet, 30*time.Second)
			for _, node := range fleet.Nodes() {
				set.ExpectCalls(t, node)
			}
		})
	}
}

// 2,000 nodes are provisioned over no more than six connections.
func TestConnections(t *testing.T) {
	bin := harness.Build(t)
	broker := harness.StartBroker(t, simfleet.Issuer)
	fleet := harness.StartFleet(t, broker, 2000, simfleet.NodeOptions{})
	daemon := simulatedDaemon(t, bin, broker, map[string]bool{"ed25519": true})
	harness.ExpectProvisioned(t, fleet, 3*time.Minute)

	if ours := provisionerConnections(t, broker); ours == 0 || ours > 6 {
		t.Errorf("the daemon made %d connections for 2000 nodes, want no more than 6", ours)
	}
	if err := daemon.ExpectMetric("choria_provisioner_provision_errors", 0); err != nil {
		t.Error(err)
	}
	for action, n := range fleet.Counts().Calls {
		if n != 2000 {
			t.Errorf("%s reached nodes %d times, want 2000", action, n)
		}
	}
}

// SIGTERM in the middle of calls, some of which are being tried again and some
// of which nobody answers.
func TestTerminateInTheMiddle(t *testing.T) {
	bin := harness.Build(t)
	broker := harness.StartBroker(t, simfleet.Issuer)
	fleet := harness.StartFleet(t, broker, 100, simfleet.NodeOptions{
		Intercept: func(_ *simfleet.Node, c simfleet.Call) simfleet.Override {
			switch c.Action {
			case "rpcutil#inventory":
				return simfleet.Override{Status: mcorpc.Aborted, Message: "not now"}
			case "choria_provision#gen25519":
				return simfleet.Override{Ignore: c.Attempt == 1}
			default:
				return simfleet.Override{}
			}
		},
	})
	daemon := simulatedDaemon(t, bin, broker, map[string]bool{"ed25519": true})
	harness.Eventually(t, 30*time.Second, "calls in flight", func() error {
		if n := fleet.Counts().Calls["choria_provision#gen25519"]; n < 50 {
			return fmt.Errorf("%d calls of gen25519", n)
		}
		return nil
	})

	harness.TerminateInTime(t, daemon, "localca")
}

// A token and seed that are replaced on disk are used without a restart.
func TestCredentialsAreReplaced(t *testing.T) {
	bin := harness.Build(t)
	broker := harness.StartBroker(t, simfleet.Issuer)
	fleet := harness.StartFleet(t, broker, 5, simfleet.NodeOptions{})
	daemon := simulatedDaemon(t, bin, broker, map[string]bool{"ed25519": true})
	harness.ExpectProvisioned(t, fleet, 30*time.Second)

	before := provisionerConnections(t, broker)
	if err := broker.RenewProvisioner("provisioner.example.net"); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, 30*time.Second, "connections with the new token", func() error {
		if now := provisionerConnections(t, broker); now < 2*before {
			return fmt.Errorf("%d connections were made, %d of them before", now, before)
		}
		return nil
	})

	for i := range 5 {
		if _, err := fleet.Add(t.Context(), fmt.Sprintf("later-%d.example.net", i), nil); err != nil {
			t.Fatal(err)
		}
	}
	harness.ExpectProvisioned(t, fleet, 30*time.Second)
	if err := daemon.ExpectMetric("choria_provisioner_provision_errors", 0); err != nil {
		t.Error(err)
	}
}

// provisionerConnections is how many connections the daemon has made.
func provisionerConnections(t testing.TB, broker *simfleet.Broker) int {
	t.Helper()

	connections, err := broker.Connections(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, c := range connections {
		if c.User == "provisioner" {
			n++
		}
	}

	return n
}
