package simfleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/choria-io/tokens"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/sirupsen/logrus"
)

const (
	// ElectionBucket is the bucket of Choria Streams that go-choria's elections
	// are held in.
	ElectionBucket = "CHORIA_LEADER_ELECTION"

	// MinElectionTTL is the shortest lifetime of a lease that go-choria can
	// hold: it campaigns at three quarters of it and wants a second left.
	MinElectionTTL = 4 * time.Second

	// brokerIdentity is the broker's name in its certificate and token.
	brokerIdentity = "localhost"

	// startLimit bounds how long a broker may take to be ready.
	startLimit = 30 * time.Second

	// lowestPort and highestPort lie below what systems hand out to outgoing
	// connections: one of those could take the port while the broker is down.
	lowestPort, highestPort = 20000, 32000
)

var errStopped = errors.New("the broker is stopped")

// Mode is how a network is secured.
type Mode int

const (
	// Issuer is go-choria's broker with TLS and an Organization Issuer;
	// protocol version 2.
	Issuer Mode = iota

	// Insecure is a NATS server that wants neither TLS nor tokens; protocol
	// version 1.
	Insecure
)

func (m Mode) String() string {
	if m == Insecure {
		return "insecure"
	}

	return "issuer"
}

// BrokerOptions say what network to start. The zero value is a network in
// issuer mode in a temporary directory.
type BrokerOptions struct {
	Mode Mode

	// Dir is an existing directory for keys, configuration files and the
	// stream store. When empty a temporary one is made, and removed by Close.
	Dir string

	// ElectionTTL is the lifetime of a lease in the election bucket. Defaults
	// to 5 seconds; less than MinElectionTTL is refused.
	ElectionTTL time.Duration

	// Password is what user provisioner connects with. Defaults to "s3cret".
	Password string

	// Token is the provisioning token that nodes demand. May be empty: nodes
	// then demand none.
	Token string

	// Log gets what the broker says. Defaults to nothing.
	Log *logrus.Entry
}

// Broker is a running network with all the credentials a provisioner, a node
// and an administrator of it need.
type Broker struct {
	opts        BrokerOptions
	log         *logrus.Entry
	credentials *credentials
	port        int
	removeDir   bool

	ca, certificate, key             string
	brokerToken, brokerSeed          string
	signingToken, signingKey         string
	provisioningJWT, provisioningRaw string
	clientConfig                     string

	mu                 sync.Mutex
	server             brokerServer
	provisionerConfigs map[string]string
}

// brokerServer is what the two kinds of broker have in common.
type brokerServer interface {
	nats.InProcessConnProvider

	// stop ends the server and waits until it is gone.
	stop()
}

// StartBroker starts a network and returns once clients can connect and the
// election bucket is there. ctx bounds the start alone; the broker runs until
// Close.
func StartBroker(ctx context.Context, opts BrokerOptions) (*Broker, error) {
	if opts.ElectionTTL == 0 {
		opts.ElectionTTL = 5 * time.Second
	}
	if opts.ElectionTTL < MinElectionTTL {
		return nil, fmt.Errorf("election TTL %v is too short for go-choria's elections: at least %v", opts.ElectionTTL, MinElectionTTL)
	}
	if opts.Password == "" {
		opts.Password = "s3cret"
	}

	b := &Broker{opts: opts, log: entryOrSilence(opts.Log), provisionerConfigs: map[string]string{}}
	if opts.Dir == "" {
		dir, err := os.MkdirTemp("", "simfleet-")
		if err != nil {
			return nil, fmt.Errorf("broker directory: %w", err)
		}
		b.opts.Dir, b.removeDir = dir, true
	}

	err := b.startFirst(ctx)
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}

	return b, nil
}

