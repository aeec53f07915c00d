package suite

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/choria-io/go-choria/lifecycle"
	"github.com/choria-io/go-choria/providers/agent/mcorpc"
	"github.com/nats-io/nats.go"

	"github.com/choria-provisioner/provisioner/internal/simfleet"
)

// updateSplay is long enough for a call to come in meanwhile.
const updateSplay = 300 * time.Millisecond

// testUpdates shows what can become of a release_update, in the words of
// go-choria's agent.
func testUpdates(t *testing.T, b *simfleet.Broker) {
	f := start(t, b, simfleet.FleetOptions{Node: simfleet.NodeOptions{Version: "1.0.0", UpdateSplay: updateSplay}})
	fw := provisioner(t, b)

	stays := []string{"startup"}
	for i, c := range []struct {
		name    string
		update  simfleet.Update
		says    string
		version string
		events  []string
	}{
		{"a release that is fine", simfleet.Update{}, "OK", "2.0.0", []string{"startup", "upgraded", "shutdown", "startup"}},
		{"one that could not be placed", simfleet.Update{Failed: errors.New("no space")}, "Update to version 2.0.0 failed, release rolled back: no space", "1.0.0", stays},
		{"one that could not be placed, nor the old one restored", simfleet.Update{Broken: errors.New("no file")}, "Update to version 2.0.0 failed, rollback also failed, server in broken state: no file", "1.0.0", stays},
		{"one that cannot be executed", simfleet.Update{Unstartable: true}, "OK", "1.0.0", []string{"startup", "upgraded", "shutdown"}},
		{"one that shows another version", simfleet.Update{Version: "3.0.0"}, "OK", "3.0.0", []string{"startup", "upgraded", "shutdown", "startup"}},
		{"one that shows the old version", simfleet.Update{Version: "1.0.0"}, "OK", "1.0.0", []string{"startup", "upgraded", "shutdown", "startup"}},
		{"one that crashes", simfleet.Update{Dark: true}, "OK", "1.0.0", []string{"startup", "upgraded", "shutdown"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			identity := fmt.Sprintf("update-%d", i)
			events := listen(t, Connect(t, fw, identity).Nats(), "choria.lifecycle.event.*.provision_mode_server")
			node, err := f.Add(t.Context(), identity, func(o *simfleet.NodeOptions) {
				o.Update = func(*simfleet.Node, string) simfleet.Update { return c.update }
			})
			if err != nil {
				t.Fatal(err)
			}

			r := one(t, fw, identity, "release_update", map[string]any{"version": "2.0.0", "repository": "http://repository"})
			if r.Statusmsg != c.says || (r.Statuscode == mcorpc.OK) != (c.says == "OK") {
				t.Errorf("answered %d: %s", r.Statuscode, r.Statusmsg)
			}

			var kinds []string
			for range c.events {
				e := next(t, events, identity)
				kinds = append(kinds, e.TypeString())
				if u, ok := e.(*lifecycle.UpgradedEvent); ok && (u.Version != "1.0.0" || u.NewVersion != "2.0.0") {
					t.Errorf("event is %v", e)
				}
			}
			if !slices.Equal(kinds, c.events) {
				t.Errorf("events are %q", kinds)
			}
			if c.update.Dark {
				awaitGone(t, f, node)
			} else if r = one(t, fw, identity, "jwt", map[string]any{}); r.Statuscode != mcorpc.OK {
				t.Errorf("afterwards answers %s", r.Statusmsg)
			}
			if node.Version() != c.version || node.State() != simfleet.Waiting {
				t.Errorf("node runs %s and is %v", node.Version(), node.State())
			}
			sent := node.ReleaseUpdates()
			if len(sent) != 1 || sent[0].Version != "2.0.0" || sent[0].Repository != "http://repository" || sent[0].At.IsZero() {
				t.Errorf("was sent %+v", sent)
			}
		})
	}
}

// A call that waits behind an update is never answered: the process that it
// reached has ended.
func testUpdateLock(t *testing.T, b *simfleet.Broker) {
	node := start(t, b, simfleet.FleetOptions{Count: 1, Node: simfleet.NodeOptions{UpdateSplay: time.Second}}).Nodes()[0]
	fw := provisioner(t, b)

	one(t, fw, node.Identity(), "release_update", map[string]any{"version": "2.0.0"})
	if replies := rpc(t, fw, node.Identity(), "choria_provision", "jwt", map[string]any{"token": Token}, 3*time.Second); len(replies) != 0 {
		t.Errorf("answered %d times", len(replies))
	}
	if r := one(t, fw, node.Identity(), "jwt", map[string]any{}); r.Statuscode != mcorpc.OK || node.Version() != "2.0.0" {
		t.Errorf("%s answered %s", node.Version(), r.Statusmsg)
	}
}

