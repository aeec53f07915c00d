package main

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/choria-provisioner/provisioner/config"
	"github.com/choria-provisioner/provisioner/host"
	"github.com/choria-provisioner/provisioner/internal/simfleet"
)

// The one connection under calls: a call in flight ends when the connection
// drops instead of waiting its 22 seconds, nothing is sent while there is none,
// and calls go on over the next connection.
func TestNetworkReplacesADroppedConnection(t *testing.T) {
	broker, err := simfleet.StartBroker(t.Context(), simfleet.BrokerOptions{Mode: simfleet.Insecure, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = broker.Close() })

	reached := make(chan struct{}, 1)
	fleet, err := simfleet.StartFleet(t.Context(), simfleet.FleetOptions{Broker: broker, Node: simfleet.NodeOptions{
		Intercept: func(n *simfleet.Node, c simfleet.Call) simfleet.Override {
			if n.Identity() != "mute" {
				return simfleet.Override{}
			}
			reached <- struct{}{}
			return simfleet.Override{Ignore: true}
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fleet.Close)
	for _, identity := range []string{"mute", "healthy"} {
		if _, err := fleet.Add(t.Context(), identity, nil); err != nil {
			t.Fatal(err)
		}
	}

	caller, network := startNetwork(t, broker)
	session, err := network.Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	ended := make(chan error, 1)
	go func() {
		_, err := caller.Call(t.Context(), "mute", host.Request{Action: host.ActionInventory})
		ended <- err
	}()
	<-reached
	broker.Stop()
	select {
	case err := <-ended:
		if !errors.Is(err, host.ErrDisconnected) {
			t.Errorf("the call in flight ended with %v", err)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("the call in flight goes on without a connection")
	}
	<-session.Context().Done()
	if _, err := caller.Call(t.Context(), "healthy", host.Request{Action: host.ActionInventory}); !errors.Is(err, host.ErrDisconnected) {
		t.Errorf("a call without a connection ended with %v", err)
	}

	if err := broker.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	again, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := network.Session(again); err != nil {
		t.Fatalf("no connection after the broker is back: %v", err)
	}
	// The nodes connect again in their own time.
	for {
		replies, err := caller.Call(again, "healthy", host.Request{Action: host.ActionInventory})
		if err == nil && len(replies) == 1 && replies[0].Code == 0 {
			break
		}
		if again.Err() != nil {
			t.Fatalf("%d replies, error %v after the broker is back", len(replies), err)
		}
	}
}

// More replies than one are seen, also those that come when the generated
// client has stopped listening.
func TestNetworkSeesEveryReply(t *testing.T) {
	broker, err := simfleet.StartBroker(t.Context(), simfleet.BrokerOptions{Mode: simfleet.Insecure, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = broker.Close() })
	fleet, err := simfleet.StartFleet(t.Context(), simfleet.FleetOptions{Broker: broker})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fleet.Close)
	for _, delay := range []time.Duration{0, 200 * time.Millisecond} {
		if _, err := fleet.Add(t.Context(), "twin", func(o *simfleet.NodeOptions) {
			o.Intercept = func(*simfleet.Node, simfleet.Call) simfleet.Override { return simfleet.Override{Delay: delay} }
		}); err != nil {
			t.Fatal(err)
		}
	}

	extra := make(chan string, 10)
	caller, _ := startNetwork(t, broker, extra)
	if _, err := caller.Call(t.Context(), "twin", host.Request{Action: host.ActionInventory}); err != nil {
		t.Fatal(err)
	}
	select {
	case got := <-extra:
		if got != "twin "+host.ActionInventory {
			t.Errorf("an extra reply was reported for %q", got)
		}
	case <-time.After(5 * time.Second):
		t.Error("nobody was told of the second machine's reply")
	}
}

// go-choria panics on each of these, in goroutines of its own: one message from
// any waiting node would end the daemon.
func TestNetworkSurvivesNulls(t *testing.T) {
	broker, err := simfleet.StartBroker(t.Context(), simfleet.BrokerOptions{Mode: simfleet.Insecure, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = broker.Close() })
	fleet, err := simfleet.StartFleet(t.Context(), simfleet.FleetOptions{Broker: broker})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fleet.Close)
	caller, network := startNetwork(t, broker)

	const reply = `{"protocol":"choria:reply:1","message":"{}","envelope":null}`
	sum := sha256.Sum256([]byte(reply))
	secure, err := json.Marshal(map[string]string{"protocol": "choria:secure:reply:1", "message": reply, "hash": base64.StdEncoding.EncodeToString(sum[:])})
	if err != nil {
		t.Fatal(err)
	}
	transport := func(data, headers string) string {
		return `{"protocol":"choria:transport:1","data":"` + base64.StdEncoding.EncodeToString([]byte(data)) + `","headers":` + headers + `}`
	}
	for name, raw := range map[string]string{
		"no-headers":      transport("{}", "null"),
		"no-secure-reply": transport("null", "{}"),
		"no-envelope":     transport(string(secure), "{}"),
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := fleet.Add(t.Context(), name, func(o *simfleet.NodeOptions) {
				o.Intercept = func(*simfleet.Node, simfleet.Call) simfleet.Override {
					return simfleet.Override{Raw: []byte(raw)}
				}
			}); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if replies, err := caller.Call(ctx, name, host.Request{Action: host.ActionInventory}); err == nil {
				t.Errorf("got %v", replies)
			}
		})
	}

	// Discovery asks the message itself for its sender.
	for _, raw := range []string{
		transport("{}", "null"),
		`{"protocol":"io.choria.protocol.v2.transport","headers":null}`,
	} {
		if message, err := network.Framework().NewTransportFromJSON([]byte(raw)); err == nil {
			t.Errorf("%s: got a message from %q", raw, message.SenderID())
		}
	}
}

