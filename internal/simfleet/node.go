package simfleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/choria-io/go-choria/lifecycle"
	"github.com/choria-io/go-choria/providers/agent/mcorpc"
	"github.com/choria-io/go-choria/providers/data/ddl"
	"github.com/nats-io/nats.go"
)

// State is how far a node has come.
type State int

const (
	// Waiting is a node without a configuration.
	Waiting State = iota
	// Configured is a node that accepted one and has not been restarted.
	Configured
	// Restarted is a node that left for the fleet.
	Restarted
	// Shutdown is a node that was told to shut down.
	Shutdown
)

func (s State) String() string {
	return [...]string{"waiting", "configured", "restarted", "shutdown"}[s]
}

// DefaultVersion is the version of Choria a node has unless told otherwise.
const DefaultVersion = "0.30.2"

// The components of nodes' lifecycle events: in provisioning mode, and in the
// fleet.
const (
	waitingComponent = "provision_mode_server"
	fleetComponent   = "server"
)

// lockWindow is how long the real agent belongs to who called it last.
const lockWindow = 2 * time.Minute

// NodeOptions say what a node is like. The zero value is an upgradable node of
// DefaultVersion that demands the broker's provisioning token.
type NodeOptions struct {
	// Identity is the node's name. StartFleet names nodes of which there are
	// several itself.
	Identity string

	// Version is what the inventory and the startup event show.
	Version string

	// Facts are what the inventory shows. Defaults to none.
	Facts map[string]any

	// Classes are what the inventory shows and a filter can ask for.
	Classes []string

	// NotUpgradable makes a node refuse release_update, and say so in its
	// inventory.
	NotUpgradable bool

	// Token is the provisioning token the node demands. Defaults to the
	// broker's.
	Token string

	// JWT is what choria_provision#jwt answers. Defaults to the broker's
	// provisioning.jwt.
	JWT string

	// Directory is where the node says that its configuration is. Defaults to
	// /etc/choria.
	Directory string

	// Splay is how long a node takes to leave after it answered restart or
	// shutdown. Real nodes take 2 seconds and more. Meanwhile it answers
	// discovery, but no action of choria_provision: that waits for the agent.
	Splay time.Duration

	// UpdateSplay is how long a node takes, after it answered release_update,
	// to come back with its new version. Defaults to 2 seconds, as real nodes.
	UpdateSplay time.Duration

	// Update decides what becomes of a release_update to version, once its token
	// is right. Defaults to success. It is called while the node's agent is busy.
	Update func(n *Node, version string) Update

	// NoUpgradedEvents is a node that publishes none after an update, as servers
	// did at first.
	NoUpgradedEvents bool

	// Joins makes a node that was restarted with a configuration say so in the
	// main account, see Node.Appear.
	Joins bool

	// Crashes says how long after it was restarted with a configuration a node of
	// that version has crashed, lost its configuration, and waits in provisioning
	// mode again. 0 is never. May be nil.
	Crashes func(version string) time.Duration

	// LegacyEvents makes a node publish its lifecycle events in Choria's own
	// format instead of CloudEvents.
	LegacyEvents bool

	// Quiet nodes publish no lifecycle events, Hidden ones answer no discovery.
	Quiet, Hidden bool

	// PongAs is who answers to discovery say they are from. Defaults to the
	// identity.
	PongAs string

	// Intercept sees every call before the node acts on it, and may change
	// what comes of it. It is called from many goroutines.
	Intercept func(n *Node, c Call) Override
}

// Call is one RPC request that reached a node.
type Call struct {
	// Action is agent#action.
	Action string
	// Attempt counts the calls of this action to this node, from 1.
	Attempt int
	// At is when it came in.
	At time.Time
	// Data is the action's input as it was sent.
	Data json.RawMessage

	RequestID, Sender, Caller string
}

// Override changes what comes of a call. The zero value changes nothing.
type Override struct {
	// Ignore neither acts nor answers.
	Ignore bool

	// Locked answers that another provisioner holds the node, and does not act.
	Locked bool

	// Delay comes before the node acts. As for a real action that takes this
	// long, other actions of choria_provision wait meanwhile, and the answer is
	// lost once the agent's timeout has passed.
	Delay time.Duration

	// Status and Message answer with that instead of acting, unless Status is
	// OK.
	Status  mcorpc.StatusCode
	Message string

	// Data is answered in place of what the action itself would have said.
	Data any

	// Lose acts, but the answer is lost.
	Lose bool

	// Body is answered in place of an encoded reply, Raw in place of a whole
	// message of Choria's protocol.
	Body, Raw []byte

	// Sender is who the answer says it is from, in place of the identity.
	Sender string

	// Extra is how many more times than once the answer is sent.
	Extra int

	// Die ends the node without a farewell once it has acted and answered.
	// Node.Return brings it back.
	Die bool
}

