package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/sirupsen/logrus"

	"github.com/choria-provisioner/provisioner/election"
	"github.com/choria-provisioner/provisioner/host"
	"github.com/choria-provisioner/provisioner/metrics"
)

// site is a fleet over nodes of a test.
type site struct {
	*Fleet
	gate    *election.Gate
	metrics *metrics.Metrics

	mu          sync.Mutex
	found       []string
	discoveries int
	discoverErr error
	passes      map[string]int
	provision   Provisioner
}

func newSite(workers int, provision Provisioner) *site {
	s := &site{gate: election.NewGate(), metrics: metrics.New("test"), passes: map[string]int{}, provision: provision}
	logger := logrus.New()
	logger.SetOutput(io.Discard)
	s.Fleet = New(Config{
		Discover: func(context.Context) ([]string, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.discoveries++
			return slices.Clone(s.found), s.discoverErr
		},
		Provision: func(ctx context.Context, identity string, slot host.Slot) (host.Outcome, error) {
			s.mu.Lock()
			s.passes[identity]++
			s.mu.Unlock()
			return s.provision(ctx, identity, slot)
		},
		Begin:    func(context.Context) error { return nil },
		Found:    func(string) {},
		Report:   func(Pass) {},
		Gate:     s.gate,
		Metrics:  s.metrics,
		Log:      logger.WithField("component", "fleet"),
		Workers:  workers,
		Interval: time.Minute,
	})

	return s
}

// worked is how often the node was worked on.
func (s *site) worked(identity string) int {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.passes[identity]
}

func provisioned(context.Context, string, host.Slot) (host.Outcome, error) {
	return host.Outcome{Result: host.Provisioned}, nil
}

// run runs the fleet for d of the bubble's time, then stops it.
func (s *site) run(t *testing.T, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() { s.Run(ctx) })
	time.Sleep(d)
	cancel()
	done.Wait()
}

// What becomes of a node after each way its pass can end: how often it is
// worked on in the five minutes in which each minute's discovery finds it.
func TestAfterAPass(t *testing.T) {
	for _, tc := range []struct {
		name    string
		outcome host.Outcome
		err     error
		passes  int
		counter func(*metrics.Metrics) float64
		want    float64
	}{
		{
			name: "provisioned", outcome: host.Outcome{Result: host.Provisioned}, passes: 5,
			counter: func(m *metrics.Metrics) float64 { return testutil.ToFloat64(m.Provisioned) }, want: 5,
		},
		{
			name: "failed", err: errors.New("disk full"), passes: 5,
			counter: func(m *metrics.Metrics) float64 { return testutil.ToFloat64(m.ProvisionErrors) }, want: 5,
		},
		{
			name: "deferred until found again", outcome: host.Outcome{Result: host.Deferred}, passes: 5,
			counter: func(m *metrics.Metrics) float64 { return testutil.ToFloat64(m.Deferred) }, want: 5,
		},
		{
			name: "deferred for two minutes", outcome: host.Outcome{Result: host.Deferred, RetryAfter: 130 * time.Second}, passes: 3,
			counter: func(m *metrics.Metrics) float64 { return testutil.ToFloat64(m.ProvisionErrors) }, want: 0,
		},
		{
			name: "sent a version", outcome: host.Outcome{Result: host.UpgradeSent, RetryAfter: 20 * time.Second}, passes: 5,
			counter: func(m *metrics.Metrics) float64 { return testutil.ToFloat64(m.Provisioned) }, want: 0,
		},
		{
			name: "looked at during its update", outcome: host.Outcome{Result: host.Updating, RetryAfter: 20 * time.Second}, passes: 15,
			counter: func(m *metrics.Metrics) float64 { return testutil.ToFloat64(m.Provisioned) }, want: 0,
		},
		{
			name: "locked by another", err: host.ErrLocked, passes: 10,
			counter: func(m *metrics.Metrics) float64 { return testutil.ToFloat64(m.ProvisionErrors) }, want: 0,
		},
		{
			name: "twins", err: host.ErrTwins, passes: 3,
			counter: func(m *metrics.Metrics) float64 { return testutil.ToFloat64(m.ProvisionErrors) }, want: 3,
		},
		{
			name: "helper down", err: host.ErrHelperUnavailable, passes: 5,
			counter: func(m *metrics.Metrics) float64 { return testutil.ToFloat64(m.ProvisionErrors) }, want: 0,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSite(2, func(context.Context, string, host.Slot) (host.Outcome, error) { return tc.outcome, tc.err })
				s.found = []string{"n1"}
				s.gate.Open()
				s.run(t, 5*time.Minute-time.Second)

				if s.worked("n1") != tc.passes {
					t.Errorf("%d passes, want %d", s.worked("n1"), tc.passes)
				}
				if got := tc.counter(s.metrics); got != tc.want {
					t.Errorf("the counter is %v, want %v", got, tc.want)
				}
			})
		})
	}
}

