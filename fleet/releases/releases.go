// Package releases keeps the ledger while this instance leads: it takes the
// ledger over, counts observed time, hears what nodes say of themselves, and
// sees to what the rules come to.
package releases

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/choria-io/go-choria/backoff"
	"github.com/sirupsen/logrus"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/choria-provisioner/provisioner/metrics"
	"github.com/choria-provisioner/provisioner/version/ledger"
)

const (
	// lookInterval is how often observed time is counted and what is due is seen
	// to; the clock counts no more than 5 s at a time.
	lookInterval = time.Second
	// saveInterval is how much observed time a crash can lose.
	saveInterval = 10 * time.Second
	// hintsAtOnce is how many events of nodes are recorded at once: the store
	// writes them together.
	hintsAtOnce = 64
	// farewell bounds the last write.
	farewell = 2 * time.Second
	// failurePause lies between two lines about what could not be recorded: while
	// the disk is full that is every node whose bound has passed, in every look.
	failurePause = 10 * time.Second
	// failureLasts is how long the ledger counts as one that cannot be written when
	// nothing more was tried: some discovery intervals.
	failureLasts = 5 * time.Minute
)

// Store is where records and counters are kept.
type Store interface {
	ledger.Store
	ledger.Counters
}

// Config is what the ledger needs; every field is required.
type Config struct {
	Store  Store
	Policy ledger.Policy
	// QuarantineAfter is after how many nodes that left a version or went dark
	// with it the version is sent to nobody; 0 is never.
	QuarantineAfter int
	// Listening tells whether a node that comes back would be seen now.
	Listening func() bool
	// Judged is told of every verdict.
	Judged  func(identity string, v ledger.Verdict)
	Metrics *metrics.Metrics
	Log     *logrus.Entry
}

// Releases is the ledger of the versions that nodes run.
type Releases struct {
	cfg    Config
	index  *ledger.Index
	keeper *ledger.Keeper
	clock  *ledger.Clock
	epoch  atomic.Uint64
	// session ends with the leadership; nil before the first.
	session atomic.Pointer[context.Context]
	hints   chan struct{}
	// unrecorded paces what is said of hints that could not be recorded.
	unrecorded rate.Sometimes
	// failed is when the ledger could not be written, nil when it can be.
	failed atomic.Pointer[time.Time]
	// owed are the replies to updates that could not be recorded, by identity. No
	// more are lost than with the process.
	owed sync.Map
}

// New reads the ledger.
func New(ctx context.Context, cfg Config) (*Releases, error) {
	r := &Releases{cfg: cfg, index: ledger.NewIndex(cfg.QuarantineAfter), hints: make(chan struct{}, hintsAtOnce), unrecorded: rate.Sometimes{Interval: failurePause}}
	observed, err := cfg.Store.Observed(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading the ledger: %w", err)
	}
	epoch, err := cfg.Store.Epoch(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading the ledger: %w", err)
	}
	r.epoch.Store(epoch)
	r.clock = ledger.NewClock(observed, time.Now)
	r.keeper = ledger.NewKeeper(cfg.Store, r.index, r.env, r.corrupt)
	if err := r.keeper.Load(ctx); err != nil {
		return nil, err
	}
	r.setGauges()

	return r, nil
}

// Keeper applies what people order.
func (r *Releases) Keeper() *ledger.Keeper { return r.keeper }

func (r *Releases) env() ledger.Env {
	return ledger.Env{Wall: time.Now(), Observed: r.clock.Observed(), Epoch: r.epoch.Load(), Policy: r.cfg.Policy}
}

func (r *Releases) corrupt(identity string, err error) {
	r.cfg.Metrics.LedgerErrors.Inc()
	r.cfg.Log.WithField("identity", identity).Errorf("The record of this node is set aside, it is met anew: %v", err)
}

