//go:build linux

package insecure

import (
	"testing"
	"time"

	"github.com/choria-provisioner/provisioner/e2e/harness"
	"github.com/choria-provisioner/provisioner/internal/simfleet"
)

// Every set of features: each node sees its calls, each once and in order, and
// nothing else.
func TestFeatureSets(t *testing.T) {
	bin := harness.Build(t)
	localca := harness.BuildExample(t, "localca")

	for _, set := range harness.FeatureSets() {
		t.Run(set.Name, func(t *testing.T) {
			t.Parallel()
			broker := harness.StartBroker(t, simfleet.Insecure)
			fleet := harness.StartFleet(t, broker, 5, simfleet.NodeOptions{})
			harness.StartDaemon(t, bin, harness.DaemonOptions{
				Name:         "provisioner",
				ChoriaConfig: harness.ProvisionerConfig(t, broker, "provisioner.example.net"),
				Config: map[string]any{
					"choria_insecure": true,
					"token":           broker.Token(),
					"jwt_verify_cert": broker.VerifyCert(),
					"jwt_signing_key": broker.SigningKey(),
					"features":        set.Features,
					"helper": map[string]any{"plugin": localca, "config": map[string]any{
						"dir": t.TempDir(), "brokers": []string{broker.Addr()},
					}},
				},
			})

			harness.ExpectProvisioned(t, fleet, 30*time.Second)
			for _, node := range fleet.Nodes() {
				set.ExpectCalls(t, node)
			}
		})
	}
}
