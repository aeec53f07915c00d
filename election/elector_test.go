package election_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"github.com/choria-provisioner/provisioner/election"
	"github.com/choria-provisioner/provisioner/election/internal/natstest"
	"github.com/choria-provisioner/provisioner/election/internal/suite"
)

// shortTTL is about the least that go-choria's election takes.
const shortTTL = 5 * time.Second

func network(s *natstest.Server, user string) suite.Network {
	return suite.Network{
		Connect: func(*testing.T, string) *nats.Conn { return s.Connect(user) },
		TTL:     shortTTL,
	}
}

func TestElector(t *testing.T) {
	t.Parallel()
	for _, user := range []string{natstest.Imported, natstest.Mapped} {
		for name, test := range map[string]func(suite.Network, *testing.T){
			"hand over":    suite.Network.TestHandOver,
			"older":        suite.Network.TestOlder,
			"nobody leads": suite.Network.TestNobodyLeads,
		} {
			t.Run(user+" "+name, func(t *testing.T) {
				t.Parallel()
				s := natstest.StartServer(t)
				s.CreateBucket(shortTTL)
				test(network(s, user), t)
			})
		}
	}
}

// Nothing that keeps a provisioner from being elected passes in silence, and
// nothing needs a restart to be put right.
func TestElector_setUpFails(t *testing.T) {
	t.Parallel()
	s := natstest.StartServer(t)
	n := network(s, natstest.Imported)
	logger, hook := logtest.NewNullLogger()
	var record suite.Record
	m := n.Start(t, "a", &record, func(c *election.Config) { c.Log = logrus.NewEntry(logger) })

	suite.Eventually(t, "the error is in the status", 10*time.Second, func() bool { return m.Status().Err != nil })
	if err := m.Status().Err; !errors.Is(err, nats.ErrStreamNotFound) {
		t.Errorf("error %v", err)
	}
	if m.Status().Led {
		t.Error("somebody is known to lead where nobody can")
	}
	if got := m.Gate.Reason(); !strings.HasPrefix(got, "no bucket CHORIA_LEADER_ELECTION") {
		t.Errorf("the gate's reason: %s", got)
	}
	suite.Eventually(t, "it is tried again", 10*time.Second, func() bool {
		n := 0
		for _, e := range hook.AllEntries() {
			if e.Level == logrus.ErrorLevel && strings.Contains(e.Message, "no bucket") && strings.Contains(e.Message, "trying again in") {
				n++
			}
		}

		return n > 1
	})

	s.CreateBucket(shortTTL)
	m.Wait(t, n.Election())
	if s := m.Status(); s.Err != nil || s.Reason != "" {
		t.Errorf("status %+v", s)
	}
}

func TestElector_noConnection(t *testing.T) {
	t.Parallel()
	s := natstest.StartServer(t)
	s.CreateBucket(shortTTL)
	n := network(s, natstest.Imported)
	refused := errors.New("authorization violation")
	var record suite.Record
	m := n.Start(t, "a", &record, func(c *election.Config) {
		c.Connect = func(context.Context) (*nats.Conn, error) { return nil, refused }
	})

	suite.Eventually(t, "the error is in the status", 10*time.Second, func() bool { return errors.Is(m.Status().Err, refused) })
	if m.Gate.IsOpen() {
		t.Error("open")
	}
}

// Campaigns that fail one after the other are not a standby's.
func TestElector_mayNotWrite(t *testing.T) {
	t.Parallel()
	s := natstest.StartServer(t)
	s.CreateBucket(shortTTL)
	n := network(s, natstest.ReadOnly)
	var record suite.Record
	m := n.Start(t, "a", &record, nil)

	suite.Eventually(t, "the error is in the status", 20*time.Second, func() bool { return errors.Is(m.Status().Err, nats.ErrPermissionViolation) })
	if got := m.Gate.Reason(); !strings.HasPrefix(got, "the lease in bucket CHORIA_LEADER_ELECTION could not be written: no permission: let this user publish to") {
		t.Errorf("the gate's reason: %s", got)
	}
}

// A bucket that go-choria's election does not take: each try starts afresh.
func TestElector_startFails(t *testing.T) {
	t.Parallel()
	s := natstest.StartServer(t)
	s.CreateBucket(2 * time.Second)
	n := network(s, natstest.Imported)
	var connects atomic.Int32
	var record suite.Record
	m := n.Start(t, "a", &record, func(c *election.Config) {
		connect := c.Connect
		c.Connect = func(ctx context.Context) (*nats.Conn, error) {
			connects.Add(1)
			return connect(ctx)
		}
	})

	suite.Eventually(t, "tried again", 20*time.Second, func() bool { return connects.Load() > 2 })
	suite.Eventually(t, "said", 10*time.Second, func() bool {
		return m.Status().Err != nil && strings.Contains(m.Status().Err.Error(), "too close to bucket ttl")
	})
}

