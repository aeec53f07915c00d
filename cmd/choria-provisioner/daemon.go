package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/choria-io/go-choria/lifecycle"
	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"
	"google.golang.org/grpc/codes"

	"github.com/choria-provisioner/provisioner/config"
	"github.com/choria-provisioner/provisioner/election"
	"github.com/choria-provisioner/provisioner/fleet"
	"github.com/choria-provisioner/provisioner/helper/helperv1"
	"github.com/choria-provisioner/provisioner/helper/supervisor"
	"github.com/choria-provisioner/provisioner/host"
	"github.com/choria-provisioner/provisioner/metrics"
)

// lifecycleComponent is the component of the daemon's own events.
const lifecycleComponent = "provisioner"

// farewell bounds the last words on the network at shutdown.
const farewell = 500 * time.Millisecond

// daemon is the provisioner: all its parts, wired.
type daemon struct {
	cfg     *config.Config
	log     *logrus.Entry
	auditor *logrus.Logger
	metrics *metrics.Metrics
	gate    *election.Gate
	// elector is nil when leader_election is off: the gate is then always open.
	elector *election.Elector
	helper  *supervisor.Supervisor
	fleet   *fleet.Fleet
	server  *metrics.Server
	// versions is nil without features.upgrades.
	versions *versionKeeping
	outcomes *outcomes
	own      *ownVersion
	// calls carries RPC and discovery; control carries the lease and lifecycle
	// events, which must not wait behind calls.
	calls   *host.Network
	control *host.Network
	caller  host.Caller
	// identity is ours, and the name under which we stand for election.
	identity string
}

// newDaemon does all that can fail before anything runs, but for the helper's
// start. When ctx ends meanwhile, the error is that of ctx.
func newDaemon(ctx context.Context, cfg *config.Config, choriaConfig string, logger *logrus.Logger) (*daemon, error) {
	fw, err := newFramework(cfg, choriaConfig, logger)
	if err != nil {
		return nil, err
	}

	d := &daemon{
		cfg:      cfg,
		log:      logger.WithField("component", "provisioner"),
		auditor:  newAuditor(logger),
		metrics:  metrics.New(cfg.Site),
		identity: fw.Configuration().Identity,
	}
	d.metrics.SetBuild(version)
	d.gate = election.NewGate()
	d.metrics.SetPaused(true)
	d.gate.OnChange(func(open bool) { d.metrics.SetPaused(!open) })
	d.calls = host.NewNetwork(fw, fmt.Sprintf("provisioner %s calls", d.identity), d.extraReply, logger.WithField("component", "network"))
	d.caller = host.NewCaller(d.calls)
	d.control = host.NewNetwork(fw, fmt.Sprintf("provisioner %s control", d.identity), nil, logger.WithField("component", "network"))
	if cfg.LeaderElection {
		d.elector = election.New(election.Config{
			Identity: d.identity,
			Connect:  d.controlConn,
			Gate:     d.gate,
			Log:      logger.WithField("component", "election"),
		})
	}
	d.helper, err = newHelper(cfg.Helper, d.metrics.Helper(), logger.WithField("component", "helper"))
	if err != nil {
		return nil, err
	}
	d.metrics.WatchHelper(func() (name, build string) {
		info := d.helper.Info()
		return info.Name, info.Build
	})
	d.outcomes = newOutcomes(d.helper.ReportOutcome,
		func() bool { return d.helper.Info().Has(helperv1.Capability_CAPABILITY_DECIDE_RELEASE) },
		logger.WithField("component", "helper"))
	if d.own, err = newOwnVersion(d); err != nil {
		return nil, err
	}
	if cfg.Features.Upgrades {
		if d.versions, err = d.newVersionKeeping(ctx, choriaConfig); err != nil {
			return nil, err
		}
	}
	d.fleet = fleet.New(fleet.Config{
		Discover:  fleet.Broadcast(d.calls),
		Provision: d.provision,
		Begin:     d.begin,
		Found:     d.found,
		Report:    d.report,
		Gate:      d.gate,
		Metrics:   d.metrics,
		Log:       logger.WithField("component", "fleet"),
		Workers:   cfg.Workers,
		Interval:  cfg.Interval,
	})

	return d, nil
}

