// Package suite is one set of tests over a simulated network in either mode,
// written against go-choria's own clients. It is run by the two packages
// beside it, since the modes cannot share a process.
package suite

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/choria-io/go-choria/choria"
	"github.com/choria-io/go-choria/config"
	"github.com/choria-io/go-choria/inter"
	election "github.com/choria-io/go-choria/providers/election/streams"
	"github.com/choria-io/go-choria/srvcache"
	"github.com/choria-io/tokens"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/sirupsen/logrus"

	"github.com/choria-provisioner/provisioner/internal/simfleet"
)

// Token is the provisioning token of the suite's networks.
const Token = "a provisioning token"

// Broker starts a network that ends with the test.
func Broker(t *testing.T, mode simfleet.Mode) *simfleet.Broker {
	t.Helper()

	b, err := simfleet.StartBroker(t.Context(), simfleet.BrokerOptions{
		Mode:        mode,
		Dir:         t.TempDir(),
		ElectionTTL: simfleet.MinElectionTTL,
		Token:       Token,
	})
	if err != nil {
		t.Fatalf("start broker: %v", err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Errorf("close broker: %v", err)
		}
	})

	return b
}

// Client is go-choria, but for a data race of its clients.
type Client struct {
	*choria.Framework
}

// NewConnector is go-choria's; what it returns can be closed at any time.
func (c *Client) NewConnector(ctx context.Context, servers func() (srvcache.Servers, error), name string, log *logrus.Entry) (inter.Connector, error) {
	conn, err := c.Framework.NewConnector(ctx, servers, name, log)
	if err != nil {
		return nil, err
	}

	return &connector{Connector: conn}, nil
}

// connector keeps go-choria from ending a subscription, when a context ends or
// on Close, that another goroutine is just making: discovery makes three, and
// waits for one.
type connector struct {
	inter.Connector

	mu sync.Mutex
}

func (c *connector) QueueSubscribe(ctx context.Context, name, subject, group string, output chan inter.ConnectorMessage) error {
	c.mu.Lock()
	defer c.mu.Unlock()

	// Close ends the subscription
	return c.Connector.QueueSubscribe(context.WithoutCancel(ctx), name, subject, group, output)
}

func (c *connector) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()

	c.Connector.Close()
}

// Framework is go-choria as a provisioner sets it up.
func Framework(t *testing.T, b *simfleet.Broker, identity, password string) *Client {
	t.Helper()

	path, err := b.ProvisionerConfig(identity)
	if err != nil {
		t.Fatalf("provisioner configuration: %v", err)
	}

	return framework(t, b, path, func(cfg *config.Config) {
		cfg.Collectives = []string{"provisioning"}
		cfg.MainCollective = "provisioning"
		cfg.Choria.NatsUser = "provisioner"
		cfg.Choria.NatsPass = password
	})
}

func framework(t *testing.T, b *simfleet.Broker, path string, change func(*config.Config)) *Client {
	t.Helper()

	cfg, err := config.NewSystemConfig(path, false)
	if err != nil {
		t.Fatalf("client configuration: %v", err)
	}
	cfg.CustomLogger = logger(t).Logger
	cfg.DisableTLS = b.Mode() == simfleet.Insecure
	change(cfg)

	fw, err := choria.NewWithConfig(cfg)
	if err != nil {
		t.Fatalf("client framework: %v", err)
	}

	return &Client{fw}
}

// logger writes what is wrong into the test's output.
func logger(t *testing.T) *logrus.Entry {
	log := logrus.New()
	log.SetOutput(t.Output())
	log.SetLevel(logrus.ErrorLevel)

	return logrus.NewEntry(log)
}

// Connect connects as a provisioner does.
func Connect(t *testing.T, fw *Client, name string) inter.Connector {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()

	conn, err := fw.NewConnector(ctx, fw.MiddlewareServers, name, fw.Logger("connector"))
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(conn.Close)

	return conn
}