// What looks like a message and is none is logged by go-choria, and what comes
// too fast by us: neither may fill the disk.
func TestNetworkSaysJunkInBounds(t *testing.T) {
	broker, err := simfleet.StartBroker(t.Context(), simfleet.BrokerOptions{Mode: simfleet.Insecure, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = broker.Close() })
	fleet, err := simfleet.StartFleet(t.Context(), simfleet.FleetOptions{Broker: broker, Node: simfleet.NodeOptions{
		Intercept: func(*simfleet.Node, simfleet.Call) simfleet.Override {
			return simfleet.Override{Raw: []byte(`{"protocol":"choria:transport:1","data":"e30="}`), Extra: 120_000}
		},
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fleet.Close)
	if _, err := fleet.Add(t.Context(), "junk", nil); err != nil {
		t.Fatal(err)
	}

	var lines lineCounter
	network := connect(t, broker, &lines, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if replies, _ := host.NewCaller(network).Call(ctx, "junk", host.Request{Action: host.ActionInventory}); len(replies) > 3 {
		t.Errorf("got %d replies", len(replies))
	}
	if n := lines.n.Load(); n == 0 || n > 200 {
		t.Errorf("%d lines were logged", n)
	}
}

// lineCounter counts what is logged.
type lineCounter struct{ n atomic.Int64 }

func (c *lineCounter) Write(p []byte) (int, error) {
	if len(p) > 0 {
		c.n.Add(1)
	}

	return len(p), nil
}

// startNetwork connects as the daemon does and returns a caller.
func startNetwork(t *testing.T, broker *simfleet.Broker, extra ...chan string) (host.Caller, *host.Network) {
	t.Helper()
	network := connect(t, broker, io.Discard, func(identity, action string) {
		for _, c := range extra {
			c <- identity + " " + action
		}
	})

	return host.NewCaller(network), network
}

func connect(t *testing.T, broker *simfleet.Broker, log io.Writer, extra func(identity, action string)) *host.Network {
	t.Helper()

	logger := logrus.New()
	logger.SetOutput(log)
	choriaConfig, err := broker.ProvisionerConfig("provisioner.example.net")
	if err != nil {
		t.Fatal(err)
	}
	fw, err := newFramework(&config.Config{Insecure: true}, choriaConfig, logger)
	if err != nil {
		t.Fatal(err)
	}
	network := host.NewNetwork(fw, "test", extra, logger.WithField("component", "network"))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { network.Run(ctx); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
	if _, err := network.Session(ctx); err != nil {
		t.Fatal(err)
	}

	return network
}
