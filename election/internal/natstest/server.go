// Package natstest runs a small NATS server for tests of the election, with what
// go-choria's broker allows a provisioner in its accounts.
package natstest

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// Users of a Server.
const (
	// Admin may do everything in the account with the bucket.
	Admin = "admin"
	// Imported is in an account like the provisioning account of go-choria's
	// broker: it may write the one key and read the stream's description.
	Imported = "imported"
	// Mapped is in the account with the bucket, whose subjects are mapped; it
	// may read the key.
	Mapped = "mapped"
	// Refused is in the account of Imported, and may not use its imports.
	Refused = "refused"
	// ReadOnly is in the account of Imported, and may not write the key.
	ReadOnly = "readonly"
	// Bare is in an account without imports.
	Bare = "bare"
)

// accounts follow network_accounts.go of go-choria's broker.
const accounts = `
accounts {
  choria {
    jetstream: enabled
    users: [{user: admin, password: x}, {user: mapped, password: x}]
    exports: [
      {service: "$JS.API.STREAM.INFO.KV_CHORIA_LEADER_ELECTION", accounts: [provisioning]}
      {service: "$KV.CHORIA_LEADER_ELECTION.provisioner", accounts: [provisioning]}
    ]
    mappings: {
      "choria.streams.STREAM.>": "$JS.API.STREAM.>"
      "choria.streams.DIRECT.>": "$JS.API.DIRECT.>"
      "choria.streams.$KV.>": "$KV.>"
    }
  }
  provisioning {
    users: [
      {user: imported, password: x}
      {user: refused, password: x, permissions: {publish: {deny: "choria.streams.>"}}}
      {user: readonly, password: x, permissions: {publish: {deny: "choria.streams.$KV.>"}}}
    ]
    imports: [
      {service: {account: choria, subject: "$JS.API.STREAM.INFO.KV_CHORIA_LEADER_ELECTION"}, to: "choria.streams.STREAM.INFO.KV_CHORIA_LEADER_ELECTION"}
      {service: {account: choria, subject: "$KV.CHORIA_LEADER_ELECTION.provisioner"}, to: "choria.streams.$KV.CHORIA_LEADER_ELECTION.provisioner"}
    ]
  }
  bare { users: [{user: bare, password: x}] }
}
`

// Server is a NATS server for as long as a test lasts.
type Server struct {
	t      *testing.T
	dir    string
	port   int
	server *server.Server
}

// StartServer starts a server with streams and no bucket.
func StartServer(t *testing.T) *Server {
	t.Helper()

	s := &Server{t: t, dir: t.TempDir(), port: server.RANDOM_PORT}
	s.Start()
	t.Cleanup(func() { s.Stop() })

	return s
}

// Start starts a stopped server on its port, with the streams it had.
func (s *Server) Start() {
	s.t.Helper()

	file := filepath.Join(s.dir, "server.conf")
	conf := fmt.Sprintf("listen: 127.0.0.1:%d\njetstream {store_dir: %q}\n%s", s.port, s.dir, accounts)
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		s.t.Fatal(err)
	}
	opts, err := server.ProcessConfigFile(file)
	if err != nil {
		s.t.Fatal(err)
	}
	opts.NoLog, opts.NoSigs = true, true
	s.server, err = server.NewServer(opts)
	if err != nil {
		s.t.Fatal(err)
	}
	s.server.Start()
	if !s.server.ReadyForConnections(20 * time.Second) {
		s.t.Fatal("the server does not start")
	}
	if s.port < 0 {
		s.port = s.server.Addr().(*net.TCPAddr).Port
	}
}

// Stop stops the server; what it stored stays.
func (s *Server) Stop() {
	s.server.Shutdown()
	s.server.WaitForShutdown()
}

// URL is where the server listens.
func (s *Server) URL() string { return fmt.Sprintf("nats://127.0.0.1:%d", s.port) }

// Connect connects as user until the test ends.
func (s *Server) Connect(user string) *nats.Conn {
	s.t.Helper()

	nc, err := nats.Connect(s.URL(), nats.UserInfo(user, "x"),
		nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond), nats.ReconnectBufSize(-1),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})) // not onto standard error
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(nc.Close)

	return nc
}

// CreateBucket makes the election's bucket.
func (s *Server) CreateBucket(ttl time.Duration) {
	s.t.Helper()

	nc := s.Connect(Admin)
	defer nc.Close()
	js, err := nc.JetStream()
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := js.CreateKeyValue(&nats.KeyValueConfig{Bucket: "CHORIA_LEADER_ELECTION", TTL: ttl}); err != nil {
		s.t.Fatal(err)
	}
}
