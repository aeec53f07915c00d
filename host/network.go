package host

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/choria-io/go-choria/backoff"
	"github.com/choria-io/go-choria/inter"
	"github.com/choria-io/go-choria/protocol"
	"github.com/choria-io/go-choria/srvcache"
	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"
	"golang.org/x/time/rate"
)

const (
	// dialLimit ends one try to connect, so that the token and seed files are
	// read anew for the next one.
	dialLimit = 30 * time.Second
	// credentialsInterval is how often the token and seed files are looked at.
	credentialsInterval = 10 * time.Second
	// drainLimit is how long calls in flight may go on over a connection that
	// was replaced because its credentials changed. A call lasts 22 s at most.
	drainLimit = 30 * time.Second
	// foreignRate is how many lines a second go-choria may log about what others
	// send, after foreignBurst of them.
	foreignRate  = 1
	foreignBurst = 100
)

// Network keeps one connection to the broker and replaces it when it drops or
// when the token or seed file changed. It is the only place that connects:
// whoever asks the framework of Network.Framework for a connector gets a
// handle on that one connection.
//
// A connection that dropped is closed at once rather than left to reconnect, so
// that no request waits in a buffer and reaches a node long after its caller
// has given up.
type Network struct {
	fw inter.Framework
	// shared is fw with connectors that are handles on the one connection.
	shared *sharedFramework
	name   string
	log    *logrus.Entry
	// extra is told of replies beyond the first one to a call.
	extra func(identity, action string)

	mu      sync.Mutex
	session *Session
	// changed is closed when session changes.
	changed chan struct{}
}

// Session is one connection to the broker, from connect to drop.
type Session struct {
	// Connector is the connection. Its Close does nothing.
	Connector inter.Connector

	ctx     context.Context
	end     context.CancelCauseFunc
	nc      *nats.Conn
	replies *replyRouter
	files   [sha256.Size]byte
}

// Context ends when the connection drops or is replaced; its cause is then
// ErrDisconnected.
func (s *Session) Context() context.Context { return s.ctx }

// NewNetwork returns a network that is not connected yet; name shows up in the
// broker's list of connections. extra is called for each reply beyond the first
// one to a call, also when it arrives after the call has ended; it may be nil.
func NewNetwork(fw inter.Framework, name string, extra func(identity, action string), log *logrus.Entry) *Network {
	if extra == nil {
		extra = func(string, string) {}
	}

	n := &Network{fw: fw, name: name, log: log, extra: extra, changed: make(chan struct{})}
	n.shared = &sharedFramework{Framework: fw, network: n, quiet: withoutDebug(log.Logger)}

	return n
}

// Framework is the go-choria framework whose NewConnector returns handles on the
// one connection. They fail with ErrDisconnected while there is none.
func (n *Network) Framework() inter.Framework { return n.shared }

// Connected tells whether there is a connection now.
func (n *Network) Connected() bool { return n.current() != nil }

func (n *Network) current() *Session {
	n.mu.Lock()
	defer n.mu.Unlock()

	return n.session
}