// The gate pauses when the connection drops, long before the lease is up; and
// opens once the lease is known to go on, in the same epoch.
func TestElector_connectionLost(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		why string
		// lose drops the connection, and returns what brings it back.
		lose func(s *natstest.Server, nc *nats.Conn) (restore func())
	}{
		{"the broker restarts", func(s *natstest.Server, _ *nats.Conn) func() {
			s.Stop()
			return s.Start
		}},
		{"the owner closes the connection, and has a new one", func(_ *natstest.Server, nc *nats.Conn) func() {
			nc.Close()
			return func() {}
		}},
		{"it comes back before anyone has looked", func(_ *natstest.Server, nc *nats.Conn) func() {
			// An error would mean that it is closed, which the test would see.
			_ = nc.ForceReconnect()
			return func() {}
		}},
	} {
		t.Run(tc.why, func(t *testing.T) {
			t.Parallel()
			s := natstest.StartServer(t)
			// Long, so that what is seen is not the lease running out.
			s.CreateBucket(12 * time.Second)
			n := network(s, natstest.Imported)
			n.TTL = 12 * time.Second

			var conn atomic.Pointer[nats.Conn]
			var record suite.Record
			m := n.Start(t, "a", &record, func(c *election.Config) {
				c.Connect = func(context.Context) (*nats.Conn, error) {
					nc := s.Connect(natstest.Imported)
					conn.Store(nc)
					return nc, nil
				}
			})
			m.Wait(t, n.Election())
			epoch := m.Status().Epoch
			session, cancel := m.Gate.Session(t.Context())
			defer cancel()

			lost := time.Now()
			restore := tc.lose(s, conn.Load())
			select {
			case <-session.Done():
			case <-time.After(2 * time.Second):
				t.Fatal("calls in flight go on")
			}
			t.Logf("paused after %v", time.Since(lost))
			if err := context.Cause(session); !errors.Is(err, election.ErrPaused) {
				t.Errorf("cause %v", err)
			}
			restore()

			m.Wait(t, 10*time.Second)
			if got := m.Status().Epoch; got != epoch {
				t.Errorf("epoch %d, was %d", got, epoch)
			}
			suite.Eventually(t, "both told", 5*time.Second, func() bool {
				return slices.Equal(record.Events(), []string{"+a", "-a", "+a"})
			})
		})
	}
}

// What a process that was stopped past its lease finds: its clock is ahead, and
// nothing has run in the meantime.
func TestElector_stoppedPastItsLease(t *testing.T) {
	t.Parallel()
	s := natstest.StartServer(t)
	s.CreateBucket(shortTTL)
	n := network(s, natstest.Imported)
	var ahead atomic.Int64
	var record suite.Record
	m := n.Start(t, "a", &record, func(c *election.Config) {
		c.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	})
	m.Wait(t, n.Election())
	epoch := m.Status().Epoch
	session, cancel := m.Gate.Session(t.Context())
	defer cancel()

	ahead.Store(int64(shortTTL))
	if m.Gate.IsOpen() {
		t.Error("open past the lease")
	}
	if !errors.Is(context.Cause(session), election.ErrPaused) {
		t.Error("calls in flight go on")
	}

	// It campaigns again, as anyone.
	m.Wait(t, n.Election())
	if got := m.Status().Epoch; got <= epoch {
		t.Errorf("epoch %d after %d", got, epoch)
	}
}

// choria election evict deletes the key from outside.
func TestElector_evicted(t *testing.T) {
	t.Parallel()
	s := natstest.StartServer(t)
	s.CreateBucket(shortTTL)
	n := network(s, natstest.Imported)
	var record suite.Record
	m := n.Start(t, "a", &record, nil)
	m.Wait(t, n.Election())

	js, err := s.Connect(natstest.Admin).JetStream()
	if err != nil {
		t.Fatal(err)
	}
	kv, err := js.KeyValue("CHORIA_LEADER_ELECTION")
	if err != nil {
		t.Fatal(err)
	}
	if err := kv.Delete("provisioner"); err != nil {
		t.Fatal(err)
	}
	suite.Eventually(t, "paused at the next renewal", shortTTL, func() bool { return !m.Gate.IsOpen() })
}