// Node is one simulated node.
type Node struct {
	fleet *Fleet
	conn  *nodeConn
	opts  NodeOptions
	facts json.RawMessage

	// subscription belongs to conn
	subscription *nats.Subscription

	// agent serialises the actions of choria_provision, as the real agent does
	agent sync.Mutex

	mu    sync.Mutex
	state State
	gone  bool
	// process counts the times it started
	process int
	version string
	// onDisk is the version it has after its next start, unless it is
	// unstartable
	onDisk      string
	unstartable bool
	calls       []Call
	configured  *Configuration
	lockedBy    string
	lockedUntil time.Time
	ecdh        []byte
	publicKey   string
}

func newNode(f *Fleet, conn *nodeConn, o NodeOptions) (*Node, error) {
	if o.Identity == "" {
		return nil, errors.New("a node needs an identity")
	}
	if o.Version == "" {
		o.Version = DefaultVersion
	}
	if o.Token == "" {
		o.Token = f.broker.Token()
	}
	if o.JWT == "" {
		o.JWT = f.broker.provisioningRaw
	}
	if o.Directory == "" {
		o.Directory = "/etc/choria"
	}
	if o.UpdateSplay == 0 {
		o.UpdateSplay = 2 * time.Second
	}
	if o.PongAs == "" {
		o.PongAs = o.Identity
	}
	if o.Facts == nil {
		o.Facts = map[string]any{}
	}

	facts, err := json.Marshal(o.Facts)
	if err != nil {
		return nil, fmt.Errorf("node %s: facts: %w", o.Identity, err)
	}

	return &Node{fleet: f, conn: conn, opts: o, facts: facts, version: o.Version, onDisk: o.Version}, nil
}

// Identity is the node's name.
func (n *Node) Identity() string {
	return n.opts.Identity
}

// State is how far the node has come.
func (n *Node) State() State {
	n.mu.Lock()
	defer n.mu.Unlock()

	return n.state
}

// Version is what the node runs now.
func (n *Node) Version() string {
	n.mu.Lock()
	defer n.mu.Unlock()

	return n.version
}

// Calls are the RPC requests that reached the node, in order, whatever came of
// them.
func (n *Node) Calls() []Call {
	n.mu.Lock()
	defer n.mu.Unlock()

	return append([]Call(nil), n.calls...)
}

// PublicKey is the hex encoded key of the last choria_provision#gen25519, empty
// before that.
func (n *Node) PublicKey() string {
	n.mu.Lock()
	defer n.mu.Unlock()

	return n.publicKey
}

// Configured is what the node was last configured with, nil before that. It is
// not to be changed.
func (n *Node) Configured() *Configuration {
	n.mu.Lock()
	defer n.mu.Unlock()

	return n.configured
}

// Return makes a node that left wait in provisioning mode again, as a new
// process with version (what lies on its disk when empty) and without a
// configuration.
func (n *Node) Return(ctx context.Context, version string) error {
	n.agent.Lock()
	defer n.agent.Unlock()

	n.mu.Lock()
	if !n.gone {
		n.mu.Unlock()

		return fmt.Errorf("node %s has not left", n.Identity())
	}
	n.configured = nil
	n.mu.Unlock()

	if err := n.rejoin(version); err != nil {
		return err
	}

	return n.fleet.announce(ctx, n)
}

// rejoin makes the node listen as a new process, with version or what lies on
// its disk.
func (n *Node) rejoin(version string) error {
	n.mu.Lock()
	if version != "" {
		n.onDisk, n.unstartable = version, false
	}
	n.version = n.onDisk
	n.process++
	from := n.state
	n.state, n.gone = Waiting, false
	n.lockedBy, n.lockedUntil, n.ecdh = "", time.Time{}, nil
	n.mu.Unlock()

	if err := n.conn.listen(n); err != nil {
		return fmt.Errorf("node %s: %w", n.Identity(), err)
	}
	n.fleet.moved(from, Waiting)

	return nil
}

// depart makes the node leave after splay, holding its agent until then.
func (n *Node) depart(to State, splay time.Duration) {
	n.agent.Lock()
	defer n.agent.Unlock()

	if n.leave(to, splay) && to == Restarted {
		n.fleet.background(n.enterFleet)
	}
}