// A node in its restart splay is found by the discovery of the same minute.
func TestFinishedNodeIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(2, provisioned)
		s.gate.Open()
		ctx, cancel := context.WithCancel(t.Context())
		var done sync.WaitGroup
		done.Go(func() { s.Run(ctx) })
		for range 59 {
			s.Announced("n1")
			time.Sleep(time.Second)
		}
		synctest.Wait()
		if s.worked("n1") != 1 {
			t.Errorf("%d passes in the first minute, want 1", s.worked("n1"))
		}
		time.Sleep(2 * time.Second)
		s.Announced("n1")
		synctest.Wait()
		if s.worked("n1") != 2 {
			t.Errorf("%d passes, a fresh event after 60 s counts", s.worked("n1"))
		}
		cancel()
		done.Wait()
	})
}

// Paused: nothing is discovered or announced. Losing the lease cancels what is
// being done and empties the queue.
func TestPaused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cancelled atomic.Int32
		s := newSite(1, func(ctx context.Context, _ string, _ host.Slot) (host.Outcome, error) {
			<-ctx.Done()
			cancelled.Add(1)
			return host.Outcome{}, context.Cause(ctx)
		})
		s.found = []string{"n1", "n2", "n3"}
		ctx, cancel := context.WithCancel(t.Context())
		var done sync.WaitGroup
		done.Go(func() { s.Run(ctx) })

		time.Sleep(10 * time.Minute)
		s.Announced("n4")
		if s.discoveries != 0 || len(s.passes) != 0 {
			t.Errorf("%d discoveries and passes %v while paused", s.discoveries, s.passes)
		}
		s.gate.Open()
		time.Sleep(time.Second)
		s.gate.Pause("the lease is lost")
		synctest.Wait()
		if cancelled.Load() != 1 || len(s.passes) != 1 || s.worked("n4") != 0 {
			t.Errorf("%d cancelled, passes %v: want the one in flight, no more", cancelled.Load(), s.passes)
		}
		if waiting, _, all := s.queue.counts(); waiting != 0 || all != 0 {
			t.Errorf("%d wait of %d after the lease was lost", waiting, all)
		}
		if got := testutil.ToFloat64(s.metrics.ProvisionErrors); got != 0 {
			t.Errorf("%v provision errors, a lost lease is none", got)
		}
		cancel()
		done.Wait()
	})
}

// More nodes than there is room for: none is forgotten, intake never blocks.
func TestOverfullQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(4, func(context.Context, string, host.Slot) (host.Outcome, error) {
			time.Sleep(10 * time.Millisecond)
			return host.Outcome{Result: host.Provisioned}, nil
		})
		const nodes = queueLimit + 5000
		for i := range nodes {
			s.found = append(s.found, fmt.Sprintf("n%d", i))
		}
		s.gate.Open()
		s.run(t, 75*time.Second)

		if len(s.passes) != nodes {
			t.Errorf("%d of %d nodes were worked on", len(s.passes), nodes)
		}
		if testutil.ToFloat64(s.metrics.QueueRefusals) == 0 {
			t.Error("refusals were not counted")
		}
	})
}

func TestDiscoveryErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(1, provisioned)
		s.discoverErr = errors.New("no broker")
		s.gate.Open()
		s.run(t, 3*time.Minute-time.Second)
		if got := testutil.ToFloat64(s.metrics.DiscoveryErrors); got != 3 || testutil.ToFloat64(s.metrics.DiscoverCycles) != 3 {
			t.Errorf("%v discovery errors, want one a cycle: 3", got)
		}
	})
}

func TestPanicIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(1, func(context.Context, string, host.Slot) (host.Outcome, error) { panic("boom") })
		s.found = []string{"n1"}
		s.gate.Open()
		s.run(t, time.Second)
		if got := testutil.ToFloat64(s.metrics.ProvisionErrors); got != 1 {
			t.Errorf("%v provision errors, want 1", got)
		}
	})
}

func TestPanicInASlowCallGivesItsPlaceBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(1, func(_ context.Context, _ string, slot host.Slot) (host.Outcome, error) {
			slot.Lend(2 * time.Second)
			time.Sleep(10 * time.Second)
			panic("boom")
		})
		s.found = []string{"a", "b", "c"}
		s.gate.Open()
		s.run(t, 30*time.Second)
		if !s.slots.outside.TryAcquire(outsidePerWorker) {
			t.Error("a place outside is lost")
		}
		if !s.slots.workers.TryAcquire(1) {
			t.Error("a worker is lost")
		}
	})
}

// Silent nodes lend their workers, and where there is no more room for them they
// are sent away: with two workers and fifty silent nodes the healthy ones do not
// wait for them.
func TestSilentNodesDoNotHoldWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var healthyDone time.Time
		var left atomic.Int32
		left.Store(50)
		began := time.Now()
		s := newSite(2, func(ctx context.Context, identity string, slot host.Slot) (host.Outcome, error) {
			silent := strings.HasPrefix(identity, "silent")
			back := slot.Lend(2 * time.Second)
			if silent {
				select {
				case <-time.After(110 * time.Second):
				case <-ctx.Done():
					return host.Outcome{}, errors.Join(context.Cause(ctx), back(ctx))
				}
			}
			if err := back(ctx); err != nil {
				return host.Outcome{}, err
			}
			if silent {
				return host.Outcome{}, host.ErrNotAnswered
			}
			if left.Add(-1) == 0 {
				healthyDone = time.Now()
			}
			return host.Outcome{Result: host.Provisioned}, nil
		})
		for i := range 50 {
			s.found = append(s.found, fmt.Sprintf("silent%d", i))
		}
		for i := range 50 {
			s.found = append(s.found, fmt.Sprintf("healthy%d", i))
		}
		s.gate.Open()
		s.run(t, 3*time.Minute)

		if took := healthyDone.Sub(began); healthyDone.IsZero() || took > 10*time.Second {
			t.Errorf("the healthy nodes took %v, %d are left: 50 silent ones, more than there is room for, should cost seconds", took, left.Load())
		}
		if got := testutil.ToFloat64(s.metrics.BusyWorkers); got != 0 {
			t.Errorf("busy_workers is %v at the end", got)
		}
	})
}

func TestCheckIdentity(t *testing.T) {
	for _, tc := range []struct {
		identity string
		good     bool
	}{
		{"n1.example.net", true},
		{"N1_x-y", true},
		{"-leading", true},
		{"100%", true},
		{"bücher.example.net", true},
		{strings.Repeat("a", 253), true},
		{strings.Repeat("a", 254), false},
		{"", false},
		{"a b", false},
		{"a\r\nPUB x 1\r\nb", false},
		{"a\u00a0b", false},
		{"*", false},
		{"a.*", false},
		{"a.>", false},
		{".a", false},
		{"a.", false},
		{"a..b", false},
		{"a\x00", false},
		{"\xff", false},
	} {
		if err := checkIdentity(tc.identity); (err == nil) != tc.good {
			t.Errorf("%q: error %v, good is %v", tc.identity, err, tc.good)
		}
	}
}

