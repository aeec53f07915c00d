//go:build linux

// Package selfupdate tests upgrades and rollbacks with real Choria servers,
// which replace their own program, on a network without TLS and signatures.
package selfupdate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/choria-io/go-choria/choria"
	"github.com/choria-io/go-choria/client/choria_provisionclient"
	"github.com/choria-io/go-choria/client/rpcutilclient"
	"github.com/choria-io/go-choria/config"
	"github.com/choria-io/go-choria/protocol"
	"github.com/sirupsen/logrus"

	"github.com/choria-provisioner/provisioner/e2e/harness"
	"github.com/choria-provisioner/provisioner/host"
	"github.com/choria-provisioner/provisioner/internal/choriaserver/trailer"
	"github.com/choria-provisioner/provisioner/internal/simfleet"
)

// One node, one after the other beside TestReleases.
func TestOneNode(t *testing.T) {
	t.Parallel()
	t.Run("by hand", testByHand)
	t.Run("exec helper", testExecHelper)
}

// What the tests of the daemon stand on, without it: a real server takes an
// update from our repository when a person asks it to, and refuses one that is
// not there.
func testByHand(t *testing.T) {
	v1, v2 := harness.LinkRelease(t, "1.0.0"), harness.LinkRelease(t, "2.0.0")
	broken := v2.As(t, "3.0.0", trailer.CrashAtStart)
	repository := harness.StartRepository(t)
	repository.Publish(t, v2, broken)
	broker := harness.StartBroker(t, simfleet.Insecure)
	node := harness.StartRelease(t, v1, "by-hand.example.net", harness.ProvisioningToken(t, broker))
	hand := newHand(t, broker)
	hand.expectVersion(t, node, v1.Version)

	if err := hand.update(t, node, repository, "4.0.0"); err == nil {
		t.Error("the node took a release that is not there")
	} else {
		t.Log(err)
	}
	node.ExpectStarts(t, harness.NodeStart{Provisioning: true, Version: "1.0.0"})

	if err := hand.update(t, node, repository, v2.Version); err != nil {
		t.Fatal(err)
	}
	hand.expectVersion(t, node, v2.Version)
	node.ExpectStarts(t,
		harness.NodeStart{Provisioning: true, Version: "1.0.0"},
		harness.NodeStart{Provisioning: true, Version: "2.0.0"})
	node.ExpectProgram(t, v2, v1)

	if err := hand.update(t, node, repository, broken.Version); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, 20*time.Second, "end of a release that crashes", func() error {
		if node.Running() {
			return errors.New("it runs")
		}
		return nil
	})
	node.ExpectProgram(t, broken, v2)

	want := slices.Concat([]string{harness.Fetches("4.0.0")[0]}, harness.Fetches("2.0.0"), harness.Fetches("3.0.0"))
	if got := repository.Requests(); !slices.Equal(got, want) {
		t.Errorf("the repository was asked for %v, not %v", got, want)
	}
}

// hand sends RPC requests to nodes as a provisioner may, by go-choria's own
// clients.
type hand struct {
	network *host.Network
}

func newHand(t *testing.T, broker *simfleet.Broker) *hand {
	t.Helper()

	cfg, err := config.NewConfig(harness.ProvisionerConfig(t, broker, "hand.example.net"))
	if err != nil {
		t.Fatal(err)
	}
	logger := logrus.New()
	logger.SetOutput(io.Discard)
	cfg.CustomLogger = logger
	cfg.Collectives, cfg.MainCollective = []string{"provisioning"}, "provisioning"
	cfg.DisableTLS, cfg.DisableSecurityProviderVerify = true, true
	protocol.Secure = "false"
	framework, err := choria.NewWithConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}

	network := host.NewNetwork(framework, "hand", nil, logger.WithField("component", "network"))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { network.Run(ctx); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
	if _, err := network.Session(t.Context()); err != nil {
		t.Fatal(err)
	}

	return &hand{network}
}

// update asks a node to take a release.
func (h *hand) update(t *testing.T, node *harness.Node, repository *harness.Repository, version string) error {
	t.Helper()

	client, err := choria_provisionclient.New(h.network.Framework())
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	result, err := client.OptionWorkers(1).OptionTargets([]string{node.Identity}).
		ReleaseUpdate(repository.URL, harness.Token, version).Do(t.Context())
	if err != nil {
		return err
	}
	outputs := result.AllOutputs()
	if len(outputs) != 1 {
		return fmt.Errorf("%d replies", len(outputs))
	}
	t.Logf("%s answered after %v", node.Identity, time.Since(began).Round(time.Millisecond))
	if details := outputs[0].ResultDetails(); !details.OK() {
		return errors.New(details.StatusMessage())
	}

	return nil
}

// expectVersion waits until the node shows the version, and that it can be
// updated.
func (h *hand) expectVersion(t *testing.T, node *harness.Node, version string) {
	t.Helper()

	client, err := rpcutilclient.New(h.network.Framework())
	if err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, 30*time.Second, node.Identity+" with "+version, func() error {
		// one that restarts would keep us waiting for an answer
		starts := node.Starts()
		if len(starts) == 0 || starts[len(starts)-1].Version != version {
			return fmt.Errorf("its starts are %+v", starts)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		result, err := client.OptionWorkers(1).OptionTargets([]string{node.Identity}).Inventory().Do(ctx)
		if err != nil {
			return err
		}
		var shown struct {
			Version    string `json:"version"`
			Upgradable bool   `json:"upgradable"`
		}
		for _, output := range result.AllOutputs() {
			if err := output.ParseInventoryOutput(&shown); err != nil {
				return err
			}
		}
		if shown.Version != version || !shown.Upgradable {
			return fmt.Errorf("it shows %+v", shown)
		}
		return nil
	})
}