// Session waits for a connection. The error is that of ctx.
func (n *Network) Session(ctx context.Context) (*Session, error) {
	for {
		n.mu.Lock()
		s, changed := n.session, n.changed
		n.mu.Unlock()
		if s != nil {
			return s, nil
		}

		select {
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// Run connects and stays connected until ctx ends, then closes the connection.
func (n *Network) Run(ctx context.Context) {
	for try := 1; ctx.Err() == nil; try++ {
		s, err := n.dial(ctx)
		if err != nil {
			if ctx.Err() == nil {
				n.log.Errorf("Could not connect to the broker on try %d: %v", try, err)
				_ = backoff.FiveSec.TrySleep(ctx, try)
			}
			continue
		}
		try = 0
		n.swap(s)
		n.watch(ctx, s)
	}
	n.swap(nil)
}

// watch returns when s is no longer the connection to use.
func (n *Network) watch(ctx context.Context, s *Session) {
	status := s.drops()
	ticker := time.NewTicker(credentialsInterval)
	defer ticker.Stop()

	for {
		select {
		case <-ctx.Done():
			s.close()
			return
		case <-status:
			n.log.Warnf("The connection to the broker dropped; calls in flight are cancelled")
			n.swap(nil)
			s.close()
			return
		case <-ticker.C:
			files := n.credentials()
			if files == s.files {
				continue
			}
			n.log.Warnf("The token or seed file changed; connecting anew")
			next, err := n.dial(ctx)
			if err != nil {
				s.files = files // the old connection is good until it drops
				n.log.Errorf("Could not connect with the changed token or seed file, staying on the old connection: %v", err)
				continue
			}
			n.swap(next)
			time.AfterFunc(drainLimit, s.close)
			context.AfterFunc(ctx, s.close)
			s, status = next, next.drops()
		}
	}
}

// swap makes s the connection to use; nil is none.
func (n *Network) swap(s *Session) {
	n.mu.Lock()
	defer n.mu.Unlock()

	n.session = s
	close(n.changed)
	n.changed = make(chan struct{})
}

// dial connects once. go-choria's NewConnector reads the credentials when it is
// called and then tries for ever with those, hence the limit.
func (n *Network) dial(ctx context.Context) (*Session, error) {
	// The connector keeps this context to sign requests: it must outlive dial.
	cctx, cancel := context.WithCancel(ctx)
	limit := time.AfterFunc(dialLimit, cancel)
	files := n.credentials()
	conn, err := n.fw.NewConnector(cctx, n.fw.MiddlewareServers, n.name, n.log)
	if !limit.Stop() || err != nil {
		cancel()
		if err == nil {
			conn.Nats().Close()
		}
		if ctx.Err() == nil {
			// go-choria keeps the reason to itself, but for a warning.
			err = fmt.Errorf("no connection within %v, the warnings before this say why", dialLimit)
		}
		return nil, err
	}

	sctx, end := context.WithCancelCause(ctx)
	s := &Session{ctx: sctx, end: end, nc: conn.Nats(), replies: newReplyRouter(conn.Nats(), n.extra, n.log), files: files}
	s.Connector = &sharedConnector{Connector: conn, session: s}
	context.AfterFunc(sctx, cancel)

	return s, nil
}

// drops tells when the connection drops, also when it did already.
func (s *Session) drops() <-chan nats.Status {
	status := s.nc.StatusChanged(nats.DISCONNECTED, nats.RECONNECTING, nats.CLOSED)
	if s.nc.IsConnected() {
		return status
	}
	dropped := make(chan nats.Status, 1)
	dropped <- s.nc.Status()

	return dropped
}

// close ends the calls in flight and drops whatever is still unsent.
func (s *Session) close() {
	s.end(ErrDisconnected)
	s.nc.Close()
}

// credentials is a digest of the token and seed files; those that are not used
// or cannot be read count as empty.
func (n *Network) credentials() [sha256.Size]byte {
	h := sha256.New()
	for _, path := range []func() (string, error){n.fw.SignerTokenFile, n.fw.SignerSeedFile} {
		file, err := path()
		if err != nil || file == "" {
			continue
		}
		data, _ := os.ReadFile(file)
		fmt.Fprintf(h, "%d:", len(data))
		h.Write(data)
	}

	var sum [sha256.Size]byte
	h.Sum(sum[:0])
	return sum
}

// sharedFramework is a framework whose connectors are handles on the network's
// connection. go-choria's clients open two connectors for every call.
type sharedFramework struct {
	inter.Framework
	network *Network
	quiet   *logrus.Logger
}

// Logger gives loggers that say nothing at level debug: at that level the
// generated clients log the arguments of every request, with the provision
// token and private keys.
func (f *sharedFramework) Logger(component string) *logrus.Entry {
	return f.quiet.WithField("component", component)
}

func withoutDebug(l *logrus.Logger) *logrus.Logger {
	return &logrus.Logger{
		Out:          l.Out,
		Hooks:        l.Hooks,
		Formatter:    shortFormatter{l.Formatter, rate.NewLimiter(foreignRate, foreignBurst)},
		ReportCaller: l.ReportCaller,
		Level:        min(l.GetLevel(), logrus.InfoLevel),
		ExitFunc:     l.ExitFunc,
	}
}

// NewConnector returns a handle on the one connection, or ErrDisconnected.
func (f *sharedFramework) NewConnector(ctx context.Context, _ func() (srvcache.Servers, error), _ string, _ *logrus.Entry) (inter.Connector, error) {
	s := f.network.current()
	if s == nil {
		return nil, ErrDisconnected
	}

	return &sharedConnector{Connector: s.Connector.(*sharedConnector).Connector, session: s, exchange: exchangeFrom(ctx)}, nil
}

// NewTransportFromJSON reads a message. go-choria (v0.30.2) panics on nulls in
// one, in goroutines of its own, where that ends the daemon: what it asks of the
// message later is tried here.
func (f *sharedFramework) NewTransportFromJSON(data []byte) (message protocol.TransportMessage, err error) {
	defer panicked(&err)

	if message, err = f.Framework.NewTransportFromJSON(data); err == nil {
		message.SenderID()
	}

	return message, err
}

// NewReplyFromTransportJSON reads a reply, as NewTransportFromJSON does.
func (f *sharedFramework) NewReplyFromTransportJSON(data []byte, skipvalidate bool) (reply protocol.Reply, err error) {
	defer panicked(&err)

	return f.Framework.NewReplyFromTransportJSON(data, skipvalidate)
}

// panicked makes a panic over what was sent an error.
func panicked(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("malformed message: %v", p)
	}
}

// shortFormatter cuts messages and passes over those beyond the limit: go-choria
// puts what nodes send into them, one for each message that it cannot read.
type shortFormatter struct {
	logrus.Formatter
	limit *rate.Limiter
}

func (f shortFormatter) Format(e *logrus.Entry) ([]byte, error) {
	if !f.limit.Allow() {
		return nil, nil
	}
	e.Message = shown(e.Message)

	return f.Formatter.Format(e)
}

// sharedConnector is a handle on a session's connection.
type sharedConnector struct {
	inter.Connector
	session  *Session
	exchange *exchange
}

// Close does nothing: the connection belongs to the network.
func (c *sharedConnector) Close() {}

// QueueSubscribe routes what arrives on subject to output until ctx ends. Only
// subjects for replies are taken.
func (c *sharedConnector) QueueSubscribe(ctx context.Context, _ string, subject string, group string, output chan inter.ConnectorMessage) error {
	return c.session.replies.add(ctx, subject, group, output, c.exchange)
}

// Unsubscribe does nothing: a subscription ends with its context.
func (c *sharedConnector) Unsubscribe(string) error { return nil }

// Publish sends msg, or fails with ErrDisconnected rather than let it wait.
func (c *sharedConnector) Publish(msg inter.Message) error {
	if c.session.ctx.Err() != nil || !c.session.nc.IsConnected() {
		return ErrDisconnected
	}

	return c.Connector.Publish(msg)
}