// Listen opens the monitor port, where one is configured, so that a busy one is
// found before anything runs.
func (d *daemon) Listen() (err error) {
	if d.cfg.MonitorPort == 0 {
		return nil
	}
	d.server, err = metrics.Listen(metrics.ServerConfig{
		Address: d.cfg.MonitorAddress,
		Port:    d.cfg.MonitorPort,
		Metrics: d.metrics,
		Ready:   d.ready,
		Log:     d.log.Logger.WithField("component", "metrics"),
	})

	return err
}

// Run provisions until ctx ends, then stops everything. An error is one of the
// start.
func (d *daemon) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var networks, tasks sync.WaitGroup
	if d.server != nil {
		tasks.Go(func() {
			if err := d.server.Serve(ctx); err != nil {
				d.log.Errorf("Serving metrics ended: %v", err)
			}
		})
	}
	if err := d.helper.Start(ctx); err != nil {
		interrupted := ctx.Err() != nil
		stop()
		tasks.Wait()
		if interrupted {
			return nil
		}
		return err
	}

	// The networks outlive the work: the lease is given back over them.
	netctx, disconnect := context.WithCancel(context.WithoutCancel(ctx))
	networks.Go(func() { d.calls.Run(netctx) })
	networks.Go(func() { d.control.Run(netctx) })
	if d.versions != nil {
		if d.versions.ownMain {
			networks.Go(func() { d.versions.main.Run(netctx) })
		}
		if d.versions.main != nil {
			tasks.Go(func() { d.versions.listenMain(ctx, d.control, d.log.Logger.WithField("component", "events")) })
		}
		tasks.Go(func() { d.versions.Run(ctx) })
		tasks.Go(func() {
			if err := d.versions.desk.Serve(ctx); err != nil {
				d.log.Errorf("Nobody can ask about the ledger any longer: %v", err)
			}
		})
	}
	tasks.Go(func() { d.outcomes.Run(ctx) })

	d.log.Warnf("Choria Provisioner %s starting as %s with %d workers", version, d.identity, d.cfg.Workers)
	tasks.Go(func() { d.fleet.Run(ctx) })
	tasks.Go(func() {
		events := fleet.Listener{
			Network:   d.control,
			Component: d.cfg.LifecycleComponent,
			Types:     []lifecycle.Type{lifecycle.Startup, lifecycle.Upgraded},
			Limit:     fleet.EventLimit(),
			Handle:    d.heard,
			Log:       d.log.Logger.WithField("component", "events"),
		}
		events.Run(ctx)
	})
	tasks.Go(func() { d.announce(ctx, lifecycle.Startup) })
	tasks.Go(func() { d.own.Run(ctx, stop) })
	if d.cfg.Features.ED25519 && d.cfg.JWTSigningToken != "" {
		tasks.Go(func() { watchSigningToken(ctx, d.cfg.JWTSigningToken, d.metrics, d.log) })
	}
	if d.elector != nil {
		tasks.Go(func() { d.elector.Run(ctx) })
	} else {
		d.gate.Open()
	}

	<-ctx.Done()
	d.log.Warn("Shutting down")
	tasks.Go(func() {
		if err := d.helper.Close(); err != nil {
			d.log.Errorf("Could not stop the helper: %v", err)
		}
	})
	tasks.Wait()
	bye, cancel := context.WithTimeout(netctx, farewell)
	d.announce(bye, lifecycle.Shutdown)
	cancel()
	disconnect()
	networks.Wait()
	d.log.Warn("Shut down")

	return nil
}

