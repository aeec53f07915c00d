//go:build linux

package harness

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/choria-provisioner/provisioner/internal/simfleet"
)

// Token is the provisioning token of every network.
const Token = "toomanysecrets"

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
func Ping(bin Binaries, broker *simfleet.Broker, identity string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()

	cmd := exec.CommandContext(ctx, bin.ChoriaPing, "--config", broker.ClientConfig(), "--collective", Collective, identity)
	// go-choria wants it of a client
	cmd.Env = []string{"USER=admin"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}

	return nil
}

// Connections is an error until the node has made one connection after the
// other to the broker, each in the account named, and the last is open.
func Connections(broker *simfleet.Broker, node *Node, accounts ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()

	all, err := broker.Connections(ctx)
	if err != nil {
		return err
	}
	slices.SortFunc(all, func(a, b simfleet.Connection) int { return a.Opened.Compare(b.Opened) })

	var made []string
	open := 0
	for _, c := range all {
		if c.Name != node.Identity {
			continue
		}
		made = append(made, c.Account)
		if c.Closed.IsZero() {
			open++
		}
	}
	if !slices.Equal(made, accounts) || open != 1 {
		return fmt.Errorf("%s made connections in the accounts %v, of which %d are open, not in %v with the last open", node.Identity, made, open, accounts)
	}

	return nil
}
