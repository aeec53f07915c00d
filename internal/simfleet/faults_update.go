package simfleet

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/choria-io/go-choria/providers/agent/mcorpc"
	"github.com/choria-io/go-choria/providers/agent/mcorpc/golang/provision"
	"github.com/choria-io/go-choria/providers/agent/mcorpc/golang/rpcutil"
)

const (
	// thirdVersion is one that nobody asked for.
	thirdVersion = "0.0.3"

	// longDownload is more than the agent's timeout and what a caller adds to it.
	longDownload = 25 * time.Second

	// repositoryRefusals is how many updates to one version fail before a
	// repository is back.
	repositoryRefusals = 2

	// crashAfter is how long a node runs in the fleet before it crashes. It is more
	// than the restart is given by the ledger.
	crashAfter = 12 * time.Second
)

// errRepositoryDown is what the updater says of one that does not listen.
var errRepositoryDown = errors.New(`release not found: could not download release spec: Get "http://127.0.0.1:1/": dial tcp 127.0.0.1:1: connect: connection refused`)

// updateFaults are those of nodes that are sent another version.
func updateFaults() []Fault {
	fault := func(name, about string, apply func(*NodeOptions)) Fault {
		return Fault{Name: name, About: about, Feature: "upgrades", Apply: func(_ *Broker, o *NodeOptions) error {
			apply(o)

			return nil
		}}
	}
	// becomes is what comes of every release_update
	becomes := func(name, about string, u Update) Fault {
		return fault(name, about, func(o *NodeOptions) {
			o.Update = func(*Node, string) Update { return u }
		})
	}
	// called changes what comes of each call of an action
	called := func(name, about, action string, override func(*Node, Call) Override) Fault {
		return fault(name, about, func(o *NodeOptions) {
			o.Intercept = func(n *Node, c Call) Override {
				if c.Action != action {
					return Override{}
				}

				return override(n, c)
			}
		})
	}
	first := func(override Override) func(*Node, Call) Override {
		return func(_ *Node, c Call) Override {
			if c.Attempt > 1 {
				return Override{}
			}

			return override
		}
	}
	every := func(override Override) func(*Node, Call) Override {
		return func(*Node, Call) Override { return override }
	}
	// newVersion changes what comes of a call once the node was updated
	newVersion := func(override Override) func(*Node, Call) Override {
		return func(n *Node, _ Call) Override {
			if n.Version() == n.opts.Version {
				return Override{}
			}

			return override
		}
	}

	return []Fault{
		fault("update-old-version", "a node that takes an update and is back with its old version", func(o *NodeOptions) {
			o.Update = func(n *Node, _ string) Update { return Update{Version: n.Version()} }
		}),
		becomes("update-third-version", "a node that takes an update and is back with a version that nobody asked for", Update{Version: thirdVersion}),
		becomes("update-unstartable", "a node that takes an update, cannot execute it, and runs on", Update{Unstartable: true}),
		becomes("update-dark", "a node that takes an update and is not seen again", Update{Dark: true}),
		becomes("update-rolled-back", "a node that cannot place an update", Update{Failed: errors.New("downloaded file had an invalid checksum")}),
		becomes("update-broken", "a node that cannot place an update, nor restore its own binary", Update{
			Broken: errors.New("rename /usr/sbin/choria.backup /usr/sbin/choria: no such file or directory"),
		}),

		called("update-lost-before", "a node that is not reached by the first release_update", actionReleaseUpdate, first(Override{Ignore: true})),
		called("update-lost-after", "a node whose answer to the first release_update is lost, after it did", actionReleaseUpdate, first(Override{Lose: true})),
		fault("update-lost-unseen", "a node whose answer to release_update is lost, after it did, and that publishes no event of it", func(o *NodeOptions) {
			o.NoUpgradedEvents = true
			_ = always(actionReleaseUpdate, Override{Lose: true})(nil, o)
		}),
		called("update-lost-always", "a node that is reached by no release_update", actionReleaseUpdate, every(Override{Ignore: true})),
		called("update-slow", "a node that takes longer to fetch an update than it has to answer", actionReleaseUpdate, every(Override{Delay: longDownload})),
		called("update-forged", "a node that is not reached by the first release_update, while another publishes in its name that it was", actionReleaseUpdate, func(n *Node, c Call) Override {
			if c.Attempt > 1 {
				return Override{}
			}
			var in provision.ReleaseUpdateRequest
			_ = json.Unmarshal(c.Data, &in)
			n.warn(n.fleet.AnnounceUpgrade(n.fleet.ctx, in.Version, n.Identity()), "could not be forged")

			return Override{Ignore: true}
		}),
		fault("repository-down", "a node that finds no repository, the first two times for each version", func(o *NodeOptions) {
			o.Update = func(n *Node, version string) Update {
				sent := 0
				for _, u := range n.ReleaseUpdates() {
					if u.Version == version {
						sent++
					}
				}
				if sent <= repositoryRefusals {
					return Update{Failed: errRepositoryDown}
				}

				return Update{}
			}
		}),

		called("new-version-unconfigurable", "a node that refuses its configuration once it was updated", actionConfigure, newVersion(Override{
			Status: mcorpc.Aborted, Message: "Could not write config: generated configuration could not be parsed: unknown setting",
		})),
		called("new-version-unrestartable", "a node that refuses to restart once it was updated", actionRestart, newVersion(Override{
			Status: mcorpc.Aborted, Message: "Configuration /etc/choria/server.conf could not be parsed, restart cannot continue: unknown setting",
		})),
		fault("new-version-crashes", "a node that waits again, time after time, soon after it was configured with its new version", func(o *NodeOptions) {
			if o.Version == "" {
				o.Version = DefaultVersion
			}
			old := o.Version
			o.Crashes = func(version string) time.Duration {
				if version == old {
					return 0
				}

				return crashAfter
			}
		}),

		fault("not-upgradable", "a node that says that it cannot be updated", func(o *NodeOptions) { o.NotUpgradable = true }),
		called("updates-off", "a node that says that it can be updated, and refuses it", actionReleaseUpdate, every(Override{
			Status: mcorpc.Aborted, Message: "Version updates is not enabled in the configuration",
		})),
		called("update-wrong-token", "a node that does not like the token that an update is sent with", actionReleaseUpdate, every(Override{
			Status: mcorpc.Aborted, Message: "Incorrect provision token supplied",
		})),
		called("upgradable-no-version", "a node that can be updated and does not show its version", actionInventory, every(Override{
			Data: rpcutil.InventoryReply{Agents: agents, Facts: json.RawMessage(`{}`), MainCollective: collective, Upgradable: true},
		})),
	}
}

// AnnounceUpgrade publishes in the name of any nodes that they took an update, as
// whoever waits can do, and returns when the broker has it.
func (f *Fleet) AnnounceUpgrade(ctx context.Context, version string, identities ...string) error {
	return f.forge(ctx, "upgraded", waitingComponent, map[string]any{"version": DefaultVersion, "new_version": version}, identities)
}

// AnnouncePresence publishes in the name of any nodes that they run a version in
// the fleet, as whoever waits can do: a broker lets what waiting nodes say of
// their lives into the main account. It returns when the broker has it.
func (f *Fleet) AnnouncePresence(ctx context.Context, version string, identities ...string) error {
	return f.forge(ctx, "startup", fleetComponent, map[string]any{"version": version}, identities)
}
