package main

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/choria-provisioner/provisioner/deploy/ownversion"
	"github.com/choria-provisioner/provisioner/deploy/versions"
	"github.com/choria-provisioner/provisioner/host"
	"github.com/choria-provisioner/provisioner/metrics"
	"github.com/choria-provisioner/provisioner/status"
)

// drainLimit is how long nodes in work may take to end when the daemon makes way
// for its successor; a pass over a node that answers takes far less.
const drainLimit = time.Minute

// ownVersion answers for this instance on the network, and looks after the
// daemon's own version where a launcher started it.
type ownVersion struct {
	daemon   *daemon
	instance string
	place    string
	digest   string
	started  time.Time
	service  *status.Service
	// watch is nil where no launcher started this daemon.
	watch *ownversion.Watch
	// stop ends the daemon; set by Run.
	stop func()
}

func newOwnVersion(d *daemon) (*ownVersion, error) {
	o := &ownVersion{
		daemon:   d,
		instance: strings.ToLower(rand.Text()[:12]),
		started:  time.Now().UTC().Truncate(time.Second),
	}
	program, err := ownProgram()
	if err != nil {
		return nil, err
	}
	if o.digest, err = versions.Digest(program); err != nil {
		return nil, err
	}
	o.service = &status.Service{Connect: o.connect, Status: o.status, Log: d.log.Logger.WithField("component", "status")}

	o.place = o.instance
	start, launched := versions.StartedBy(os.Getenv)
	if !launched {
		return o, nil
	}
	if place, err := start.Place(); err == nil {
		o.place = place
	} else {
		d.log.Warnf("The launcher's state cannot be written, and this version cannot prove itself: %v", err)
	}
	o.watch = ownversion.New(ownversion.Config{
		Start:     start,
		Instance:  o.instance,
		Place:     o.place,
		Build:     version,
		Digest:    o.digest,
		Reachable: func() bool { return d.calls.Connected() || d.control.Connected() },
		Healthy:   o.healthy,
		AskSelf: func(ctx context.Context) (status.Status, error) {
			nc, err := o.connected()
			if err != nil {
				return status.Status{}, err
			}
			return status.AskInstance(ctx, nc, o.instance)
		},
		AskAll: func(ctx context.Context) ([]status.Status, error) {
			nc, err := o.connected()
			if err != nil {
				return nil, err
			}
			return status.Ask(ctx, nc)
		},
		Leave: o.leave,
		Log:   d.log.Logger.WithField("component", "version"),
		Now:   time.Now,
	})
	d.metrics.WatchOwnVersion(o.shown)

	return o, nil
}

// Run answers and watches until ctx ends; stop ends the daemon.
func (o *ownVersion) Run(ctx context.Context, stop func()) {
	o.stop = stop
	var tasks sync.WaitGroup
	tasks.Go(func() { o.service.Run(ctx) })
	if o.watch != nil {
		tasks.Go(func() { o.watch.Run(ctx) })
	}
	tasks.Wait()
}

// shown is what the metrics show.
func (o *ownVersion) shown() metrics.OwnVersion {
	own := o.watch.Status()
	shown := metrics.OwnVersion{Running: own.Running, Proved: own.Proved}
	for _, v := range own.Verdicts {
		// A full disk or a person may have left anything in the file.
		if versions.ValidName(v.From) || v.From == versions.ByHand {
			shown.Verdicts = append(shown.Verdicts, metrics.OwnVerdict{
				From: v.From, To: strings.ToValidUTF8(v.To, "?"), Outcome: strings.ToValidUTF8(v.Outcome, "?"), At: v.At,
			})
		}
	}

	return shown
}

// leave ends the daemon between nodes.
func (o *ownVersion) leave(ctx context.Context) {
	bounded, cancel := context.WithTimeout(ctx, drainLimit)
	defer cancel()
	if err := o.daemon.fleet.Drain(bounded); err != nil && ctx.Err() == nil {
		o.daemon.log.Warnf("Nodes in work have not ended within %v and are left", drainLimit)
	}
	o.stop()
}

// healthy is what, but for a pause, keeps this instance from its work.
func (o *ownVersion) healthy() error {
	d := o.daemon
	if err := d.ready(); err != nil {
		return err
	}
	if d.elector != nil && !d.elector.Status().Led {
		return errors.New("nobody is known to lead yet")
	}

	return nil
}

func (o *ownVersion) connect(ctx context.Context) (*nats.Conn, context.Context, error) {
	session, err := o.daemon.control.Session(ctx)
	if err != nil {
		return nil, nil, err
	}

	return session.Connector.Nats(), session.Context(), nil
}

// connected is the connection that there is now.
func (o *ownVersion) connected() (*nats.Conn, error) {
	now, cancel := context.WithCancelCause(context.Background())
	cancel(host.ErrDisconnected)
	nc, _, err := o.connect(now)

	return nc, err
}

// status is what this instance says of itself.
func (o *ownVersion) status() status.Status {
	d := o.daemon
	info := d.helper.Info()
	queued, waiting, busy := d.metrics.Load()
	s := status.Status{
		Instance: o.instance,
		Place:    o.place,
		Identity: d.identity,
		Site:     d.cfg.Site,
		Build:    version,
		Digest:   o.digest,
		Started:  o.started,
		Gate:     status.Gate{Open: d.gate.IsOpen(), Why: d.gate.Reason()},
		Queue:    queued,
		Waiting:  waiting,
		Workers:  status.Workers{Busy: busy, Limit: d.cfg.Workers},
		Helper:   status.Helper{Name: info.Name, Build: info.Build, State: d.helper.State().String()},
		Ledger:   d.ledgerStore(),
	}
	if d.elector != nil {
		e := d.elector.Status()
		s.Election = status.Election{Enabled: true, Leader: e.Leader, Epoch: e.Epoch}
	}
	if o.watch != nil {
		s.Version = o.watch.Status()
	}

	return s
}

// ledgerStore is the kind of the ledger's store.
func (d *daemon) ledgerStore() string {
	if d.versions == nil {
		return "off"
	}

	return "file"
}