// startFirst makes the credentials and starts the server on a free port.
func (b *Broker) startFirst(ctx context.Context) error {
	var err error
	if b.credentials, err = newCredentials(b.opts.Dir); err != nil {
		return err
	}
	if b.ca, b.certificate, b.key, err = b.credentials.tls(); err != nil {
		return err
	}
	if b.brokerToken, b.brokerSeed, err = b.credentials.server("broker", brokerIdentity); err != nil {
		return err
	}
	if b.signingToken, b.signingKey, err = b.credentials.client("signer", "choria=signer", tokens.ClientPermissions{}); err != nil {
		return err
	}

	if b.port, err = freePort(); err != nil {
		return err
	}
	if err = b.start(ctx); err != nil {
		return err
	}

	if b.provisioningRaw, err = b.credentials.provisioning(b.URL(), b.opts.Token, b.opts.Mode == Issuer, nil); err != nil {
		return err
	}
	if b.provisioningJWT, err = b.credentials.write("provisioning.jwt", []byte(b.provisioningRaw)); err != nil {
		return err
	}
	b.clientConfig, err = b.writeClientConfig("client", "client.example.net", "choria=client", tokens.ClientPermissions{
		FleetManagement: true,
		EventsViewer:    true,
		ElectionUser:    true,
		StreamsUser:     true,
	})

	return err
}

func (b *Broker) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()

	if err := tryPort(b.port); err != nil {
		return fmt.Errorf("%v broker: %w", b.opts.Mode, err)
	}

	start := b.startIssuer
	if b.opts.Mode == Insecure {
		start = b.startInsecure
	}

	server, err := start(ctx)
	if err != nil {
		return fmt.Errorf("%v broker on %s: %w", b.opts.Mode, b.Addr(), err)
	}

	b.mu.Lock()
	b.server = server
	b.mu.Unlock()

	return nil
}

// Stop ends the server and keeps its port, streams and credentials for Restart.
// Clients see their connections drop. Stopping a stopped broker does nothing.
func (b *Broker) Stop() {
	b.mu.Lock()
	server := b.server
	b.server = nil
	b.mu.Unlock()

	if server != nil {
		server.stop()
	}
}

// Restart stops the server if it runs and starts it again on the same port,
// with the same streams and credentials. The log of connections begins anew.
func (b *Broker) Restart(ctx context.Context) error {
	b.Stop()

	return b.start(ctx)
}

// Close ends the broker, waits for it, and removes its directory if that was a
// temporary one.
func (b *Broker) Close() error {
	b.Stop()
	if b.removeDir {
		return os.RemoveAll(b.opts.Dir)
	}

	return nil
}

// Addr is host and port of the broker.
func (b *Broker) Addr() string {
	return fmt.Sprintf("127.0.0.1:%d", b.port)
}

// URL is Addr with the scheme clients expect.
func (b *Broker) URL() string {
	return "nats://" + b.Addr()
}

// Mode is how the network is secured.
func (b *Broker) Mode() Mode {
	return b.opts.Mode
}

// Dir is where keys, configuration files and streams are.
func (b *Broker) Dir() string {
	return b.opts.Dir
}

// Password belongs into broker_provisioning_password.
func (b *Broker) Password() string {
	return b.opts.Password
}

// Token belongs into token; nodes demand it. May be empty.
func (b *Broker) Token() string {
	return b.opts.Token
}

// VerifyCert belongs into jwt_verify_cert: the hex encoded public key that
// verifies provisioning tokens.
func (b *Broker) VerifyCert() string {
	return b.credentials.issuerPublic()
}

// SigningKey is the path of the ed25519 seed that belongs into jwt_signing_key.
func (b *Broker) SigningKey() string {
	return b.signingKey
}

// SigningToken is the path of the token that belongs into jwt_signing_token: it
// chains the signing key to the Organization Issuer.
func (b *Broker) SigningToken() string {
	return b.signingToken
}

// CA is the path of the certificate authority of the broker's certificate.
func (b *Broker) CA() string {
	return b.ca
}

// IssuerPublic is the hex encoded public key of the Organization Issuer, which
// provisioned nodes of issuer mode are configured with.
func (b *Broker) IssuerPublic() string {
	return b.credentials.issuerPublic()
}

// ProvisioningJWT is the path of the token that real nodes are built with.
func (b *Broker) ProvisioningJWT() string {
	return b.provisioningJWT
}

