package releases_test

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/sirupsen/logrus"

	"github.com/choria-provisioner/provisioner/fleet/releases"
	"github.com/choria-provisioner/provisioner/metrics"
	"github.com/choria-provisioner/provisioner/version/ledger"
	"github.com/choria-provisioner/provisioner/version/ledger/memstore"
)

// site is a leader over a store in memory, with a clock of its own bubble.
type site struct {
	*releases.Releases
	store   *failingStore
	metrics *metrics.Metrics
	stop    context.CancelFunc
	ended   chan struct{}

	mu        sync.Mutex
	listening bool
	verdicts  []ledger.Verdict
	log       bytes.Buffer
}

// Write takes the log.
func (s *site) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.log.Write(p)
}

func (s *site) logged() string {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.log.String()
}

// failingStore refuses to begin as often as it is told, and to write while it is
// full.
type failingStore struct {
	*memstore.Store
	refusals int
	full     atomic.Bool
}

func (s *failingStore) CompareAndSwap(ctx context.Context, rec ledger.Record) (uint64, error) {
	if s.full.Load() {
		return 0, errors.New("disk full")
	}

	return s.Store.CompareAndSwap(ctx, rec)
}

func (s *failingStore) BeginEpoch(ctx context.Context) (uint64, error) {
	if s.refusals > 0 {
		s.refusals--
		return 0, errors.New("disk full")
	}

	return s.Store.BeginEpoch(ctx)
}

func newSite(t *testing.T, memory *memstore.Memory, refusals int) *site {
	t.Helper()
	s := &site{store: &failingStore{Store: memstore.Open(memory), refusals: refusals}, metrics: metrics.New(""), listening: true, ended: make(chan struct{})}
	log := logrus.New()
	log.SetOutput(s)
	var err error
	s.Releases, err = releases.New(t.Context(), releases.Config{
		Store:  s.store,
		Policy: ledger.Policy{Upgrades: true, Repository: true, MainView: true, Trial: 10 * time.Minute, ReleaseTimeout: 10 * time.Minute},
		Listening: func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.listening
		},
		Judged: func(_ string, v ledger.Verdict) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.verdicts = append(s.verdicts, v)
		},
		QuarantineAfter: 1,
		Metrics:         s.metrics,
		Log:             log.WithField("component", "ledger"),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	s.stop = func() { stop(); <-s.ended; s.store.Close() }
	go func() { s.Run(ctx); close(s.ended) }()
	if err := s.Begin(ctx); err != nil {
		t.Fatal(err)
	}

	return s
}

func (s *site) apply(t *testing.T, ev ledger.Event) ledger.Result {
	t.Helper()
	res, err := s.Apply(t.Context(), crashNode, ev)
	if err != nil {
		t.Fatal(err)
	}

	return res
}

// sent is a node that was sent version 2.0 and took it.
func (s *site) sent(t *testing.T) {
	t.Helper()
	s.apply(t, ledger.Inventory{Version: "1.0"})
	res := s.apply(t, ledger.Decision{Direction: ledger.Upgrade, Version: "2.0", Current: "1.0", Upgradable: true, AttemptID: "a"})
	if res.Next != ledger.NextSend {
		t.Fatalf("%+v", res.Ruling)
	}
	s.apply(t, ledger.Reply{AttemptID: "a", Result: ledger.ReplyOK})
}

func (s *site) gauge(t *testing.T, name string) float64 {
	t.Helper()
	families, err := s.metrics.Gatherer().Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "choria_provisioner_"+name {
			return value(f.GetMetric()[0])
		}
	}
	t.Fatalf("no metric %s", name)

	return 0
}

func value(m *dto.Metric) float64 { return m.GetGauge().GetValue() + m.GetCounter().GetValue() }