// Two machines of one name answer discovery: neither is worked on, it is said
// once, and one that is alone again for two intervals is.
func TestTwinsAreHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(2, provisioned)
		s.found = []string{"twin", "n1", "twin"}
		s.gate.Open()
		ctx, cancel := context.WithCancel(t.Context())
		var done sync.WaitGroup
		done.Go(func() { s.Run(ctx) })

		time.Sleep(5*time.Minute + time.Second)
		s.Announced("twin")
		synctest.Wait()
		if s.worked("twin") != 0 || s.worked("n1") == 0 {
			t.Error("twins must be left alone, the others not")
		}
		if got := testutil.ToFloat64(s.metrics.Twins); got != 1 {
			t.Errorf("twins_total is %v, want it said once", got)
		}

		s.mu.Lock()
		s.found = []string{"twin"}
		s.mu.Unlock()
		time.Sleep(time.Minute + 30*time.Second)
		if s.worked("twin") != 0 {
			t.Error("it was alone for one interval only")
		}
		time.Sleep(time.Minute)
		if s.worked("twin") != 1 {
			t.Errorf("%d passes after it was alone for two intervals, want 1", s.worked("twin"))
		}
		cancel()
		done.Wait()
	})
}

// A second reply that comes after its call ended holds the identity too.
func TestDoubt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(2, provisioned)
		s.gate.Open()
		s.Doubt("n1", "late")
		if !s.Doubted("n1") || s.Doubted("n2") {
			t.Error("n1 alone is to be held")
		}
		if got := s.add("n1", discovered); got != held {
			t.Errorf("adding a held identity answers %d", got)
		}
		time.Sleep(2 * time.Minute)
		if s.Doubted("n1") {
			t.Error("n1 is held for longer than two intervals")
		}
		for i := range heldLimit + 10 {
			s.Doubt(fmt.Sprintf("n%d", i), "late")
		}
		if got := len(s.twins.held); got != heldLimit {
			t.Errorf("%d identities are held, want no more than %d", got, heldLimit)
		}
	})
}

// Events for names that do not exist: a bounded number is called, those that are
// there are told from them by a discovery, and none of these waits long.
func TestInventedNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		calling, most := 0, 0
		var healthyDone time.Time
		left := 100
		s := newSite(8, func(ctx context.Context, identity string, slot host.Slot) (host.Outcome, error) {
			back := slot.Lend(2 * time.Second)
			if strings.HasPrefix(identity, "invented") {
				mu.Lock()
				calling++
				most = max(most, calling)
				mu.Unlock()
				select {
				case <-time.After(115 * time.Second):
				case <-ctx.Done():
				}
				mu.Lock()
				calling--
				mu.Unlock()
				return host.Outcome{}, errors.Join(host.ErrNotAnswered, context.Cause(ctx), back(ctx))
			}
			time.Sleep(100 * time.Millisecond)
			if err := back(ctx); err != nil {
				return host.Outcome{}, err
			}
			mu.Lock()
			defer mu.Unlock()
			if left--; left == 0 {
				healthyDone = time.Now()
			}
			return host.Outcome{Result: host.Provisioned}, nil
		})
		s.gate.Open()
		ctx, cancel := context.WithCancel(t.Context())
		var done sync.WaitGroup
		done.Go(func() { s.Run(ctx) })
		synctest.Wait()

		for i := range 100_000 {
			s.Announced(fmt.Sprintf("invented%d", i))
		}
		s.mu.Lock()
		for i := range 100 {
			s.found = append(s.found, fmt.Sprintf("healthy%d", i))
		}
		s.mu.Unlock()
		began := time.Now()
		for i := range 100 {
			s.Announced(fmt.Sprintf("healthy%d", i)) // behind all the others, or refused
		}
		time.Sleep(30 * time.Second)
		mu.Lock()
		if took := healthyDone.Sub(began); healthyDone.IsZero() || took > 15*time.Second {
			t.Errorf("the healthy nodes took %v, %d are left", took, left)
		}
		if most > unprovenLimit {
			t.Errorf("%d invented nodes were called at once, want no more than %d", most, unprovenLimit)
		}
		mu.Unlock()
		if waiting, _, _ := s.queue.counts(); waiting > queueLimit {
			t.Errorf("%d nodes wait", waiting)
		}
		cancel()
		done.Wait()
		if s.queue.unproven != 0 {
			t.Errorf("%d nodes count as unproven at the end", s.queue.unproven)
		}
	})
}
