//go:build linux

package harness

import (
	"context"
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/choria-provisioner/provisioner/internal/simfleet"
)

// FeatureSet is a daemon's features and the calls a node must see for them.
type FeatureSet struct {
	Name     string
	Features map[string]bool
	Calls    []string
}

// FeatureSets are all sets that a configuration can ask for.
func FeatureSets() []FeatureSet {
	const (
		jwt       = "choria_provision#jwt"
		gen25519  = "choria_provision#gen25519"
		gencsr    = "choria_provision#gencsr"
		configure = "choria_provision#configure"
		restart   = "choria_provision#restart"
		inventory = "rpcutil#inventory"
	)

	return []FeatureSet{
		{"none", nil, []string{inventory, configure, restart}},
		{"jwt", map[string]bool{"jwt": true}, []string{jwt, inventory, configure, restart}},
		{"ed25519", map[string]bool{"ed25519": true}, []string{jwt, gen25519, inventory, configure, restart}},
		{"pki", map[string]bool{"pki": true}, []string{inventory, gencsr, configure, restart}},
		{"pki and jwt", map[string]bool{"pki": true, "jwt": true}, []string{jwt, inventory, gencsr, configure, restart}},
		{"upgrades", map[string]bool{"upgrades": true}, []string{inventory, configure, restart}},
	}
}

// StartFleet starts simulated nodes that are stopped with the test.
func StartFleet(t testing.TB, broker *simfleet.Broker, count int, node simfleet.NodeOptions) *simfleet.Fleet {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	fleet, err := simfleet.StartFleet(ctx, simfleet.FleetOptions{Broker: broker, Count: count, Node: node})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fleet.Close)

	return fleet
}

// ExpectProvisioned waits until all nodes of the fleet were restarted.
func ExpectProvisioned(t testing.TB, fleet *simfleet.Fleet, limit time.Duration) {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	n := len(fleet.Nodes())
	if err := fleet.WaitProvisioned(ctx, n); err != nil {
		t.Fatalf("of %d nodes: %v; counts %+v", n, err, fleet.Counts())
	}
}

// ExpectCalls checks that the node saw exactly these calls, in order, and holds
// what they brought.
func (s FeatureSet) ExpectCalls(t testing.TB, node *simfleet.Node) {
	t.Helper()

	var actions []string
	for _, call := range node.Calls() {
		actions = append(actions, call.Action)
		var input struct {
			Token string `json:"token"`
		}
		if err := json.Unmarshal(call.Data, &input); err != nil {
			t.Errorf("%s: %s: %v", node.Identity(), call.Action, err)
		}
		if call.Action != "rpcutil#inventory" && input.Token != Token {
			t.Errorf("%s: %s was sent with token %q", node.Identity(), call.Action, input.Token)
		}
	}
	if !slices.Equal(actions, s.Calls) {
		t.Errorf("%s saw %v, want %v", node.Identity(), actions, s.Calls)
	}

	got := node.Configured()
	if got == nil || got.Config["identity"] != node.Identity() {
		t.Fatalf("%s was configured with %+v", node.Identity(), got)
	}
	if (got.ServerJWT != "") != s.Features["ed25519"] {
		t.Errorf("%s has server JWT %q", node.Identity(), got.ServerJWT)
	}
	if (got.Certificate != "") != s.Features["pki"] || (got.CA != "") != s.Features["pki"] {
		t.Errorf("%s has certificate %q and CA %q", node.Identity(), got.Certificate, got.CA)
	}
}