// TestBroker tests the network without nodes.
func TestBroker(t *testing.T, mode simfleet.Mode) {
	t.Run("password", func(t *testing.T) { testPassword(t, mode) })
	t.Run("lease", func(t *testing.T) { testLease(t, mode) })
	t.Run("election", func(t *testing.T) { testElection(t, mode) })
	t.Run("restart", func(t *testing.T) { testRestart(t, mode) })
	t.Run("connections", func(t *testing.T) { testConnections(t, mode) })
	t.Run("port taken", func(t *testing.T) { testPortTaken(t, mode) })
	t.Run("short lease", func(t *testing.T) { testShortLease(t, mode) })
	if mode == simfleet.Issuer {
		// an insecure network has no provisioned nodes to manage
		t.Run("main account", testMainAccount)
		t.Run("trust chain", testTrustChain)
	} else {
		t.Run("plain and TLS", testPlainAndTLS)
	}
}

func testPassword(t *testing.T, mode simfleet.Mode) {
	b := Broker(t, mode)

	for _, c := range []struct {
		name     string
		password string
		ok       bool
	}{
		{"the provisioner's password", b.Password(), true},
		{"a wrong password", "wrong", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			// the connector tries until its context ends
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()

			fw := Framework(t, b, "prov.example.net", c.password)
			conn, err := fw.NewConnector(ctx, fw.MiddlewareServers, c.name, fw.Logger("connector"))
			if err == nil {
				defer conn.Close()
			}
			if (err == nil) != c.ok {
				t.Fatalf("connecting with %s: %v", c.name, err)
			}
		})
	}
}

// testLease covers the bucket itself: what a provisioner may do to its key.
func testLease(t *testing.T, mode simfleet.Mode) {
	b := Broker(t, mode)

	bucket := func(identity string) nats.KeyValue {
		conn := Connect(t, Framework(t, b, identity, b.Password()), identity)
		js, err := conn.Nats().JetStream(nats.APIPrefix("choria.streams"))
		if err != nil {
			t.Fatal(err)
		}
		kv, err := js.KeyValue(simfleet.ElectionBucket)
		if err != nil {
			t.Fatalf("bucket as %s: %v", identity, err)
		}

		return kv
	}
	one, two := bucket("one.example.net"), bucket("two.example.net")

	status, err := one.Status()
	if err != nil {
		t.Fatal(err)
	}
	if status.TTL() != simfleet.MinElectionTTL {
		t.Errorf("TTL of the bucket is %v, want %v", status.TTL(), simfleet.MinElectionTTL)
	}

	revision, err := one.Create("provisioner", []byte("one"))
	if err != nil {
		t.Fatalf("first to create: %v", err)
	}
	if _, err = two.Create("provisioner", []byte("two")); err == nil {
		t.Fatal("two members hold the lease")
	}
	if _, err = two.Update("provisioner", []byte("two"), revision+1); err == nil {
		t.Fatal("an update at the wrong revision was accepted")
	}
	if revision, err = one.Update("provisioner", []byte("one"), revision); err != nil {
		t.Fatalf("holder cannot extend: %v", err)
	}
	if err = one.Delete("provisioner", nats.LastRevision(revision)); err != nil {
		t.Fatalf("holder cannot give the lease back: %v", err)
	}
}

func testElection(t *testing.T, mode simfleet.Mode) {
	b := Broker(t, mode)

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	type change struct {
		member string
		won    bool
	}
	changes := make(chan change, 100)
	stop := map[string]context.CancelFunc{}
	done := make(chan error, 2)

	for _, member := range []string{"one.example.net", "two.example.net"} {
		fw := Framework(t, b, member, b.Password())
		el, err := fw.NewElection(ctx, Connect(t, fw, member), "provisioner", true,
			election.OnWon(func() { changes <- change{member, true} }),
			election.OnLost(func() { changes <- change{member, false} }))
		if err != nil {
			t.Fatalf("election of %s: %v", member, err)
		}

		ectx, ecancel := context.WithCancel(ctx)
		stop[member] = ecancel
		go func() { done <- el.Start(ectx) }()
	}

	next := func() change {
		t.Helper()
		select {
		case c := <-changes:
			return c
		case <-ctx.Done():
			t.Fatal("nobody won")
			return change{}
		}
	}

	first := next()
	if !first.won {
		t.Fatalf("first event is %+v", first)
	}

	// the other one takes over only once the first has gone
	stop[first.member]()
	second := next()
	if second == (change{first.member, false}) {
		second = next()
	}
	if !second.won || second.member == first.member {
		t.Fatalf("after %+v came %+v", first, second)
	}

	stop[second.member]()
	for range 2 {
		if err := <-done; err != nil {
			t.Errorf("election ended with %v", err)
		}
	}
}

