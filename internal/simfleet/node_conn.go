package simfleet

import (
	"crypto/tls"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	collective = "provisioning"

	// inboxSize is how many messages may wait on one connection. A broadcast
	// is one message, so this is for direct requests to many nodes at once.
	inboxSize = 65536
)

// nodeConn is a connection that many nodes share. Requests to one node come in
// on a subject of its own; a broadcast comes in once, is decoded once, and is
// handed to every node of the connection.
type nodeConn struct {
	fleet *Fleet
	nc    *nats.Conn
	inbox chan *nats.Msg
	done  chan struct{}

	mu    sync.RWMutex
	nodes map[*nats.Subscription]*Node
}

func (f *Fleet) connect(i int) (*nodeConn, error) {
	opts := []nats.Option{
		nats.Name(fmt.Sprintf("%snodes %d", connectionName, i)),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(100 * time.Millisecond),
		nats.ReconnectJitter(100*time.Millisecond, 100*time.Millisecond),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			f.log.WithError(err).Warn("Connection of simulated nodes")
		}),
	}
	if f.broker.Mode() == Issuer {
		// a waiting node knows no certificate authority yet
		opts = append(opts, nats.Token(f.broker.provisioningRaw), nats.Secure(&tls.Config{InsecureSkipVerify: true}))
	}

	nc, err := nats.Connect(f.broker.URL(), opts...)
	if err != nil {
		return nil, fmt.Errorf("connection %d of the nodes: %w", i, err)
	}

	c := &nodeConn{
		fleet: f,
		nc:    nc,
		inbox: make(chan *nats.Msg, inboxSize),
		done:  make(chan struct{}),
		nodes: map[*nats.Subscription]*Node{},
	}
	for _, agent := range agents {
		if _, err = nc.ChanSubscribe(collective+".broadcast.agent."+agent, c.inbox); err != nil {
			nc.Close()

			return nil, fmt.Errorf("connection %d of the nodes: %w", i, err)
		}
	}
	f.background(c.run)

	return c, nil
}

func (c *nodeConn) close() {
	c.nc.Close()
	close(c.done)
}

// listen subscribes a node to its own subject.
func (c *nodeConn) listen(n *Node) error {
	// a message may be in before the subscription is known
	c.mu.Lock()
	defer c.mu.Unlock()

	sub, err := c.nc.ChanSubscribe(collective+".node."+n.Identity(), c.inbox)
	if err != nil {
		return err
	}
	n.subscription = sub
	c.nodes[sub] = n

	return nil
}

// leave ends what listen began.
func (c *nodeConn) leave(n *Node) {
	c.mu.Lock()
	defer c.mu.Unlock()

	sub := n.subscription
	if sub == nil {
		return
	}
	n.subscription = nil
	delete(c.nodes, sub)

	// fails only when the connection is closed
	_ = sub.Unsubscribe()
}

func (c *nodeConn) run() {
	for {
		select {
		case msg := <-c.inbox:
			c.fleet.background(func() { c.receive(msg) })
		case <-c.done:
			return
		}
	}
}

// receive hands a message to those it is for.
func (c *nodeConn) receive(msg *nats.Msg) {
	var nodes []*Node
	c.mu.RLock()
	if strings.HasPrefix(msg.Subject, collective+".node.") {
		if n := c.nodes[msg.Sub]; n != nil {
			nodes = []*Node{n}
		}
	} else {
		nodes = make([]*Node, 0, len(c.nodes))
		for _, n := range c.nodes {
			nodes = append(nodes, n)
		}
	}
	c.mu.RUnlock()
	if len(nodes) == 0 {
		return
	}

	req, err := c.fleet.security.decode(msg.Data)
	if err != nil {
		c.fleet.log.WithError(err).Warn("Simulated nodes cannot read a request")

		return
	}

	if req.Agent() == "discovery" {
		c.pong(req, nodes)

		return
	}

	for _, n := range nodes {
		if !n.matches(req) {
			continue
		}
		if len(nodes) == 1 {
			n.serve(req)
		} else {
			c.fleet.background(func() { n.serve(req) })
		}
	}
}

// pong answers a discovery ping for every node that the filter finds.
func (c *nodeConn) pong(req *request, nodes []*Node) {
	if !strings.Contains(string(req.payload), "ping") {
		return
	}

	answered := 0
	for _, n := range nodes {
		if !n.opts.Hidden && n.matches(req) {
			n.publish(req, n.opts.PongAs, []byte("pong"))
			answered++
		}
	}
	c.fleet.count(func(counts *Counts) { counts.Pings += answered })
}