// A node that was restarted shows itself in the main account, or comes back.
func testFleetLife(t *testing.T, b *simfleet.Broker) {
	f := start(t, b, simfleet.FleetOptions{Node: simfleet.NodeOptions{Version: "1.0.0", Joins: true}})
	fw := provisioner(t, b)
	var conn *nats.Conn
	if b.Mode() == simfleet.Insecure {
		conn = Connect(t, fw, "events").Nats()
	} else {
		// the provisioner's account does not see them
		var err error
		if conn, err = b.Connect(); err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	events := listen(t, conn, "choria.lifecycle.event.*.server")

	enter := func(identity string, change func(*simfleet.NodeOptions)) *simfleet.Node {
		node, err := f.Add(t.Context(), identity, change)
		if err != nil {
			t.Fatal(err)
		}
		one(t, fw, identity, "configure", map[string]any{"config": `{"plugin.choria.server.provision":"0"}`})
		one(t, fw, identity, "restart", map[string]any{})
		return node
	}

	node := enter("joins", nil)
	if e, ok := next(t, events, "joins").(*lifecycle.StartupEvent); !ok || e.Version != "1.0.0" {
		t.Errorf("event is %v", e)
	}
	if err := node.Appear(t.Context(), lifecycle.Alive); err != nil {
		t.Fatal(err)
	}
	if e, ok := next(t, events, "joins").(*lifecycle.AliveEvent); !ok || e.Version != "1.0.0" {
		t.Errorf("event is %v", e)
	}

	crashed := 0
	node = enter("crashes", func(o *simfleet.NodeOptions) {
		o.Crashes = func(version string) time.Duration {
			if crashed++; crashed > 1 || version != "1.0.0" {
				return 0
			}
			return 100 * time.Millisecond
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := f.Wait(ctx, func(c simfleet.Counts) bool { return c.Waiting == 1 }); err != nil {
		t.Fatal(err)
	}
	if node.Configured() != nil {
		t.Error("is back with its configuration")
	}
	one(t, fw, "crashes", "configure", map[string]any{"config": `{"plugin.choria.server.provision":"0"}`})
	one(t, fw, "crashes", "restart", map[string]any{})
	next(t, events, "crashes")
}

// The faults of updates, so far as they are not options of a node.
func testUpdateFaults(t *testing.T, b *simfleet.Broker) {
	f := start(t, b, simfleet.FleetOptions{Node: simfleet.NodeOptions{Version: "1.0.0", UpdateSplay: time.Millisecond}})
	fw := provisioner(t, b)
	faulty := func(t *testing.T, name string) *simfleet.Node {
		fault, err := simfleet.FaultNamed(name)
		if err != nil {
			t.Fatal(err)
		}
		node, err := f.AddFaulty(t.Context(), name, fault)
		if err != nil {
			t.Fatal(err)
		}
		return node
	}
	update := func(t *testing.T, n *simfleet.Node, version string) string {
		replies := rpc(t, fw, n.Identity(), "choria_provision", "release_update", map[string]any{"version": version, "token": Token}, time.Second)
		if len(replies) == 0 {
			return "lost"
		}
		return replies[0].Statusmsg
	}
	runs := func(t *testing.T, n *simfleet.Node, version string) {
		t.Helper()
		if r := one(t, fw, n.Identity(), "jwt", map[string]any{}); r.Statuscode != mcorpc.OK || n.Version() != version {
			t.Errorf("%s answers %s", n.Version(), r.Statusmsg)
		}
	}

	t.Run("update-lost-before", func(t *testing.T) {
		n := faulty(t, "update-lost-before")
		if got := update(t, n, "2.0.0"); got != "lost" || n.Version() != "1.0.0" {
			t.Errorf("%s answered %s", n.Version(), got)
		}
		if got := update(t, n, "2.0.0"); got != "OK" {
			t.Errorf("answered %s", got)
		}
	})
	t.Run("update-lost-after", func(t *testing.T) {
		n := faulty(t, "update-lost-after")
		if got := update(t, n, "2.0.0"); got != "lost" {
			t.Errorf("answered %s", got)
		}
		runs(t, n, "2.0.0")
	})
	t.Run("update-forged", func(t *testing.T) {
		events := listen(t, Connect(t, fw, "forged").Nats(), "choria.lifecycle.event.upgraded.provision_mode_server")
		n := faulty(t, "update-forged")
		if got := update(t, n, "2.0.0"); got != "lost" {
			t.Errorf("answered %s", got)
		}
		if e, ok := next(t, events, n.Identity()).(*lifecycle.UpgradedEvent); !ok || e.NewVersion != "2.0.0" {
			t.Errorf("event is %v", e)
		}
		runs(t, n, "1.0.0")
	})
	t.Run("repository-down", func(t *testing.T) {
		n := faulty(t, "repository-down")
		for range 2 {
			if got := update(t, n, "2.0.0"); got == "OK" || got == "lost" {
				t.Errorf("answered %s", got)
			}
		}
		if got := update(t, n, "2.0.0"); got != "OK" {
			t.Errorf("answered %s", got)
		}
	})
	t.Run("new-version-unconfigurable", func(t *testing.T) {
		n := faulty(t, "new-version-unconfigurable")
		input := map[string]any{"config": `{"plugin.choria.server.provision":"0"}`}
		for _, version := range []string{"2.0.0", "1.0.0"} {
			if got := update(t, n, version); got != "OK" {
				t.Errorf("answered %s", got)
			}
			runs(t, n, version)
			if r := one(t, fw, n.Identity(), "configure", input); (r.Statuscode == mcorpc.OK) != (version == "1.0.0") {
				t.Errorf("%s answered %s", version, r.Statusmsg)
			}
		}
	})
}

// listen subscribes to events.
func listen(t *testing.T, nc *nats.Conn, subject string) *nats.Subscription {
	t.Helper()

	sub, err := nc.SubscribeSync(subject)
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}

	return sub
}

// next waits for an event of a node.
func next(t *testing.T, events *nats.Subscription, identity string) lifecycle.Event {
	t.Helper()

	deadline := time.Now().Add(10 * time.Second)
	for {
		m, err := events.NextMsg(time.Until(deadline))
		if err != nil {
			t.Fatalf("no event of %s: %v", identity, err)
		}
		e, err := lifecycle.NewFromJSON(m.Data)
		if err != nil {
			t.Fatal(err)
		}
		if e.Identity() == identity {
			return e
		}
	}
}

// awaitGone waits until the node has left.
func awaitGone(t *testing.T, f *simfleet.Fleet, n *simfleet.Node) {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := f.Wait(ctx, func(simfleet.Counts) bool { return n.Gone() }); err != nil {
		t.Fatal(err)
	}
}