func testRestart(t *testing.T, mode simfleet.Mode) {
	b := Broker(t, mode)
	addr := b.Addr()

	conn := Connect(t, Framework(t, b, "prov.example.net", b.Password()), "survivor")
	reconnected := make(chan struct{}, 1)
	conn.Nats().SetReconnectHandler(func(*nats.Conn) { reconnected <- struct{}{} })

	main, err := b.Connect()
	if err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(main)
	if err != nil {
		t.Fatal(err)
	}
	kv, err := js.KeyValue(t.Context(), simfleet.ElectionBucket)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = kv.PutString(t.Context(), "kept", "value"); err != nil {
		t.Fatal(err)
	}
	main.Close()

	b.Stop()
	if _, err = b.Connect(); err == nil {
		t.Fatal("a stopped broker takes connections")
	}
	if err = b.Restart(t.Context()); err != nil {
		t.Fatalf("restart: %v", err)
	}
	if b.Addr() != addr {
		t.Fatalf("restarted on %s, was on %s", b.Addr(), addr)
	}

	select {
	case <-reconnected:
	case <-time.After(30 * time.Second):
		t.Fatal("a client did not come back")
	}

	if main, err = b.Connect(); err != nil {
		t.Fatal(err)
	}
	defer main.Close()
	if js, err = jetstream.New(main); err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), "KV_"+simfleet.ElectionBucket)
	if err != nil {
		t.Fatalf("bucket after a restart: %v", err)
	}
	if ttl := stream.CachedInfo().Config.MaxAge; ttl != simfleet.MinElectionTTL {
		t.Errorf("TTL of the bucket is %v after a restart", ttl)
	}
}

