// Package demo shows the provisioner at work: a broker and a simulated fleet in
// this process, and the provisioner as a child process with a helper plugin of
// its own, as in real life. It needs nothing but this one program, and leaves
// nothing behind.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/choria-provisioner/provisioner/internal/simfleet"
)

const (
	// drawInterval is the time between two looks at the fleet, scrapeInterval
	// that between two readings of the provisioner's metrics.
	drawInterval   = 100 * time.Millisecond
	scrapeInterval = time.Second

	// settleLimit is how long the provisioner may take to count a node that has
	// left already.
	settleLimit = 5 * time.Second
)

// Run shows the demo. It returns when all nodes are provisioned and everything
// it started is gone, or with the reason why that did not come to pass. The end
// of ctx is one: then it cleans up and returns.
func Run(ctx context.Context, opts Options) (err error) {
	if err := opts.Check(); err != nil {
		return err
	}

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	people := opts.Stdout
	if opts.JSON {
		people = opts.Stderr
	}
	d := &demo{opts: opts, view: newView(people, &guardedWriter{people, cancel})}
	// Paths are absolute: the provisioner has another working directory.
	if opts.LogFile != "" {
		if d.opts.LogFile, err = filepath.Abs(opts.LogFile); err != nil {
			return fmt.Errorf("log: %w", err)
		}
	}

	// A short name: helpers put Unix sockets in here, whose paths are limited.
	if d.dir, err = os.MkdirTemp("", "choria-demo-"); err != nil {
		return fmt.Errorf("temporary directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(d.dir)) }()
	if d.dir, err = filepath.Abs(d.dir); err != nil {
		return fmt.Errorf("temporary directory: %w", err)
	}

	summary, err := d.run(ctx)
	if summary != nil && opts.JSON {
		err = errors.Join(err, summary.writeJSON(opts.Stdout))
	}

	return err
}

// demo is one run.
type demo struct {
	opts Options
	view *view
	dir  string

	broker *simfleet.Broker
	fleet  *simfleet.Fleet
	// faulty are the nodes with faults, and who goes with them.
	faulty *simfleet.Fleet
	child  *provisioner
}

// run starts everything, waits, and stops it again. The summary is there once
// the provisioner was started, whatever came of it.
func (d *demo) run(ctx context.Context) (summary *Summary, err error) {
	began := time.Now()
	d.view.say("Choria Provisioner %s provisions a simulated fleet; Ctrl-C ends it and leaves nothing behind.", d.opts.Version)
	d.view.say("")

	if d.broker, err = simfleet.StartBroker(ctx, simfleet.BrokerOptions{Dir: d.dir, Token: "demo"}); err != nil {
		return nil, interruption(ctx, fmt.Errorf("broker: %w", err))
	}
	defer func() { err = errors.Join(err, d.broker.Close()) }()
	d.view.step("broker", "%s with TLS, an Organization Issuer, a provisioning account and Choria Streams", d.broker.Addr())

	if d.fleet, err = simfleet.StartFleet(ctx, simfleet.FleetOptions{Broker: d.broker, Count: d.opts.Nodes}); err != nil {
		return nil, interruption(ctx, fmt.Errorf("fleet: %w", err))
	}
	defer d.fleet.Close()
	if d.faulty, err = simfleet.StartFleet(ctx, simfleet.FleetOptions{Broker: d.broker, Connections: 1}); err != nil {
		return nil, interruption(ctx, fmt.Errorf("fleet of nodes with faults: %w", err))
	}
	defer d.faulty.Close()
	d.view.step("fleet", "%d simulated nodes wait to be provisioned (ready in %s)", d.opts.Nodes, seconds(time.Since(began)))

	if d.child, err = startProvisioner(d.dir, d.broker, d.opts); err != nil {
		return nil, fmt.Errorf("provisioner: %w", err)
	}
	defer d.child.stop()
	d.view.step("provisioner", "pid %d, %d workers, features %s, metrics on %s", d.child.pid, d.child.workers, strings.Join(d.opts.features(), " and "), d.child.metricsURL)

	took, faults, err := d.watch(ctx)
	summary = d.summarise(took)
	summary.Faults = faults
	d.view.end()
	if err == nil {
		d.view.table(d.report(summary))
	}

	return summary, err
}

// watch shows how the fleet is provisioned, to its end. took is how long that
// was, from the start of the provisioner; faults are judged then.
func (d *demo) watch(ctx context.Context) (took time.Duration, faults []*FaultOutcome, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, d.opts.timeout(), errTimeout)
	defer cancel()

	all := make(chan func() (time.Duration, []*FaultOutcome, error), 1)
	go func() {
		faults, err := d.misbehave(ctx)
		if err == nil {
			err = d.fleet.WaitProvisioned(ctx, d.opts.Nodes)
		}
		took := time.Since(d.child.started)
		if ctx.Err() == nil {
			all <- func() (time.Duration, []*FaultOutcome, error) { return took, faults, err }
		}
	}()

	draw := time.NewTicker(drawInterval)
	defer draw.Stop()
	scrape := time.NewTicker(scrapeInterval)
	defer scrape.Stop()

	helperSaid := false
	look := func() {
		d.child.scrape(ctx)
		if !helperSaid && d.child.sample.helperRuns {
			helperSaid = true
			d.view.step("helper", "%s, a plugin process of the provisioner, answers over gRPC", helperName)
			d.view.say("")
		}
	}
	for {
		select {
		case done := <-all:
			if took, faults, err = done(); err != nil {
				return took, nil, err
			}
			d.settle(ctx, look)
			d.draw(took)
			d.judge(ctx, faults)

			return took, faults, nil
		case <-d.child.ended:
			return time.Since(d.child.started), nil, d.failure("the provisioner (pid %d) ended by itself: %v", d.child.pid, d.child.err)
		case <-ctx.Done():
			return time.Since(d.child.started), nil, d.ended(ctx)
		case <-scrape.C:
			look()
		case <-draw.C:
			if !helperSaid {
				look()
			} else {
				d.draw(time.Since(d.child.started))
			}
		}
	}
}

// settle looks until the provisioner has counted all nodes: the last one left
// before its answer was there. look reads the metrics.
func (d *demo) settle(ctx context.Context, look func()) {
	ctx, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()

	tick := time.NewTicker(drawInterval)
	defer tick.Stop()
	for look(); d.child.sample.provisioned < d.opts.Nodes; look() {
		select {
		case <-tick.C:
		case <-d.child.ended:
			return
		case <-ctx.Done():
			return
		}
	}
	// A sample is not of one moment: its other numbers may be older.
	look()
}

// draw shows the moment that lies elapsed after the provisioner's start.
func (d *demo) draw(elapsed time.Duration) {
	counts := d.fleet.Counts()
	d.view.progress(progress{
		total:       d.opts.Nodes,
		provisioned: counts.Restarted,
		waiting:     counts.Waiting,
		errors:      d.child.sample.failedPasses,
		elapsed:     elapsed,
	})
}

var (
	errTimeout     = errors.New("time is over")
	errInterrupted = errors.New("interrupted")
)

// interruption is err, unless that only comes of the end of ctx.
func interruption(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errInterrupted
	}

	return err
}

