// Package fleet finds the nodes that wait to be provisioned, queues them and
// has each provisioned by a worker.
package fleet

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/sirupsen/logrus"
	"golang.org/x/time/rate"

	"github.com/choria-provisioner/provisioner/election"
	"github.com/choria-provisioner/provisioner/host"
	"github.com/choria-provisioner/provisioner/metrics"
)

const (
	// queueLimit is how many nodes may wait for a worker. More than that is not
	// done within an interval; those refused are found again.
	queueLimit = 20_000
	// outsidePerWorker is how many slow nodes for each worker may wait for an
	// answer without one.
	outsidePerWorker = 8
	// unprovenLimit is how many nodes that were only announced may be called at
	// once before they have answered: events can be forged.
	unprovenLimit = 64
	// confirmAbove is how many waiting nodes that were only announced start a
	// discovery, which tells those that are there from invented ones; confirmPause
	// lies between two of these.
	confirmAbove = 200
	confirmPause = 5 * time.Second
	// finishedRest is how long a finished node is left alone: it is still there
	// during its restart splay.
	finishedRest = 60 * time.Second
	// failedRest keeps a node that fails at once from being tried at once.
	failedRest = 10 * time.Second
	// lockedRest is how long a node that another provisioner works on is left
	// alone. Its lock ends two minutes after the other's last call.
	lockedRest = 30 * time.Second
	// disconnectedRest spreads the nodes whose calls a dropped connection ended.
	disconnectedRest = 5 * time.Second
	// updatingRest is how long a node that updates itself is left alone at least.
	updatingRest = time.Second
	// ignoredPause lies between two lines about names that cannot be.
	ignoredPause = 10 * time.Second
	// gaugeInterval is how often the gauges are set.
	gaugeInterval = time.Second
)

// Pass is one pass over a node, at its end.
type Pass struct {
	Identity string
	Outcome  host.Outcome
	Err      error
	Duration time.Duration
}

// Provisioner provisions one node.
type Provisioner func(ctx context.Context, identity string, slot host.Slot) (host.Outcome, error)

// Config is what a fleet needs; every field is required.
type Config struct {
	// Discover finds the nodes that wait now.
	Discover func(ctx context.Context) ([]string, error)
	// Provision is called for one node at a time and many at once.
	Provision Provisioner
	// Begin is called before anything else whenever the gate has opened; an error
	// is the end of ctx.
	Begin func(ctx context.Context) error
	// Found is told of each node that answers discovery or announces itself.
	Found func(identity string)
	// Report is told of each pass, by many goroutines.
	Report  func(Pass)
	Gate    *election.Gate
	Metrics *metrics.Metrics
	Log     *logrus.Entry

	// Workers is how many nodes are provisioned at once.
	Workers int
	// Interval is the time between two discoveries.
	Interval time.Duration
}

// Fleet knows all nodes that wait.
type Fleet struct {
	cfg Config
	// ignored bounds what is said of names that cannot be: anybody can announce
	// any number of them.
	ignored rate.Sometimes
	// doubted and evicted pace what is said of identities that anybody can make up.
	doubted rate.Sometimes
	evicted rate.Sometimes
	queue   *queue
	slots   *slots
	twins   *twins
	// draining ends with Drain, ended is closed when Run returns.
	draining context.Context
	drain    context.CancelFunc
	ended    chan struct{}
	end      func()
}

// New returns a fleet that does nothing before Run.
func New(cfg Config) *Fleet {
	m := cfg.Metrics
	f := &Fleet{cfg: cfg, ignored: rate.Sometimes{First: 10, Interval: ignoredPause}, doubted: rate.Sometimes{First: 100, Interval: ignoredPause}, evicted: rate.Sometimes{Interval: time.Minute}, twins: newTwins(2 * cfg.Interval)}
	f.draining, f.drain = context.WithCancel(context.Background())
	f.ended = make(chan struct{})
	f.end = sync.OnceFunc(func() { close(f.ended) })
	f.slots = newSlots(cfg.Workers, outsidePerWorker*cfg.Workers, m.BusyWorkers.Add)
	f.queue = newQueue(queueLimit, unprovenLimit, 2*cfg.Interval, func(identity string) {
		m.StaleEntriesDropped.Inc()
		cfg.Log.Infof("Node %q waited longer than two intervals and is dropped, it is found again if it is still there", identity)
	})

	return f
}

// Run works whenever the gate is open, until ctx ends or the fleet was drained.
// It returns when no node is worked on any more.
func (f *Fleet) Run(ctx context.Context) {
	defer f.end()
	taking := f.undrained(ctx)
	for f.cfg.Gate.Wait(taking) == nil && taking.Err() == nil {
		session, cancel := f.cfg.Gate.Session(ctx)
		if f.cfg.Begin(session) == nil {
			f.work(session)
		}
		cancel()
		f.queue.clear()
		f.setGauges()
	}
}

