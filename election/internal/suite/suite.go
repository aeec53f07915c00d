// Package suite has tests of elections that hold on any network.
package suite

import (
	"context"
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	streams "github.com/choria-io/go-choria/providers/election/streams"
	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"

	"github.com/choria-provisioner/provisioner/election"
)

// Network is where elections are held.
type Network struct {
	// Connect connects identity as a provisioner would, until the test ends.
	Connect func(t *testing.T, identity string) *nats.Conn
	// TTL is that of the bucket.
	TTL time.Duration
}

// Member is a provisioner's part in an election.
type Member struct {
	*election.Elector

	Gate *election.Gate
	stop func()
}

// Record is the order in which members led and stopped leading.
type Record struct {
	mu     sync.Mutex
	events []string
}

func (r *Record) add(event string) {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.events = append(r.events, event)
}

// Events returns what happened so far.
func (r *Record) Events() []string {
	r.mu.Lock()
	defer r.mu.Unlock()

	return slices.Clone(r.events)
}

// Start starts a member that runs until Stop or the end of the test. change may
// be nil.
func (n Network) Start(t *testing.T, identity string, record *Record, change func(*election.Config)) *Member {
	t.Helper()

	log := logrus.New()
	log.SetOutput(io.Discard)
	cfg := election.Config{
		Identity: identity,
		Connect:  func(context.Context) (*nats.Conn, error) { return n.Connect(t, identity), nil },
		Gate:     election.NewGate(),
		OnWon:    func() { record.add("+" + identity) },
		OnLost:   func() { record.add("-" + identity) },
		Log:      logrus.NewEntry(log),
	}
	if change != nil {
		change(&cfg)
	}

	m := &Member{Elector: election.New(cfg), Gate: cfg.Gate}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); m.Run(ctx) }()
	m.stop = func() { cancel(); <-done }
	t.Cleanup(m.Stop)

	return m
}

// Stop ends the member and waits until it has given its lease back.
func (m *Member) Stop() { m.stop() }

// Wait waits until the gate is open.
func (m *Member) Wait(t *testing.T, patience time.Duration) {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := m.Gate.Wait(ctx); err != nil {
		t.Fatalf("not elected in %v: %s", patience, m.Gate.Reason())
	}
}

// Election is how long the first election may take: the splay of go-choria's
// election, the rest of an older lease, two campaigns, and a slow machine.
func (n Network) Election() time.Duration { return 5*time.Second + 3*n.TTL + 10*time.Second }

// Eventually waits until ok.
func Eventually(t *testing.T, what string, patience time.Duration, ok func() bool) {
	t.Helper()

	for deadline := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in %v: %s", patience, what)
		}
	}
}

// TestHandOver shows that the standby takes over a lease that is given back,
// sooner than it would have run out, and that it does not before.
func (n Network) TestHandOver(t *testing.T) {
	var record Record
	a := n.Start(t, "a.example.net", &record, nil)
	a.Wait(t, n.Election())
	epoch := a.Status().Epoch

	b := n.Start(t, "b.example.net", &record, nil)
	Eventually(t, "b stands by", n.Election(), func() bool { return b.Status().Reason == "another provisioner leads" })
	if !a.Status().Led {
		t.Error("the leader does not know that somebody leads")
	}
	if err := b.Status().Err; err != nil {
		t.Errorf("a standby has the error %v", err)
	}
	// Longer than a lease that is not renewed.
	stillLeads := time.After(n.TTL + n.TTL/2)
	for led := true; led; {
		select {
		case <-stillLeads:
			led = false
		case <-time.After(20 * time.Millisecond):
			if !a.Gate.IsOpen() || b.Gate.IsOpen() {
				t.Fatalf("a open: %v, b open: %v (%s)", a.Gate.IsOpen(), b.Gate.IsOpen(), a.Gate.Reason())
			}
		}
	}

	Eventually(t, "the standby knows that somebody leads", n.Election(), func() bool { return b.Status().Led })

	start := time.Now()
	a.Stop()
	if d := time.Since(start); d > 2*time.Second {
		t.Errorf("stopping took %v", d)
	}
	b.Wait(t, n.TTL)
	t.Logf("handed over in %v of a TTL of %v", time.Since(start), n.TTL)

	if s := b.Status(); !s.Leader || s.Epoch <= epoch || s.Stream.IsZero() {
		t.Errorf("status after epoch %d: %+v", epoch, s)
	}
	want := []string{"+a.example.net", "-a.example.net", "+b.example.net"}
	Eventually(t, "a won, lost, b won, in this order", 5*time.Second, func() bool { return slices.Equal(record.Events(), want) })
}

// TestNobodyLeads shows that what a former leader left behind is not taken for
// one that leads, by a member that was not there when it went.
func (n Network) TestNobodyLeads(t *testing.T) {
	var record Record
	a := n.Start(t, "a.example.net", &record, nil)
	a.Wait(t, n.Election())
	a.Stop()

	b := n.Start(t, "b.example.net", &record, nil)
	refused := false
	Eventually(t, "b leads", n.Election(), func() bool {
		s := b.Status()
		refused = refused || s.Reason == "another provisioner leads"
		if s.Led && !s.Leader {
			t.Fatalf("somebody is said to lead: %+v", s)
		}
		return s.Leader
	})
	if !refused {
		t.Error("b was not refused: nothing was shown")
	}
}

// TestOlder shows that an older provisioner, a plain member of go-choria's
// election, and ours exclude one another.
func (n Network) TestOlder(t *testing.T) {
	var record Record
	stopOlder := n.startOlder(t, "old.example.net", &record)
	Eventually(t, "the older one leads", n.Election(), func() bool { return slices.Contains(record.Events(), "+old.example.net") })

	ours := n.Start(t, "new.example.net", &record, nil)
	Eventually(t, "ours stands by", n.Election(), func() bool { return ours.Status().Reason == "another provisioner leads" })

	// It does not give its lease back: ours waits until it has run out.
	record.add("-old.example.net")
	stopOlder()
	ours.Wait(t, n.Election())

	n.startOlder(t, "old.example.net", &record)
	still := time.After(n.TTL + 5*time.Second) // its splay is up to 5 s
	for led := true; led; {
		select {
		case <-still:
			led = false
		case <-time.After(20 * time.Millisecond):
			if !ours.Gate.IsOpen() {
				t.Fatalf("lost to the older one: %s", ours.Gate.Reason())
			}
		}
	}

	ours.Stop()
	Eventually(t, "the older one takes over", n.Election(), func() bool { return len(record.Events()) == 5 })
	want := []string{"+old.example.net", "-old.example.net", "+new.example.net", "-new.example.net", "+old.example.net"}
	if got := record.Events(); !slices.Equal(got, want) {
		t.Errorf("record %v, want %v", got, want)
	}
}

func (n Network) startOlder(t *testing.T, identity string, record *Record) (stop func()) {
	t.Helper()

	js, err := n.Connect(t, identity).JetStream(nats.APIPrefix("choria.streams"))
	if err != nil {
		t.Fatal(err)
	}
	kv, err := js.KeyValue("CHORIA_LEADER_ELECTION")
	if err != nil {
		t.Fatal(err)
	}
	member, err := streams.NewElection(identity, "provisioner", kv,
		streams.OnWon(func() { record.add("+" + identity) }),
		streams.OnLost(func() { record.add("-" + identity) }))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = member.Start(ctx) }()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)

	return stop
}
