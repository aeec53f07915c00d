package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/choria-io/go-choria/lifecycle"
	"github.com/sirupsen/logrus"

	"github.com/choria-provisioner/provisioner/config"
	"github.com/choria-provisioner/provisioner/fleet"
	"github.com/choria-provisioner/provisioner/fleet/releases"
	"github.com/choria-provisioner/provisioner/host"
	"github.com/choria-provisioner/provisioner/version/ledger"
	"github.com/choria-provisioner/provisioner/version/ledger/boltstore"
	"github.com/choria-provisioner/provisioner/version/ledger/book"
	"github.com/choria-provisioner/provisioner/version/ledger/socket"
)

// serverComponent is the component of lifecycle events of a server that is
// provisioned (go-choria, server, eventComponent).
const serverComponent = "server"

// versionKeeping is all that features.upgrades adds to the daemon.
type versionKeeping struct {
	*releases.Releases
	store *boltstore.Store
	// desk is where people ask about the ledger, and change it.
	desk *socket.Server
	// main is the connection to the main account, nil where there is none.
	main *host.Network
	// ownMain tells that main is ours to run, and not one that is there anyway.
	ownMain bool
}

// newVersionKeeping opens the ledger. In insecure mode there is one account, and
// control is connected to it.
func (d *daemon) newVersionKeeping(ctx context.Context, choriaConfig string) (*versionKeeping, error) {
	cfg, logger := d.cfg, d.log.Logger
	k := &versionKeeping{}
	switch {
	case cfg.Insecure:
		k.main = d.control
	case len(cfg.State.NATS.Servers) > 0:
		fw, err := newMainFramework(cfg, choriaConfig, logger)
		if err != nil {
			return nil, err
		}
		k.main, k.ownMain = host.NewNetwork(fw, fmt.Sprintf("provisioner %s main", d.identity), nil, logger.WithField("component", "main-network")), true
	}
	if cfg.LeaderElection {
		d.log.Warnf("The ledger of versions is a file on this machine (%s): with leader_election on, what it remembers does not follow the lease to another instance", cfg.StateDir)
	}

	store, err := d.openLedger(ctx)
	if err != nil {
		return nil, err
	}
	k.store = store
	k.Releases, err = releases.New(ctx, releases.Config{
		Store:           store,
		Policy:          policy(cfg, k.main != nil),
		QuarantineAfter: cfg.Versions.QuarantineAfter,
		Listening: func() bool {
			return d.calls.Connected() && d.control.Connected() && (k.main == nil || k.main.Connected())
		},
		Judged:  d.outcomes.judged,
		Metrics: d.metrics,
		Log:     logger.WithField("component", "ledger"),
	})
	if err == nil {
		k.desk, err = socket.Listen(ctx, cfg.StateDir, book.New(store, k.Keeper()), logger.WithField("component", "ledger"))
	}
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}

	return k, nil
}

// ledgerTries is how often a ledger that another process has is asked for, 2 s
// each: whoever lists the nodes of a large fleet from the file has it for some
// seconds.
const ledgerTries = 6

func (d *daemon) openLedger(ctx context.Context) (*boltstore.Store, error) {
	for try := 1; ; try++ {
		store, err := boltstore.Open(d.cfg.StateDir)
		if !errors.Is(err, boltstore.ErrLocked) || try == ledgerTries || ctx.Err() != nil {
			return store, err
		}
		d.log.Warnf("Waiting for the ledger: %v", err)
	}
}

// policy is what the configuration says about versions.
func policy(cfg *config.Config, mainView bool) ledger.Policy {
	return ledger.Policy{
		Upgrades:       cfg.Features.Upgrades,
		Optional:       cfg.UpgradesOptional,
		Repository:     cfg.UpgradesRepository != "",
		MainView:       mainView,
		Trial:          cfg.Versions.Trial,
		ReleaseTimeout: cfg.Versions.ReleaseTimeout,
		MaxInTrial:     cfg.Versions.MaxInTrial,
		MaxDark:        cfg.Versions.MaxDark,
	}
}

// listenMain hears the nodes that run in the main account, until ctx ends. Where
// that account is one that waiting nodes share, what it hears is bounded; where
// it is not, what they say there is told apart by a witness on control.
func (k *versionKeeping) listenMain(ctx context.Context, control *host.Network, log *logrus.Entry) {
	accept := func(e fleet.Event) { k.SeenInMain(e.Identity, e.Version) }
	types := []lifecycle.Type{lifecycle.Startup, lifecycle.Alive}
	l := fleet.Listener{Network: k.main, Component: serverComponent, Types: types, Handle: accept, Log: log}

	var tasks sync.WaitGroup
	if k.ownMain {
		witness := fleet.NewWitness(log)
		tasks.Go(func() { witness.Run(ctx, control, serverComponent, types...) })
		l.Handle = func(e fleet.Event) {
			if k.Awaits(e.Identity) {
				witness.Believe(e, accept)
			}
		}
	} else {
		l.Limit = fleet.EventLimit()
	}
	l.Run(ctx)
	tasks.Wait()
}

// begin is fleet.Config.Begin, found is fleet.Config.Found; without upgrades
// nothing is remembered.
func (d *daemon) begin(ctx context.Context) error {
	if d.versions == nil {
		return nil
	}

	return d.versions.Begin(ctx)
}

func (d *daemon) found(identity string) {
	if d.versions != nil {
		d.versions.Answered(identity)
	}
}

// heard takes a lifecycle event of a node in provisioning mode.
func (d *daemon) heard(e fleet.Event) {
	switch {
	case e.Type == lifecycle.Startup:
		d.fleet.Announced(e.Identity)
	case d.versions != nil:
		d.versions.Upgraded(e.Identity, e.Version)
	}
}