// The bound passes while a leader listens, and only then: the node is dark, and
// that is on the metrics.
func TestDarkInObservedTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, &memstore.Memory{}, 0)
		defer func() { s.stop() }()
		s.sent(t)
		time.Sleep(5 * time.Minute)
		if state := s.State(crashNode); state != ledger.Swapped || s.gauge(t, "trials_running") != 1 {
			t.Fatalf("%s, %v on trial", state, s.gauge(t, "trials_running"))
		}

		s.mu.Lock()
		s.listening = false
		s.mu.Unlock()
		time.Sleep(24 * time.Hour)
		if state := s.State(crashNode); state != ledger.Swapped {
			t.Fatalf("%s after a day in which nobody listened", state)
		}

		s.mu.Lock()
		s.listening = true
		s.mu.Unlock()
		time.Sleep(6 * time.Minute)
		if state := s.State(crashNode); state != ledger.Dark || s.gauge(t, "dark_nodes") != 1 || s.gauge(t, "quarantined_versions") != 1 || s.gauge(t, "trials_running") != 0 {
			t.Errorf("%s, %v dark, %v quarantined", state, s.gauge(t, "dark_nodes"), s.gauge(t, "quarantined_versions"))
		}
	})
}

// Time that was observed outlives the daemon, and what a dead one was about to
// send is taken over as unsettled.
func TestTakeOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := &memstore.Memory{}
		s := newSite(t, memory, 0)
		s.apply(t, ledger.Inventory{Version: "1.0"})
		s.apply(t, ledger.Decision{Direction: ledger.Upgrade, Version: "2.0", Current: "1.0", Upgradable: true, AttemptID: "a"})
		time.Sleep(6 * time.Minute)
		s.stop()

		time.Sleep(24 * time.Hour)
		s = newSite(t, memory, 3)
		defer func() { s.stop() }()
		if got := s.gauge(t, "ledger_errors_total"); got != 3 {
			t.Errorf("%v errors counted, want that of each try to begin", got)
		}
		if state := s.State(crashNode); state != ledger.Verify {
			t.Errorf("%s, want verify", state)
		}
		time.Sleep(5 * time.Minute)
		if state := s.State(crashNode); state != ledger.Dark {
			t.Errorf("%s, want dark: six minutes before and five after are more than ten", state)
		}
	})
}

// A deposed leader observes nothing and judges nobody.
func TestDeposed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, &memstore.Memory{}, 0)
		defer func() { s.stop() }()
		session, end := context.WithCancel(t.Context())
		if err := s.Begin(session); err != nil {
			t.Fatal(err)
		}
		s.sent(t)
		end()
		time.Sleep(time.Hour)
		if state := s.State(crashNode); state != ledger.Swapped {
			t.Errorf("%s", state)
		}
		s.SeenInMain(crashNode, "2.0")
		synctest.Wait()
		if state := s.State(crashNode); state != ledger.Swapped {
			t.Errorf("%s after an event in nobody's time", state)
		}
	})
}

// What nodes say: hints move what is open, the main account proves, and a node
// that was never met gets no record.
func TestHints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, &memstore.Memory{}, 0)
		defer func() { s.stop() }()

		s.Answered("invented")
		s.Upgraded("invented", "2.0")
		s.SeenInMain("invented", "2.0")
		synctest.Wait()
		if _, err := s.store.Get(t.Context(), "invented"); !errors.Is(err, ledger.ErrNotFound) {
			t.Errorf("a node that never answered a call has a record: %v", err)
		}

		s.sent(t)
		s.SeenInMain(crashNode, "2.0")
		synctest.Wait()
		if len(s.verdicts) != 1 || s.verdicts[0].Outcome != ledger.OutcomeProved || s.State(crashNode) != ledger.Idle {
			t.Errorf("verdicts %+v, state %s", s.verdicts, s.State(crashNode))
		}
		if c := s.Candidates(); len(c) != 1 || c[0].Version != "2.0" || c[0].Proved != 1 {
			t.Errorf("candidates %+v", c)
		}
	})
}

// A record that cannot be read is no reason not to start.
func TestDamagedRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := &memstore.Memory{}
		s := newSite(t, memory, 0)
		s.sent(t)
		s.stop()
		memory.Damage(crashNode, []byte("{"))

		s = newSite(t, memory, 0)
		defer func() { s.stop() }()
		if s.gauge(t, "ledger_errors_total") == 0 {
			t.Error("it is not counted")
		}
		if res := s.apply(t, ledger.Inventory{Version: "2.0"}); res.Record.State != ledger.Idle {
			t.Errorf("met anew as %s", res.Record.State)
		}
	})
}