// NewProvisioningJWT makes another provisioning token; change may alter its
// claims before it is signed.
func (b *Broker) NewProvisioningJWT(change func(*tokens.ProvisioningClaims)) (string, error) {
	return b.credentials.provisioning(b.URL(), b.opts.Token, b.opts.Mode == Issuer, change)
}

// ClientConfig is the path of a Choria client configuration that manages the
// provisioned fleet in the main account.
func (b *Broker) ClientConfig() string {
	return b.clientConfig
}

// EventsViewer makes a token, and the seed of its key, that let their holder see
// lifecycle events in the main account, and returns the paths of both. In
// insecure mode nobody asks for them.
func (b *Broker) EventsViewer() (token, seed string, err error) {
	return b.credentials.client("events-viewer", "choria=events-viewer", tokens.ClientPermissions{EventsViewer: true})
}

// ProvisionerConfig makes, once for an identity, a Choria client configuration
// for a provisioner and returns its path: what --choria-config wants.
func (b *Broker) ProvisionerConfig(identity string) (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()

	if path, ok := b.provisionerConfigs[identity]; ok {
		return path, nil
	}

	path, err := b.writeClientConfig("provisioner-"+identity, identity, "choria="+identity, tokens.ClientPermissions{
		ServerProvisioner: true,
		ElectionUser:      true,
	})
	if err != nil {
		return "", err
	}
	b.provisionerConfigs[identity] = path

	return path, nil
}

// RenewProvisioner writes a new token and seed into the files of a provisioner's
// configuration.
func (b *Broker) RenewProvisioner(identity string) error {
	b.mu.Lock()
	delete(b.provisionerConfigs, identity)
	b.mu.Unlock()
	_, err := b.ProvisionerConfig(identity)

	return err
}

func (b *Broker) writeClientConfig(name, identity, caller string, permissions tokens.ClientPermissions) (string, error) {
	lines := []string{
		"identity = " + identity,
		"loglevel = warn",
		"plugin.choria.use_srv = false",
		"plugin.choria.middleware_hosts = " + b.URL(),
	}

	switch b.opts.Mode {
	case Issuer:
		token, seed, err := b.credentials.client(name, caller, permissions)
		if err != nil {
			return "", err
		}
		lines = append(lines,
			"plugin.security.provider = choria",
			"plugin.security.choria.ca = "+b.ca,
			"plugin.security.choria.token_file = "+token,
			"plugin.security.choria.seed_file = "+seed,
		)
	case Insecure:
		lines = append(lines, "plugin.security.provider = file")
	}

	return b.credentials.write(name+".conf", []byte(strings.Join(lines, "\n")+"\n"))
}

// Connect opens an in-process connection to the main account, where the
// election bucket and the lifecycle events are, with no limits. The caller
// closes it.
func (b *Broker) Connect() (*nats.Conn, error) {
	b.mu.Lock()
	server := b.server
	b.mu.Unlock()

	if server == nil {
		return nil, errStopped
	}

	return connectInProcess(server)
}

// waitForElectionBucket returns once the server has made its bucket.
func waitForElectionBucket(ctx context.Context, server nats.InProcessConnProvider) error {
	nc, err := connectInProcess(server)
	if err != nil {
		return err
	}
	defer nc.Close()

	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}

	return poll(ctx, func() error {
		_, err := js.Stream(ctx, "KV_"+ElectionBucket)

		return err
	})
}

// poll calls try until it succeeds or ctx ends, and then returns its last error.
func poll(ctx context.Context, try func() error) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()

	for {
		err := try()
		if err == nil {
			return nil
		}

		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

func freePort() (int, error) {
	var err error
	for range 100 {
		port := lowestPort + rand.IntN(highestPort-lowestPort)
		if err = tryPort(port); err == nil {
			return port, nil
		}
	}

	return 0, fmt.Errorf("no free port: %w", err)
}

// tryPort looks whether a server could listen on port: those we start end the
// process, or never end, when they cannot.
func tryPort(port int) error {
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return err
	}

	return listener.Close()
}

func entryOrSilence(log *logrus.Entry) *logrus.Entry {
	if log != nil {
		return log
	}

	silent := logrus.New()
	silent.SetOutput(io.Discard)

	return logrus.NewEntry(silent)
}