// Begin takes the ledger over for a leadership that ends with ctx, and tries
// until that works. The error is that of ctx.
func (r *Releases) Begin(ctx context.Context) error {
	for try := 1; ; try++ {
		err := r.takeOver(ctx)
		if err == nil {
			r.session.Store(&ctx)
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		r.cfg.Metrics.LedgerErrors.Inc()
		r.cfg.Log.Errorf("Could not take the ledger over on try %d, nothing is provisioned before: %v", try, err)
		_ = backoff.FiveSec.TrySleep(ctx, try)
	}
}

func (r *Releases) takeOver(ctx context.Context) error {
	epoch, err := r.cfg.Store.BeginEpoch(ctx)
	if err != nil {
		return err
	}
	r.epoch.Store(epoch)
	for _, identity := range r.index.UnderWay() {
		if _, err := r.Apply(ctx, identity, ledger.Found{}); err != nil {
			return err
		}
	}

	return nil
}

// Run counts observed time and sees to what is due, whenever this instance
// leads, until ctx ends.
func (r *Releases) Run(ctx context.Context) {
	look := time.NewTicker(lookInterval)
	defer look.Stop()
	save := time.NewTicker(saveInterval)
	defer save.Stop()
	defer func() {
		r.clock.Listen(false)
		bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
		defer cancel()
		r.save(bye)
	}()

	for {
		select {
		case <-ctx.Done():
			return
		case <-save.C:
			r.save(ctx)
		case <-look.C:
			leads := r.leads()
			r.clock.Listen(leads && r.cfg.Listening() && r.remembers())
			if leads {
				r.tick(ctx)
			}
			r.setGauges()
		}
	}
}

func (r *Releases) leads() bool {
	session := r.session.Load()

	return session != nil && (*session).Err() == nil
}

// remembers tells whether what is seen can be recorded, as far as is known. A node
// that comes back while it cannot be would be judged as one that did not.
func (r *Releases) remembers() bool {
	failed := r.failed.Load()

	return failed == nil || time.Since(*failed) >= failureLasts
}

// save keeps the observed time; nothing is counted while another leads.
func (r *Releases) save(ctx context.Context) {
	if r.session.Load() == nil {
		return
	}
	err := r.cfg.Store.SaveObserved(ctx, r.epoch.Load(), r.clock.Observed())
	if err != nil && !errors.Is(err, ledger.ErrStaleEpoch) && ctx.Err() == nil {
		r.cfg.Metrics.LedgerErrors.Inc()
		r.cfg.Log.Errorf("Could not keep the observed time: %v", err)
	}
}

// tick sees to the nodes whose bound has passed. Where as many cannot be recorded
// as are tried at once, the others are left for the next look.
func (r *Releases) tick(ctx context.Context) {
	var ticks errgroup.Group
	ticks.SetLimit(hintsAtOnce)
	var failed atomic.Int64
	for _, identity := range r.index.Due(r.clock.Observed()) {
		if failed.Load() >= hintsAtOnce {
			break
		}
		ticks.Go(func() error {
			if r.hint(ctx, identity, ledger.Tick{}) != nil {
				failed.Add(1)
			}
			return nil
		})
	}
	_ = ticks.Wait()
}

func (r *Releases) setGauges() {
	m := r.cfg.Metrics
	m.TrialsRunning.Set(float64(r.index.OnTrial()))
	m.DarkNodes.Set(float64(r.index.InState(ledger.Dark)))
	m.HeldNodes.Set(float64(r.index.InState(ledger.Held)))
	m.QuarantinedVersions.Set(float64(r.index.Quarantined()))
}

// Apply implements host.Ledger. A reply to an update that cannot be recorded is
// before the node's next event is: without it one that took the update, or was
// broken by it, would be sent it again.
func (r *Releases) Apply(ctx context.Context, identity string, ev ledger.Event) (ledger.Result, error) {
	if reply, owes := r.owed.Load(identity); owes {
		if _, err := r.apply(ctx, identity, reply.(ledger.Reply)); err != nil {
			return ledger.Result{Next: ledger.NextLeave}, err
		}
		r.owed.CompareAndDelete(identity, reply)
	}

	res, err := r.apply(ctx, identity, ev)
	if reply, ok := ev.(ledger.Reply); ok && err != nil {
		r.owed.Store(identity, reply)
	}

	return res, err
}

// apply applies an event and sees to its alerts and verdicts.
func (r *Releases) apply(ctx context.Context, identity string, ev ledger.Event) (ledger.Result, error) {
	res, err := r.keeper.Apply(ctx, identity, ev)
	switch {
	case err == nil && res.Changed:
		r.failed.Store(nil)
	case err != nil:
		if !errors.Is(err, context.Canceled) && !errors.Is(err, ledger.ErrStaleEpoch) {
			r.cfg.Metrics.LedgerErrors.Inc()
			now := time.Now()
			r.failed.Store(&now)
		}
		return res, fmt.Errorf("ledger: %w", err)
	}

	log := r.cfg.Log.WithField("identity", identity)
	for _, e := range res.Effects {
		switch e := e.(type) {
		case ledger.Alert:
			log.Errorf("The node needs attention (%s): %s", e.Kind, e.Text)
		case ledger.Verdict:
			r.cfg.Metrics.Judged(e.Version, string(e.Outcome))
			log.Warnf("Version %s is judged %s: %s", e.Version, e.Outcome, e.Why)
			r.cfg.Judged(identity, e)
		}
	}

	return res, nil
}

// State implements host.Ledger.
func (r *Releases) State(identity string) ledger.State { return r.index.State(identity) }

// Candidates implements host.Ledger.
func (r *Releases) Candidates() []ledger.Candidate { return r.index.Candidates() }

// Answered takes a node that answered discovery or announced itself in
// provisioning mode. It never blocks: a hint that finds no place is dropped.
func (r *Releases) Answered(identity string) {
	switch r.index.State(identity) {
	case ledger.Verify, ledger.Swapped, ledger.Dark:
		r.try(identity, ledger.Answered{})
	}
}

// Upgraded takes a node's event of that type. It never blocks.
func (r *Releases) Upgraded(identity, version string) {
	switch r.index.State(identity) {
	case ledger.Intent, ledger.Verify:
		r.try(identity, ledger.Upgraded{Version: version})
	}
}

// Awaits tells whether to see a node in the main account says anything new.
func (r *Releases) Awaits(identity string) bool { return r.index.Awaited(identity) }

// SeenInMain takes a node that runs in the main account. It blocks while too
// many are being recorded: none may be lost.
func (r *Releases) SeenInMain(identity, version string) {
	session := r.session.Load()
	if session == nil || !r.index.Awaited(identity) {
		return
	}
	select {
	case r.hints <- struct{}{}:
	case <-(*session).Done():
		return
	}
	go r.place(*session, identity, ledger.SeenInMain{Version: version})
}

// try applies a hint in the background if there is a place.
func (r *Releases) try(identity string, ev ledger.Event) {
	session := r.session.Load()
	if session == nil {
		return
	}
	select {
	case r.hints <- struct{}{}:
	default:
		return
	}
	go r.place(*session, identity, ev)
}

// place applies a hint that has a place, and gives that back.
func (r *Releases) place(ctx context.Context, identity string, ev ledger.Event) {
	defer func() { <-r.hints }()
	_ = r.hint(ctx, identity, ev)
}

// hint applies what nobody waits for, and says so when that fails.
func (r *Releases) hint(ctx context.Context, identity string, ev ledger.Event) error {
	_, err := r.Apply(ctx, identity, ev)
	if err != nil && ctx.Err() == nil {
		r.unrecorded.Do(func() {
			r.cfg.Log.WithField("identity", identity).Errorf("Could not record a %T, others like it are only counted for %v (metric ledger_errors_total): %v", ev, failurePause, err)
		})
	}

	return err
}
