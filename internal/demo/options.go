package demo

import (
	"errors"
	"fmt"
	"io"
	"time"
)

const (
	// MaxNodes is what the provisioner queues from one discovery.
	MaxNodes = 20_000

	// MaxWorkers is more than one machine makes use of.
	MaxWorkers = 1_000

	maxPort = 65_535
)

// Options say what to show.
type Options struct {
	// Nodes is how many nodes wait, 1 to MaxNodes.
	Nodes int

	// Workers is how many nodes the provisioner works on at once, at most
	// MaxWorkers; 0 is the provisioner's own default.
	Workers int

	// Timeout is how long all nodes together may take; 0 is a generous time for
	// their number.
	Timeout time.Duration

	// MonitorPort is where, on the loopback address, the provisioner shows its
	// metrics; 0 is any free port.
	MonitorPort int

	// Faults are the names of simfleet.Faults; one more node has each.
	Faults []string

	// LogFile keeps the log of the provisioner; when empty it goes with the
	// demo.
	LogFile string

	// JSON ends the demo with a Summary, one line, on Stdout; what people read
	// then goes to Stderr.
	JSON bool

	// Version is that of this program.
	Version string

	Stdout, Stderr io.Writer
}

// Check finds the options that make no sense.
func (o *Options) Check() error {
	var errs []error
	if o.Nodes < 1 || o.Nodes > MaxNodes {
		errs = append(errs, fmt.Errorf("--nodes is %d and must be 1 to %d", o.Nodes, MaxNodes))
	}
	if o.Workers < 0 || o.Workers > MaxWorkers {
		errs = append(errs, fmt.Errorf("--workers is %d and must be 1 to %d", o.Workers, MaxWorkers))
	}
	if o.Timeout < 0 {
		errs = append(errs, fmt.Errorf("--timeout is %v and must not be negative", o.Timeout))
	}
	if o.MonitorPort < 0 || o.MonitorPort > maxPort {
		errs = append(errs, fmt.Errorf("--monitor-port is %d and must be 1 to %d", o.MonitorPort, maxPort))
	}

	errs = append(errs, o.checkFaults())

	return errors.Join(errs...)
}

// timeout is for a slow machine that has other things to do.
func (o *Options) timeout() time.Duration {
	if o.Timeout > 0 {
		return o.Timeout
	}

	return time.Minute + time.Duration(o.Nodes)*100*time.Millisecond
}
