package simfleet

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"errors"
	"fmt"
	"maps"
	"sync"

	"github.com/sirupsen/logrus"
)

// DefaultConnections is how many connections the nodes of a fleet share.
const DefaultConnections = 4

// FleetOptions say which nodes to simulate.
type FleetOptions struct {
	// Broker is the network the nodes wait on.
	Broker *Broker

	// Count is how many nodes there are at first. May be 0, see Fleet.Add.
	Count int

	// Connections is how many connections the nodes share. Defaults to
	// DefaultConnections.
	Connections int

	// Node holds what all nodes have in common.
	Node NodeOptions

	// Each may change the options of node i, counted from 0, before it starts.
	// Its identity is already set. May be nil.
	Each func(i int, o *NodeOptions)

	// Log gets what goes wrong in nodes. Defaults to nothing.
	Log *logrus.Entry
}

// Counts are the numbers of a fleet at one moment.
type Counts struct {
	// Nodes is how many there ever were, the next four in what state they are.
	Nodes, Waiting, Configured, Restarted, Shutdown int

	// Pings is how many discovery pings were answered.
	Pings int

	// Calls counts the calls that reached a node by action (agent#action), and
	// Errors those that it answered with a status other than OK.
	Calls, Errors map[string]int
}

// Fleet is a number of simulated nodes.
type Fleet struct {
	broker   *Broker
	security *nodeSecurity
	log      *logrus.Entry

	// rsaKey is what all nodes make their CSR with: generating one takes a good
	// part of a second.
	rsaKey func() (*rsa.PrivateKey, error)

	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
	conns   []*nodeConn

	mu      sync.Mutex
	closed  bool
	common  NodeOptions
	nodes   []*Node
	counts  Counts
	changed chan struct{}
}

// StartFleet starts nodes and returns once all of them listen and have said so
// with a startup event. ctx bounds the start alone; the nodes run until Close.
func StartFleet(ctx context.Context, opts FleetOptions) (*Fleet, error) {
	if opts.Broker == nil {
		return nil, errors.New("a fleet needs a broker")
	}
	if opts.Connections == 0 {
		opts.Connections = DefaultConnections
	}

	f := &Fleet{
		broker:   opts.Broker,
		security: newNodeSecurity(opts.Broker.Mode()),
		log:      entryOrSilence(opts.Log),
		rsaKey:   sync.OnceValues(func() (*rsa.PrivateKey, error) { return rsa.GenerateKey(rand.Reader, 2048) }),
		common:   opts.Node,
		counts:   Counts{Calls: map[string]int{}, Errors: map[string]int{}},
		changed:  make(chan struct{}),
	}
	f.ctx, f.cancel = context.WithCancel(context.Background())

	err := f.start(ctx, opts)
	if err != nil {
		f.Close()

		return nil, err
	}

	return f, nil
}

func (f *Fleet) start(ctx context.Context, opts FleetOptions) error {
	for i := range opts.Connections {
		conn, err := f.connect(i)
		if err != nil {
			return err
		}
		f.conns = append(f.conns, conn)
	}

	nodes := make([]*Node, 0, opts.Count)
	for i := range opts.Count {
		o := opts.Node
		if o.Identity == "" || opts.Count > 1 {
			o.Identity = fmt.Sprintf("node-%05d.example.net", i)
		}
		if opts.Each != nil {
			opts.Each(i, &o)
		}

		n, err := f.join(o)
		if err != nil {
			return err
		}
		nodes = append(nodes, n)
	}

	return f.announce(ctx, nodes...)
}

// Add starts one more node. It takes after FleetOptions.Node; change may be nil
// and alters that. Two nodes of one identity are twins.
func (f *Fleet) Add(ctx context.Context, identity string, change func(*NodeOptions)) (*Node, error) {
	o := f.common
	o.Identity = identity
	if change != nil {
		change(&o)
	}

	n, err := f.join(o)
	if err != nil {
		return nil, err
	}

	return n, f.announce(ctx, n)
}