// ended says why ctx ended before the work did.
func (d *demo) ended(ctx context.Context) error {
	counts := d.fleet.Counts()
	if !errors.Is(context.Cause(ctx), errTimeout) {
		return fmt.Errorf("%w: %d of %d nodes were provisioned", errInterrupted, counts.Restarted, d.opts.Nodes)
	}

	var example string
	for _, n := range d.fleet.Nodes() {
		if n.State() != simfleet.Restarted {
			example = n.Identity()
			break
		}
	}

	return d.failure("%d of %d nodes, such as %s, were not provisioned within %v (--timeout)",
		d.opts.Nodes-counts.Restarted, d.opts.Nodes, example, d.opts.timeout())
}

// failure is an error with the end of the provisioner's log.
func (d *demo) failure(format string, args ...any) error {
	return fmt.Errorf("%s\nThe log of the provisioner ends with:\n  %s",
		fmt.Sprintf(format, args...), strings.Join(d.child.lastLines(), "\n  "))
}

// guardedWriter cancels when it cannot write: whoever read has gone, and it is
// time to clean up.
type guardedWriter struct {
	to     io.Writer
	cancel context.CancelCauseFunc
}

func (w *guardedWriter) Write(p []byte) (int, error) {
	n, err := w.to.Write(p)
	if err != nil {
		w.cancel(fmt.Errorf("output: %w", err))
	}

	return n, err
}