// leave is depart for who holds the agent. It returns false when the node had
// gone before, could not start anew, or the fleet is closed.
func (n *Node) leave(to State, splay time.Duration) bool {
	if n.Gone() {
		return false
	}

	n.event(lifecycle.Shutdown)
	if !n.sleep(splay) {
		return false
	}
	n.mu.Lock()
	stays := n.unstartable && to != Shutdown
	n.mu.Unlock()
	if stays {
		return false
	}
	n.vanish(to)

	return true
}

// vanish ends the node as it is.
func (n *Node) vanish(to State) {
	n.conn.leave(n)

	n.mu.Lock()
	from := n.state
	n.state, n.gone = to, true
	n.mu.Unlock()
	n.fleet.moved(from, to)
}

// Gone says whether the node has left or died.
func (n *Node) Gone() bool {
	n.mu.Lock()
	defer n.mu.Unlock()

	return n.gone
}

// warn says what went wrong with the simulation, unless it is at its end.
func (n *Node) warn(err error, what string) {
	if err != nil && n.fleet.ctx.Err() == nil {
		n.fleet.log.WithError(err).Warnf("Simulated node %s %s", n.Identity(), what)
	}
}

// sleep returns false when the fleet was closed meanwhile.
func (n *Node) sleep(d time.Duration) bool {
	if d <= 0 {
		return n.fleet.ctx.Err() == nil
	}

	timer := time.NewTimer(d)
	defer timer.Stop()

	select {
	case <-timer.C:
		return true
	case <-n.fleet.ctx.Done():
		return false
	}
}

func (n *Node) announce() { n.event(lifecycle.Startup) }

// event publishes a lifecycle event of a waiting node.
func (n *Node) event(kind lifecycle.Type, opts ...lifecycle.Option) {
	if n.opts.Quiet {
		return
	}

	event, err := n.newEvent(kind, waitingComponent, opts...)
	if err == nil {
		err = lifecycle.PublishEvent(event, rawPublisher{n.conn.nc})
	}
	n.warn(err, "cannot publish an event")
}

// newEvent is an event as a real server makes it: those that have a place for a
// version show what it runs.
func (n *Node) newEvent(kind lifecycle.Type, component string, opts ...lifecycle.Option) (lifecycle.Event, error) {
	opts = append([]lifecycle.Option{
		lifecycle.Identity(n.Identity()),
		lifecycle.Component(component),
		lifecycle.Version(n.Version()),
	}, opts...)
	event, err := lifecycle.New(kind, opts...)
	if err != nil {
		return nil, err
	}
	event.SetFormat(lifecycle.CloudEventV1Format)
	if n.opts.LegacyEvents {
		event.SetFormat(lifecycle.ChoriaFormat)
	}

	return event, nil
}

// rawPublisher gives a NATS connection the name that go-choria calls.
type rawPublisher struct {
	nc *nats.Conn
}

func (p rawPublisher) PublishRaw(target string, data []byte) error { return p.nc.Publish(target, data) }
func (p rawPublisher) PublishRawMsg(msg *nats.Msg) error           { return p.nc.PublishMsg(msg) }

func (p rawPublisher) RequestRawMsgWithContext(ctx context.Context, msg *nats.Msg) (*nats.Msg, error) {
	return p.nc.RequestMsgWithContext(ctx, msg)
}

// publish answers a request with body, as sender.
func (n *Node) publish(req *request, sender string, body []byte) {
	data, err := n.fleet.security.encode(req, sender, n.fleet.broker.URL(), body)
	if err == nil {
		err = n.conn.nc.Publish(req.replyTo, data)
	}
	n.warn(err, "cannot answer")
}

// matches says whether the request's filter finds this node.
func (n *Node) matches(req *request) bool {
	filter, filtered := req.Filter()

	return !filtered || filter.MatchServerRequest(req, filterSource{n}, n.fleet.log)
}

// filterSource is what go-choria's filters look at.
type filterSource struct {
	n *Node
}

func (s filterSource) Classes() []string                 { return s.n.opts.Classes }
func (s filterSource) Facts() json.RawMessage            { return s.n.facts }
func (s filterSource) Identity() string                  { return s.n.Identity() }
func (s filterSource) KnownAgents() []string             { return agents }
func (s filterSource) DataFuncMap() (ddl.FuncMap, error) { return ddl.FuncMap{}, nil }