// join makes a node listen.
func (f *Fleet) join(o NodeOptions) (*Node, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, errClosed
	}

	n, err := newNode(f, f.conns[len(f.nodes)%len(f.conns)], o)
	if err != nil {
		return nil, err
	}
	if err = n.conn.listen(n); err != nil {
		return nil, fmt.Errorf("node %s: %w", n.Identity(), err)
	}

	f.nodes = append(f.nodes, n)
	f.counts.Nodes++
	f.counts.Waiting++

	return n, nil
}

// announce publishes the startup events of nodes once the broker knows that
// they listen.
func (f *Fleet) announce(ctx context.Context, nodes ...*Node) error {
	err := f.flush(ctx)
	if err != nil {
		return err
	}
	for _, n := range nodes {
		n.announce()
	}

	return f.flush(ctx)
}

func (f *Fleet) flush(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()

	for _, c := range f.conns {
		if err := c.nc.FlushWithContext(ctx); err != nil {
			return fmt.Errorf("flush: %w", err)
		}
	}

	return nil
}

var errClosed = errors.New("the fleet is closed")

// Close ends all nodes without a farewell and waits for what they do. It may be
// called more than once.
func (f *Fleet) Close() {
	f.mu.Lock()
	closed := f.closed
	f.closed = true
	f.mu.Unlock()

	if !closed {
		f.cancel()
		for _, c := range f.conns {
			c.close()
		}
	}
	f.running.Wait()
}

// Nodes are all nodes there ever were, in the order they were started.
func (f *Fleet) Nodes() []*Node {
	f.mu.Lock()
	defer f.mu.Unlock()

	return append([]*Node(nil), f.nodes...)
}

// Node is the first node of an identity, nil when there is none.
func (f *Fleet) Node(identity string) *Node {
	f.mu.Lock()
	defer f.mu.Unlock()

	for _, n := range f.nodes {
		if n.Identity() == identity {
			return n
		}
	}

	return nil
}

// Counts are the numbers of the fleet now.
func (f *Fleet) Counts() Counts {
	f.mu.Lock()
	defer f.mu.Unlock()

	c := f.counts
	c.Calls, c.Errors = maps.Clone(c.Calls), maps.Clone(c.Errors)

	return c
}

// WaitProvisioned returns once n nodes have been configured and restarted, or
// with an error that says how far it got when ctx ends.
func (f *Fleet) WaitProvisioned(ctx context.Context, n int) error {
	return f.Wait(ctx, func(c Counts) bool { return c.Restarted >= n })
}

// Wait returns once done is true of the fleet's counts. It is asked again
// whenever they change.
func (f *Fleet) Wait(ctx context.Context, done func(Counts) bool) error {
	for {
		f.mu.Lock()
		changed := f.changed
		f.mu.Unlock()

		c := f.Counts()
		if done(c) {
			return nil
		}

		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("of %d nodes %d wait, %d are configured, %d restarted, %d shut down; calls %v, errors %v: %w",
				c.Nodes, c.Waiting, c.Configured, c.Restarted, c.Shutdown, c.Calls, c.Errors, context.Cause(ctx))
		}
	}
}

// count changes the fleet's counts.
func (f *Fleet) count(change func(*Counts)) {
	f.mu.Lock()
	defer f.mu.Unlock()

	change(&f.counts)
	close(f.changed)
	f.changed = make(chan struct{})
}

// moved counts that a node went from one state to another.
func (f *Fleet) moved(from, to State) {
	f.count(func(c *Counts) {
		*c.of(from)--
		*c.of(to)++
	})
}

func (c *Counts) of(s State) *int {
	switch s {
	case Configured:
		return &c.Configured
	case Restarted:
		return &c.Restarted
	case Shutdown:
		return &c.Shutdown
	default:
		return &c.Waiting
	}
}

// background runs do, which Close waits for, unless the fleet is closed.
func (f *Fleet) background(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()

	if !f.closed {
		f.running.Go(do)
	}
}
