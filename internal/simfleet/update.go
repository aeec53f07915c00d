package simfleet

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/choria-io/go-choria/lifecycle"
	"github.com/choria-io/go-choria/providers/agent/mcorpc"
	"github.com/choria-io/go-choria/providers/agent/mcorpc/golang/provision"
)

// Update is what becomes of a release_update. The zero value is a success: the
// node answers, leaves after its UpdateSplay, and is back with the version it
// was sent.
type Update struct {
	// Failed is what the updater says of a release that it could not fetch or
	// place. The node runs on as it is.
	Failed error

	// Broken is why the updater could not restore the node's binary either. The
	// node runs on, but cannot start anew.
	Broken error

	// Unstartable is a release that the system refuses to execute: the node runs
	// on, with the version it had.
	Unstartable bool

	// Dark is a release that crashes at its start: the node is not seen again
	// before Node.Return.
	Dark bool

	// Version is what the node is back with. Defaults to what it was sent.
	Version string
}

// ReleaseUpdate is one release_update that was sent to a node, whatever came of
// it.
type ReleaseUpdate struct {
	Version, Repository string
	At                  time.Time
}

// ReleaseUpdates are those sent to the node, in order.
func (n *Node) ReleaseUpdates() []ReleaseUpdate {
	var updates []ReleaseUpdate
	for _, c := range n.Calls() {
		if c.Action != actionReleaseUpdate {
			continue
		}
		var in provision.ReleaseUpdateRequest
		// What cannot be read was sent all the same.
		_ = json.Unmarshal(c.Data, &in)
		updates = append(updates, ReleaseUpdate{in.Version, in.Repository, c.At})
	}

	return updates
}

func (n *Node) releaseUpdate(c *Call, reply *mcorpc.Reply) func() {
	if n.opts.NotUpgradable {
		abort(reply, "Version updates is not enabled in the configuration")

		return nil
	}

	var in provision.ReleaseUpdateRequest
	if !n.parse(c, reply, &in, &in.Token) {
		return nil
	}

	var u Update
	if n.opts.Update != nil {
		u = n.opts.Update(n, in.Version)
	}
	if u.Version == "" {
		u.Version = in.Version
	}
	switch {
	case u.Broken != nil:
		n.placed("", true)
		abort(reply, "Update to version %s failed, rollback also failed, server in broken state: %s", in.Version, u.Broken)

		return nil
	case u.Failed != nil:
		abort(reply, "Update to version %s failed, release rolled back: %s", in.Version, u.Failed)

		return nil
	}

	n.placed(u.Version, u.Unstartable)
	if !n.opts.NoUpgradedEvents {
		n.event(lifecycle.Upgraded, lifecycle.NewVersion(in.Version))
	}
	reply.Data = provision.Reply{Message: "Restarting Choria Server after 2s"}

	return func() { n.update(u) }
}

// placed remembers what lies on the node's disk.
func (n *Node) placed(version string, unstartable bool) {
	n.mu.Lock()
	defer n.mu.Unlock()

	n.onDisk, n.unstartable = version, unstartable
}

// update makes the node leave and come back with what lies on its disk.
func (n *Node) update(u Update) {
	n.agent.Lock()
	defer n.agent.Unlock()

	if !n.leave(n.State(), n.opts.UpdateSplay) || u.Dark {
		return
	}
	err := n.rejoin("")
	if err == nil {
		err = n.fleet.announce(n.fleet.ctx, n)
	}
	n.warn(err, "did not come back from an update")
}

// enterFleet is the life of a node after it was restarted with a configuration.
func (n *Node) enterFleet() {
	n.mu.Lock()
	n.version = n.onDisk
	version := n.version
	n.mu.Unlock()

	if n.opts.Crashes != nil {
		if after := n.opts.Crashes(version); after > 0 {
			if n.sleep(after) {
				n.warn(n.Return(n.fleet.ctx, ""), "did not come back from the fleet")
			}

			return
		}
	}
	if n.opts.Joins {
		n.warn(n.Appear(n.fleet.ctx, lifecycle.Startup), "could not be seen in the main account")
	}
}

// Appear publishes a startup or alive event of the node as one of component
// server in the main account, and returns when the broker has it. In insecure
// mode, where a provisioner has one connection, it is published where that one
// is.
func (n *Node) Appear(ctx context.Context, kind lifecycle.Type) error {
	nc := n.conn.nc
	if n.fleet.broker.Mode() == Issuer {
		main, err := n.fleet.broker.Connect()
		if err != nil {
			return fmt.Errorf("main account: %w", err)
		}
		defer main.Close()
		nc = main
	}

	event, err := n.newEvent(kind, fleetComponent)
	if err != nil {
		return err
	}
	if err = lifecycle.PublishEvent(event, rawPublisher{nc}); err != nil {
		return err
	}

	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()

	return nc.FlushWithContext(ctx)
}