// provision provisions one node.
func (d *daemon) provision(ctx context.Context, identity string, slot host.Slot) (host.Outcome, error) {
	// Nothing is asked of a node, and no key made, that nobody can use.
	if !d.helper.Healthy() {
		return host.Outcome{}, fmt.Errorf("%w: it is %s", host.ErrHelperUnavailable, d.helper.State())
	}
	token, err := d.cfg.ReadToken()
	if err != nil {
		return host.Outcome{}, err
	}
	var epoch uint64
	if d.elector != nil {
		epoch = d.elector.Status().Epoch
	}

	return host.New(identity, host.Config{
		Caller:  d.caller,
		Helper:  siteHelper{d.helper},
		Gate:    d.gate,
		Slot:    slot,
		Metrics: d.metrics,
		Log:     d.log.Logger.WithField("component", "host"),
		Doubted: func() bool { return d.fleet.Doubted(identity) },
		Features: host.Features{
			PKI:      d.cfg.Features.PKI,
			JWT:      d.cfg.Features.JWT,
			ED25519:  d.cfg.Features.ED25519,
			Upgrades: d.cfg.Features.Upgrades,
		},
		Token:             token,
		Site:              d.cfg.Site,
		Epoch:             epoch,
		CertDenyList:      d.cfg.CertDenyList,
		JWTVerifyCert:     d.cfg.JWTVerifyCert,
		JWTSigningKey:     d.cfg.JWTSigningKey,
		JWTSigningToken:   d.cfg.JWTSigningToken,
		ServerJWTValidity: d.cfg.ServerJWTValidity,

		Ledger:             d.versions,
		UpgradesRepository: d.cfg.UpgradesRepository,
	}).Provision(ctx)
}

// report is told of each pass.
func (d *daemon) report(p fleet.Pass) {
	// Names that never answered can be invented by the thousand; the metric
	// pass_seconds counts them.
	if p.Outcome.Result != host.Evicted {
		d.audit(p)
	}
	d.outcomes.passed(p)
}

// closeLedger is called once nothing uses it any more.
func (d *daemon) closeLedger() {
	if d.versions == nil {
		return
	}
	if err := errors.Join(d.versions.desk.Close(), d.versions.store.Close()); err != nil {
		d.log.Errorf("Could not close the ledger: %v", err)
	}
}

// extraReply is told of a second reply to one call.
func (d *daemon) extraReply(identity, action string) {
	d.fleet.Doubt(identity, action+" was answered more than once")
}

// controlConn waits for the connection that the lease is held over.
func (d *daemon) controlConn(ctx context.Context) (*nats.Conn, error) {
	session, err := d.control.Session(ctx)
	if err != nil {
		return nil, err
	}

	return session.Connector.Nats(), nil
}

// announce publishes a lifecycle event of ours, when there is a connection
// before ctx ends.
func (d *daemon) announce(ctx context.Context, kind lifecycle.Type) {
	session, err := d.control.Session(ctx)
	if err != nil {
		return
	}
	event, err := lifecycle.New(kind, lifecycle.Component(lifecycleComponent), lifecycle.Identity(d.identity), lifecycle.Version(version))
	if err == nil {
		err = lifecycle.PublishEvent(event, session.Connector)
	}
	if err == nil {
		err = session.Connector.Nats().FlushTimeout(farewell)
	}
	if err != nil {
		d.log.Warnf("Could not publish our %s event: %v", kind, err)
	}
}

// ready tells what keeps this instance from its work. A standby is ready.
func (d *daemon) ready() error {
	var errs []error
	if !d.calls.Connected() || !d.control.Connected() {
		errs = append(errs, errors.New("not connected to the broker"))
	}
	if !d.helper.Healthy() {
		errs = append(errs, fmt.Errorf("the helper is %s", d.helper.State()))
	}

	if d.elector != nil {
		errs = append(errs, d.elector.Status().Err)
	}

	return errors.Join(errs...)
}

// siteHelper is the supervised helper as a host sees it.
type siteHelper struct{ *supervisor.Supervisor }

func (h siteHelper) Has(c helperv1.Capability) bool { return h.Info().Has(c) }

// helperMetrics hands what the supervisor tells to the metrics.
type helperMetrics struct{ *metrics.Helper }

func (m helperMetrics) CallDone(method string, code codes.Code, d time.Duration) {
	m.Helper.CallDone(method, code.String(), d)
}

func (m helperMetrics) StateChanged(s supervisor.State) { m.Helper.StateChanged(s.String()) }