// Drain begins no more nodes. It returns when those in work have ended, by
// themselves, and Run with them; the error is that of ctx, which ends the wait
// alone.
func (f *Fleet) Drain(ctx context.Context) error {
	f.drain()
	select {
	case <-f.ended:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// undrained is ctx that also ends with Drain. It is dropped with either.
func (f *Fleet) undrained(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(f.draining, cancel)
	context.AfterFunc(ctx, func() { stop() })

	return ctx
}

// work discovers and provisions until ctx ends or the fleet is drained.
func (f *Fleet) work(ctx context.Context) {
	var tasks sync.WaitGroup
	passes := ctx
	ctx = f.undrained(ctx)
	tasks.Go(func() { f.dispatch(ctx, passes) })
	defer tasks.Wait()

	gauges := time.NewTicker(gaugeInterval)
	defer gauges.Stop()
	cycle := time.NewTicker(f.cfg.Interval)
	defer cycle.Stop()

	f.discover(ctx)
	last := time.Now()
	for {
		due := false
		select {
		case <-ctx.Done():
			return
		case <-cycle.C:
			due = true
		case <-gauges.C:
			onlyAnnounced := f.setGauges()
			due = f.queue.drained() || onlyAnnounced >= confirmAbove && time.Since(last) >= confirmPause
		}
		if due {
			f.discover(ctx)
			last = time.Now()
		}
	}
}

func (f *Fleet) setGauges() (onlyAnnounced int) {
	waiting, onlyAnnounced, all := f.queue.counts()
	f.cfg.Metrics.WorkQueueEntries.Set(float64(waiting))
	f.cfg.Metrics.WaitingNodes.Set(float64(all))

	return onlyAnnounced
}

// discover queues the nodes that answer a broadcast.
func (f *Fleet) discover(ctx context.Context) {
	m := f.cfg.Metrics
	m.DiscoverCycles.Inc()

	nodes, err := f.cfg.Discover(ctx)
	if err != nil {
		if ctx.Err() == nil {
			m.DiscoveryErrors.Inc()
			f.cfg.Log.Errorf("Discovery failed, the next is in %v: %v", f.cfg.Interval, err)
		}
		return
	}
	m.DiscoverySucceeded(time.Now())

	answers := make(map[string]int, len(nodes))
	for _, identity := range nodes {
		answers[identity]++
	}
	count := 0
	for identity, n := range answers {
		if n > 1 {
			f.Doubt(identity, fmt.Sprintf("discovery was answered %d times", n))
		}
		if f.add(identity, discovered) == queued {
			m.Discovered.Inc()
			count++
		}
	}
	f.cfg.Log.Infof("Discovered %d nodes, %d of them new", len(nodes), count)
	f.setGauges()
}

// Announced takes a node that announced itself. It never blocks.
func (f *Fleet) Announced(identity string) {
	if !f.cfg.Gate.IsOpen() || f.draining.Err() != nil {
		return
	}
	if f.add(identity, announced) == queued {
		f.cfg.Metrics.EventDiscovered.Inc()
	}
}

// Doubt tells that more than one machine answered for identity. It is held, that
// is left alone, until for two intervals nobody told so again; a pass that has
// not sent a configuration yet ends.
func (f *Fleet) Doubt(identity, why string) {
	if checkIdentity(identity) != nil || !f.twins.seen(identity) {
		return
	}
	f.cfg.Metrics.Twins.Inc()
	f.doubted.Do(func() {
		f.cfg.Log.WithField("identity", identity).Errorf(
			"%s: two machines share this identity, or one answers in another's name; it is left alone until one alone answers for %v",
			why, f.twins.hold)
	})
}

// Doubted tells whether identity is held.
func (f *Fleet) Doubted(identity string) bool { return f.twins.holds(identity) }

func (f *Fleet) add(identity string, from source) added {
	if err := checkIdentity(identity); err != nil {
		f.ignored.Do(func() { f.cfg.Log.Warnf("A node is ignored, and others like it for %v: %v", ignoredPause, err) })
		return 0
	}
	if f.twins.holds(identity) {
		return held
	}

	f.cfg.Found(identity)
	result := f.queue.add(identity, from)
	if result == refused {
		f.cfg.Metrics.QueueRefusals.Inc()
	}

	return result
}

// maxIdentity is the longest identity in bytes: that of a DNS name.
const maxIdentity = 253

// checkIdentity refuses what could not be the last part of the one subject
// provisioning.node.<identity>.
func checkIdentity(identity string) error {
	switch {
	case identity == "":
		return errors.New("it has no identity")
	case len(identity) > maxIdentity:
		return fmt.Errorf("identity %.40q... has %d bytes, more than %d", identity, len(identity), maxIdentity)
	case !utf8.ValidString(identity):
		return fmt.Errorf("identity %q is no UTF-8", identity)
	case strings.ContainsAny(identity, "*>"), strings.ContainsFunc(identity, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }):
		return fmt.Errorf("identity %q holds white space, a control character, * or >", identity)
	case strings.HasPrefix(identity, "."), strings.HasSuffix(identity, "."), strings.Contains(identity, ".."):
		return fmt.Errorf("identity %q has an empty part", identity)
	}

	return nil
}

// dispatch hands nodes to workers until ctx ends, and returns when all are done.
// A pass ends early with passes alone.
func (f *Fleet) dispatch(ctx, passes context.Context) {
	var busy sync.WaitGroup
	defer busy.Wait()

	for {
		e, err := f.queue.next(ctx)
		if err != nil {
			return
		}
		if f.slots.acquire(ctx) != nil {
			f.queue.forget(e)
			return
		}
		busy.Go(func() { f.provision(passes, e) })
	}
}

// provision has one node provisioned, by a worker that was acquired, and decides
// what becomes of it.
func (f *Fleet) provision(ctx context.Context, e *entry) {
	ctx, evict := context.WithCancelCause(ctx)
	defer evict(nil)
	slot := &slot{
		pool:     f.slots,
		held:     true,
		answered: func() { f.queue.answered(e) },
		inTheWay: func() bool { return e.source == announced && f.queue.crowded() },
		evict:    evict,
	}
	defer slot.release()
	m, log := f.cfg.Metrics, f.cfg.Log.WithField("identity", e.identity)

	began := time.Now()
	outcome, err := f.guarded(ctx, e.identity, slot)
	took := time.Since(began)
	log = log.WithField("duration", took.Round(time.Millisecond).String())
	m.PassDone(string(outcome.Result), took)
	f.cfg.Report(Pass{Identity: e.identity, Outcome: outcome, Err: err, Duration: took})

	switch outcome.Result {
	case host.Cancelled:
		log.Infof("Provisioning ended: %v", context.Cause(ctx))
		f.queue.forget(e)
	case host.Locked:
		log.Infof("Another provisioner works on the node, looking again in %v", lockedRest)
		f.queue.rest(e, lockedRest, queueAgain)
	case host.Paused:
		f.queue.forget(e)
	case host.Disconnected:
		log.Warnf("Provisioning ended, trying again in %v: %v", disconnectedRest, err)
		f.queue.rest(e, disconnectedRest, queueAgain)
	case host.Evicted:
		log.Debugf("The node makes room for others, it is found again if it is still there: %v", err)
		f.evicted.Do(func() {
			f.cfg.Log.Warnf("Nodes are sent away because they do not answer and others wait: more names answer discovery, or announce themselves, than there are nodes (metric pass_seconds, result evicted)")
		})
		f.queue.rest(e, failedRest, finished)
	case host.HelperUnavailable:
		m.Deferred.Inc()
		log.Infof("The node waits for the helper, asking again in %v: %v", f.cfg.Interval, err)
		f.queue.rest(e, f.cfg.Interval, queueAgain)
	case host.Twins:
		m.ProvisionErrors.Inc()
		f.Doubt(e.identity, err.Error())
		f.queue.forget(e)
	case host.Deferred:
		m.Deferred.Inc()
		log.Infof("The helper deferred the node: %s", outcome.Reason)
		if outcome.RetryAfter > 0 {
			f.queue.rest(e, outcome.RetryAfter, queueAgain)
		} else {
			f.queue.rest(e, failedRest, findAgain)
		}
	case host.Shutdown:
		log.Infof("The node was told to shut down: %s", outcome.Reason)
		f.queue.rest(e, finishedRest, finished)
	case host.UpgradeSent:
		log.Infof("The node is left alone for its update: %s", outcome.Reason)
		f.queue.rest(e, max(outcome.RetryAfter, updatingRest), awaited)
	case host.Updating:
		log.Infof("The node is left alone for its update: %s", outcome.Reason)
		// It is there: it answered, and is looked at again when that says more.
		if outcome.RetryAfter > 0 {
			f.queue.rest(e, max(outcome.RetryAfter, updatingRest), queueAgain)
		} else {
			f.queue.rest(e, failedRest, findAgain)
		}
	case host.Refused:
		m.ProvisionErrors.Inc()
		log.Errorf("The node is not provisioned because of its version, looking again next cycle: %s", outcome.Reason)
		f.queue.rest(e, failedRest, findAgain)
	case host.Failed:
		m.ProvisionErrors.Inc()
		log.Errorf("Could not provision the node: %v", err)
		f.queue.rest(e, failedRest, findAgain)
	default:
		m.Provisioned.Inc()
		log.Infof("The node is provisioned")
		f.queue.rest(e, finishedRest, finished)
	}
}

// guarded turns a panic into an error, for no node may end the daemon, and an
// error into a result.
func (f *Fleet) guarded(ctx context.Context, identity string, slot host.Slot) (outcome host.Outcome, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic, please report it: %v\n%s", p, debug.Stack())
		}
		if err != nil {
			outcome.Result = host.Failure(ctx, err)
		}
	}()

	return f.cfg.Provision(ctx, identity, slot)
}