func testConnections(t *testing.T, mode simfleet.Mode) {
	b := Broker(t, mode)
	fw := Framework(t, b, "prov.example.net", b.Password())

	stays, goes := Connect(t, fw, "stays"), Connect(t, fw, "goes")
	goes.Close()

	list := func() (names []string, open int) {
		t.Helper()
		conns, err := b.Connections(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range conns {
			names = append(names, c.Name)
			if c.Closed.IsZero() {
				open++
			}
			if c.Account != "provisioning" || c.User != "provisioner" {
				t.Errorf("connection %+v is not the provisioner's", c)
			}
			if c.TLS != (mode == simfleet.Issuer) {
				t.Errorf("connection %s: TLS is %v", c.Name, c.TLS)
			}
		}
		slices.Sort(names)

		return names, open
	}

	// closed ones count: what matters is how many were ever opened
	names, open := list()
	if got := strings.Join(names, " "); got != "goes stays" || open != 1 {
		t.Fatalf("connections are %q, %d open", got, open)
	}

	reconnected := make(chan struct{}, 1)
	stays.Nats().SetReconnectHandler(func(*nats.Conn) { reconnected <- struct{}{} })
	closed, err := b.Disconnect(t.Context(), "stays")
	if err != nil || closed != 1 {
		t.Fatalf("disconnected %d: %v", closed, err)
	}
	select {
	case <-reconnected:
	case <-time.After(30 * time.Second):
		t.Fatal("a disconnected client did not come back")
	}
	if names, _ = list(); len(names) != 3 {
		t.Fatalf("connections after a reconnect are %q", names)
	}
}

func testPortTaken(t *testing.T, mode simfleet.Mode) {
	b := Broker(t, mode)
	b.Stop()

	listener, err := net.Listen("tcp", b.Addr())
	if err != nil {
		t.Fatal(err)
	}
	if err = b.Restart(t.Context()); err == nil {
		t.Fatal("restarted on a port that is taken")
	}
	if err = listener.Close(); err != nil {
		t.Fatal(err)
	}
	if err = b.Restart(t.Context()); err != nil {
		t.Fatalf("restart on a port that is free again: %v", err)
	}
}

func testShortLease(t *testing.T, mode simfleet.Mode) {
	b, err := simfleet.StartBroker(t.Context(), simfleet.BrokerOptions{Mode: mode, ElectionTTL: time.Second})
	if err == nil {
		b.Close()
		t.Fatal("started with leases that go-choria cannot hold")
	}
}

// testMainAccount shows that the fleet's account is another one.
func testMainAccount(t *testing.T) {
	b := Broker(t, simfleet.Issuer)
	Connect(t, framework(t, b, b.ClientConfig(), func(*config.Config) {}), "client")
	onlyConnection(t, b, "choria")
}

// onlyConnection fails unless there is one connection and it is in account.
func onlyConnection(t *testing.T, b *simfleet.Broker, account string) {
	t.Helper()

	conns, err := b.Connections(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(conns) != 1 || conns[0].Account != account {
		t.Fatalf("connections are %+v", conns)
	}
}

// testTrustChain shows that the signing key may issue server tokens.
func testTrustChain(t *testing.T) {
	b := Broker(t, simfleet.Issuer)

	read := func(path string) string {
		t.Helper()
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}

		return string(content)
	}
	signer, err := tokens.ParseClientIDTokenUnverified(read(b.SigningToken()))
	if err != nil {
		t.Fatal(err)
	}
	_, signingKey, err := choria.Ed25519KeyPairFromSeedFile(b.SigningKey())
	if err != nil {
		t.Fatal(err)
	}

	seed := filepath.Join(t.TempDir(), "server.seed")
	public, _, err := choria.Ed25519KeyPairToFile(seed)
	if err != nil {
		t.Fatal(err)
	}
	claims, err := tokens.NewServerClaims("node.example.net", []string{"choria"}, "choria", nil, nil, public, "", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if err = claims.AddChainIssuerData(signer, signingKey); err != nil {
		t.Fatal(err)
	}
	token, err := tokens.SignToken(claims, signingKey)
	if err != nil {
		t.Fatal(err)
	}

	inbox, jwt, sign, err := tokens.NatsConnectionHelpers(token, "choria", seed, logger(t))
	if err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(b.URL(), nats.Name("server"), nats.RootCAs(b.CA()), nats.CustomInboxPrefix(inbox), nats.Token(token), nats.UserJWT(jwt, sign))
	if err != nil {
		t.Fatalf("connect as a provisioned server: %v", err)
	}
	defer nc.Close()

	onlyConnection(t, b, "choria")
}

// testPlainAndTLS shows that both kinds of client meet: an insecure provisioner
// and a real server in provisioning mode, which insists on TLS.
func testPlainAndTLS(t *testing.T) {
	b := Broker(t, simfleet.Insecure)

	plain, err := nats.Connect(b.URL())
	if err != nil {
		t.Fatalf("plain: %v", err)
	}
	defer plain.Close()

	jwt, err := os.ReadFile(b.ProvisioningJWT())
	if err != nil {
		t.Fatal(err)
	}
	server, err := nats.Connect(b.URL(), nats.Token(string(jwt)), nats.RootCAs(b.CA()), nats.Secure())
	if err != nil {
		t.Fatalf("TLS: %v", err)
	}
	defer server.Close()

	sub, err := server.SubscribeSync("provisioning.node.x")
	if err != nil {
		t.Fatal(err)
	}
	if err = server.Flush(); err != nil {
		t.Fatal(err)
	}
	if err = plain.Publish("provisioning.node.x", nil); err != nil {
		t.Fatal(err)
	}
	if _, err = sub.NextMsg(5 * time.Second); err != nil {
		t.Fatalf("the two do not meet: %v", err)
	}
}
