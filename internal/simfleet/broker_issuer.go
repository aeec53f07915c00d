package simfleet

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"

	"github.com/choria-io/go-choria/broker/network"
	"github.com/choria-io/go-choria/choria"
	"github.com/choria-io/go-choria/config"
	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"
)

const (
	systemUser     = "system"
	systemPassword = "system"
)

// errBrokerFailed is a server that gave up; its log says why.
var errBrokerFailed = errors.New("the server gave up at start")

// issuerServer is go-choria's network broker.
type issuerServer struct {
	*network.Server

	cancel context.CancelFunc
	done   sync.WaitGroup
}

func (s *issuerServer) stop() {
	s.cancel()
	s.done.Wait()
}

func (b *Broker) startIssuer(ctx context.Context) (brokerServer, error) {
	path, err := b.writeBrokerConfig()
	if err != nil {
		return nil, err
	}

	// as a server, since a client wants the USER environment variable
	cfg, err := config.NewSystemConfig(path, true)
	if err != nil {
		return nil, fmt.Errorf("broker configuration: %w", err)
	}

	failed := make(chan struct{})
	cfg.CustomLogger = survivingLogger(b.log, failed)

	fw, err := choria.NewWithConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("broker configuration: %w", err)
	}

	server, err := network.NewServer(fw, fw.BuildInfo(), false)
	if err != nil {
		return nil, err
	}

	run, cancel := context.WithCancel(context.Background())
	s := &issuerServer{Server: server, cancel: cancel}
	s.done.Add(1)
	go server.Start(run, &s.done)

	err = s.wait(ctx, b.Addr(), failed)
	switch {
	case errors.Is(err, errBrokerFailed):
		// stopping it would wait a minute for it to become ready
		cancel()

		return nil, err
	case err != nil:
		s.stop()

		return nil, err
	}

	return s, nil
}

// wait returns once clients can connect and the system streams are there.
func (s *issuerServer) wait(ctx context.Context, addr string, failed <-chan struct{}) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-failed:
			cancel(errBrokerFailed)
		case <-ctx.Done():
		}
	}()

	err := poll(ctx, func() error {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			return err
		}

		return conn.Close()
	})
	if err != nil {
		return err
	}

	return waitForElectionBucket(ctx, s)
}

func (b *Broker) writeBrokerConfig() (string, error) {
	lines := []string{
		"identity = " + brokerIdentity,
		"loglevel = warn",
		"plugin.choria.use_srv = false",
		"plugin.choria.broker_network = true",
		"plugin.choria.network.listen_address = 127.0.0.1",
		fmt.Sprintf("plugin.choria.network.client_port = %d", b.port),
		"plugin.choria.network.public_url = " + b.Addr(),
		"plugin.choria.network.system.user = " + systemUser,
		"plugin.choria.network.system.password = " + systemPassword,
		"plugin.choria.network.provisioning.client_password = " + b.opts.Password,
		"plugin.choria.network.stream.store = " + b.credentials.path("streams"),
		fmt.Sprintf("plugin.choria.network.stream.leader_election_ttl = %s", b.opts.ElectionTTL),

		// the default counts the peers of a cluster, and sleeps up to a
		// minute before it does
		"plugin.choria.network.stream.advisory_replicas = 1",
		"plugin.choria.network.stream.event_replicas = 1",
		"plugin.choria.network.stream.executor_replicas = 1",
		"plugin.choria.network.stream.leader_election_replicas = 1",
		"plugin.choria.network.stream.machine_replicas = 1",

		"plugin.security.provider = choria",
		"plugin.security.choria.certificate = " + b.certificate,
		"plugin.security.choria.key = " + b.key,
		"plugin.security.choria.token_file = " + b.brokerToken,
		"plugin.security.choria.seed_file = " + b.brokerSeed,
		"plugin.security.issuer.names = " + organization,
		fmt.Sprintf("plugin.security.issuer.%s.public = %s", organization, b.credentials.issuerPublic()),
	}

	return b.credentials.write("broker.conf", []byte(strings.Join(lines, "\n")+"\n"))
}

// survivingLogger writes as log does, but a fatal message closes failed where
// it would end the process.
func survivingLogger(log *logrus.Entry, failed chan struct{}) *logrus.Logger {
	var once sync.Once

	logger := logrus.New()
	logger.SetOutput(io.Discard)
	logger.SetLevel(log.Logger.GetLevel())
	logger.AddHook(forward{log})
	logger.ExitFunc = func(int) { once.Do(func() { close(failed) }) }

	return logger
}

// forward hands a logger's messages to another one.
type forward struct {
	to *logrus.Entry
}

func (f forward) Levels() []logrus.Level { return logrus.AllLevels }

func (f forward) Fire(e *logrus.Entry) error {
	f.to.WithFields(e.Data).WithTime(e.Time).Log(e.Level, e.Message)

	return nil
}

func connectInProcess(server nats.InProcessConnProvider, opts ...nats.Option) (*nats.Conn, error) {
	opts = append([]nats.Option{
		nats.InProcessServer(server),
		nats.Name(connectionName + "broker"),
		// go-choria's broker demands the handshake even in one process
		nats.Secure(&tls.Config{InsecureSkipVerify: true}),
		nats.MaxReconnects(0),
	}, opts...)

	nc, err := nats.Connect("nats://in-process", opts...)
	if err != nil {
		return nil, fmt.Errorf("in-process connection: %w", err)
	}

	return nc, nil
}
