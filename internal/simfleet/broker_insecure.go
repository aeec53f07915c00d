package simfleet

import (
	"context"
	"crypto/subtle"
	"crypto/tls"
	"fmt"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/sirupsen/logrus"
)

const provisionerUser = "provisioner"

// insecureServer is a NATS server with the accounts of go-choria's broker.
type insecureServer struct {
	*server.Server
}

func (s *insecureServer) stop() {
	s.Shutdown()
	s.WaitForShutdown()
}

// streamImports are the subjects of the main account that the provisioning
// account sees, and what they appear as: the API of Choria Streams and the
// election bucket. choria.streams.> as a whole would also catch
// choria.streams.$KV and answer it twice.
var streamImports = []struct{ from, to string }{
	{"choria.streams.INFO", "$JS.API.INFO"},
	{"choria.streams.STREAM.>", "$JS.API.STREAM.>"},
	{"choria.streams.CONSUMER.>", "$JS.API.CONSUMER.>"},
	{"choria.streams.DIRECT.>", "$JS.API.DIRECT.>"},
	{"choria.streams.$KV." + ElectionBucket + ".>", "$KV." + ElectionBucket + ".>"},
	{"$KV." + ElectionBucket + ".>", "$KV." + ElectionBucket + ".>"},
}

func (b *Broker) startInsecure(ctx context.Context) (brokerServer, error) {
	certificate, err := tls.LoadX509KeyPair(b.certificate, b.key)
	if err != nil {
		return nil, fmt.Errorf("broker certificate: %w", err)
	}

	// the authenticator needs accounts that only a server can make
	auth := &insecureAuth{password: b.opts.Password}
	opts := &server.Options{
		ServerName: brokerIdentity,
		Host:       "127.0.0.1",
		Port:       b.port,
		NoSigs:     true,

		// a real server in provisioning mode insists on TLS, an insecure
		// provisioner cannot do it
		TLSConfig:   &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12},
		AllowNonTLS: true,
		TLSTimeout:  2,
		AuthTimeout: 2,

		CustomClientAuthentication: auth,
		JetStream:                  true,
		StoreDir:                   b.credentials.path("streams"),
	}
	srv, err := server.NewServer(opts)
	if err != nil {
		return nil, err
	}

	failed := make(chan struct{})
	srv.SetLoggerV2(&natsLog{survivingLogger(b.log, failed).WithField("component", "network_broker")}, false, false, false)

	if err = auth.setUp(srv); err != nil {
		return nil, err
	}
	// not before the account is there
	opts.SystemAccount = auth.system.Name

	s := &insecureServer{Server: srv}
	srv.Start()
	select {
	case <-failed:
		s.stop()

		return nil, errBrokerFailed
	default:
	}

	if err = s.setUpStreams(ctx, b, auth.main); err != nil {
		s.stop()

		return nil, err
	}

	return s, nil
}

func (s *insecureServer) setUpStreams(ctx context.Context, b *Broker, main *server.Account) error {
	if err := main.EnableJetStream(nil, nil); err != nil {
		return fmt.Errorf("streams: %w", err)
	}

	nc, err := connectInProcess(s)
	if err != nil {
		return err
	}
	defer nc.Close()

	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}

	_, err = js.CreateOrUpdateKeyValue(ctx, jetstream.KeyValueConfig{
		Bucket:       ElectionBucket,
		Description:  "Choria Leader Election Bucket",
		TTL:          b.opts.ElectionTTL,
		MaxValueSize: 1024,
	})
	if err != nil {
		return fmt.Errorf("election bucket: %w", err)
	}

	return nil
}

// insecureAuth lets everybody into the provisioning account, but for those who
// say they are the provisioner and do not know the password.
type insecureAuth struct {
	password string

	system, main, provisioning *server.Account
}

func (a *insecureAuth) setUp(srv *server.Server) error {
	a.system, _ = srv.LookupOrRegisterAccount("system")
	a.main, _ = srv.LookupOrRegisterAccount("choria")
	a.provisioning, _ = srv.LookupOrRegisterAccount("provisioning")

	// as go-choria's broker does, so that events of waiting nodes are seen in
	// the main account
	only := []*server.Account{a.main}
	if err := a.provisioning.AddStreamExport("choria.lifecycle.>", only); err != nil {
		return fmt.Errorf("lifecycle events: %w", err)
	}
	if err := a.main.AddStreamImport(a.provisioning, "choria.lifecycle.>", ""); err != nil {
		return fmt.Errorf("lifecycle events: %w", err)
	}

	only = []*server.Account{a.provisioning}
	for _, i := range streamImports {
		if err := a.main.AddServiceExport(i.to, only); err != nil {
			return fmt.Errorf("export of %s: %w", i.to, err)
		}
		if err := a.provisioning.AddServiceImport(a.main, i.from, i.to); err != nil {
			return fmt.Errorf("import of %s: %w", i.from, err)
		}
	}

	return nil
}

// Check implements server.Authentication.
func (a *insecureAuth) Check(c server.ClientAuthentication) bool {
	user := &server.User{Username: c.GetOpts().Username, Account: a.provisioning}

	inProcess := c.RemoteAddress() == nil || c.RemoteAddress().String() == "pipe"
	switch {
	case inProcess && user.Username == systemUser:
		user.Account = a.system
	case inProcess:
		user.Account = a.main
	case user.Username == provisionerUser:
		if subtle.ConstantTimeCompare([]byte(a.password), []byte(c.GetOpts().Password)) != 1 {
			return false
		}
	}

	c.RegisterUser(user)

	return true
}

// natsLog gives logrus the names the NATS server calls.
type natsLog struct {
	*logrus.Entry
}

func (l *natsLog) Noticef(format string, v ...any) { l.Infof(format, v...) }
