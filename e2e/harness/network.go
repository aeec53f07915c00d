//go:build linux

package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"github.com/choria-io/go-choria/choria"
	"github.com/choria-io/go-choria/client/rpcutilclient"
	"github.com/choria-io/go-choria/config"
	"github.com/sirupsen/logrus"

	"github.com/choria-provisioner/provisioner/internal/simfleet"
)

// Token is the provisioning token of every network.
const Token = "toomanysecrets"

// pingTimeout ends one ping; a client that waits for a node that is not there
// yet asks again.
const pingTimeout = 3 * time.Second

// StartBroker starts a network with the shortest lease there can be.
func StartBroker(t testing.TB, mode simfleet.Mode) *simfleet.Broker {
	t.Helper()

	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	broker, err := simfleet.StartBroker(ctx, simfleet.BrokerOptions{
		Mode:        mode,
		Dir:         t.TempDir(),
		ElectionTTL: simfleet.MinElectionTTL,
		Token:       Token,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := broker.Close()
		if err != nil {
			t.Errorf("closing the broker: %v", err)
		}
	})

	return broker
}

// ProvisioningToken is what a node's provisioning.jwt holds.
func ProvisioningToken(t testing.TB, broker *simfleet.Broker) string {
	t.Helper()

	token, err := os.ReadFile(broker.ProvisioningJWT())
	if err != nil {
		t.Fatal(err)
	}

	return string(token)
}

// ProvisionerConfig is the path of a Choria client configuration for a daemon.
func ProvisionerConfig(t testing.TB, broker *simfleet.Broker, identity string) string {
	t.Helper()

	path, err := broker.ProvisionerConfig(identity)
	if err != nil {
		t.Fatal(err)
	}

	return path
}

// Ping calls rpcutil#ping on a node in the main collective, as an administrator
// of the fleet who has a key and token of her own.
func Ping(ctx context.Context, broker *simfleet.Broker, identity string) error {
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()

	cfg, err := config.NewConfig(broker.ClientConfig())
	if err != nil {
		return err
	}
	cfg.Collectives = []string{Collective}
	cfg.MainCollective = Collective
	cfg.CustomLogger = logrus.New()
	cfg.CustomLogger.SetOutput(io.Discard)
	framework, err := choria.NewWithConfig(cfg)
	if err != nil {
		return err
	}
	client, err := rpcutilclient.New(framework)
	if err != nil {
		return err
	}

	result, err := client.OptionWorkers(1).OptionTargets([]string{identity}).Ping().Do(ctx)
	if err != nil {
		return err
	}

	var answers int
	err = errors.New("no answer")
	result.EachOutput(func(output *rpcutilclient.PingOutput) {
		answers++
		err = nil
		if !output.ResultDetails().OK() {
			err = fmt.Errorf("%s answered: %s", output.ResultDetails().Sender(), output.ResultDetails().StatusMessage())
		}
		if output.ResultDetails().Sender() != identity {
			err = fmt.Errorf("%s answered for %s", output.ResultDetails().Sender(), identity)
		}
	})
	if answers > 1 {
		err = fmt.Errorf("%d answers", answers)
	}

	return err
}

// InAccount is an error until the node's one open connection is in an account
// of the broker.
func InAccount(broker *simfleet.Broker, node *Node, account string) error {
	ctx, cancel := context.WithTimeout(context.Background(), pingTimeout)
	defer cancel()

	connections, err := broker.Connections(ctx)
	if err != nil {
		return err
	}
	for _, c := range connections {
		if c.Name != node.Identity || !c.Closed.IsZero() {
			continue
		}
		if c.Account != account {
			return fmt.Errorf("%s is connected in account %s, not %s", node.Identity, c.Account, account)
		}
		return nil
	}

	return fmt.Errorf("%s is not connected", node.Identity)
}
