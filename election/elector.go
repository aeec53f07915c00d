// Package election makes one of several provisioners the leader, and holds the
// gate that lets only the leader talk to nodes.
//
// Leadership is a lease on one key of the Choria Streams bucket
// CHORIA_LEADER_ELECTION, campaigned for by go-choria's election, so that older
// provisioners and this one exclude one another.
package election

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/choria-io/go-choria/backoff"
	streams "github.com/choria-io/go-choria/providers/election/streams"
	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"
)

const (
	// watchInterval is how often a leader looks at its lease and connection
	// even if nothing told it to.
	watchInterval = 250 * time.Millisecond
	// remindInterval is how often a fault that stays is logged again.
	remindInterval = time.Minute
	// releaseTimeout bounds giving the lease back; the daemon has 2 s to end.
	releaseTimeout = time.Second
)

// Config is what an Elector needs. Only OnWon, OnLost and Now may be empty.
type Config struct {
	// Identity is the member's name, the identity of the choria client.
	Identity string
	// Connect returns a connection to campaign over. It is called again when
	// that one was closed, or when the bucket could not be used over it. The
	// connection stays the caller's, who keeps it open until Run has returned:
	// the lease is given back over it.
	Connect func(ctx context.Context) (*nats.Conn, error)
	// Gate is open while this member leads. Nobody else opens or pauses it.
	Gate *Gate
	// OnWon is called after the gate opened. It must return soon, and not call
	// the Elector's Run.
	OnWon func()
	// OnLost is called after the gate paused, before a lease is given back. It
	// must return soon: at shutdown the lease waits for it.
	OnLost func()
	// Log gets wins, losses, and every reason why nobody can be elected.
	Log *logrus.Entry
	// Now is the clock of the lease; time.Now when nil.
	Now func() time.Time
}

// Status is what an Elector knows of its own part in the election.
type Status struct {
	// Leader says whether this member leads.
	Leader bool
	// Epoch is the revision at which the leader's lease began, else 0. It
	// grows from leader to leader within one stream.
	Epoch uint64
	// Stream is when the bucket's stream was made, else zero: an epoch of a
	// younger stream outranks every one of an older.
	Stream time.Time
	// Led says whether somebody is known to lead: this member, or the one whose
	// lease has refused all of this member's writes for longer than a lease lasts.
	// One that was left behind refuses them for no longer than that.
	Led bool
	// Reason says why this member does not lead.
	Reason string
	// Err is why it cannot take part; a member that waits its turn has none.
	Err error
	// Since is when Leader last changed, or when Run began.
	Since time.Time
}

// Elector takes part in the election for as long as Run runs.
type Elector struct {
	cfg   Config
	lease *lease

	// turn orders changes of leadership with their callbacks; mu is held only
	// to read and write what Status returns.
	turn     sync.Mutex
	nc       *nats.Conn // nil while there is no campaign
	stopping bool
	err      error     // why there is no campaign, or what the last write ended with
	said     time.Time // when err was logged last
	ttl      time.Duration
	// refused is when the first of the writes was refused, and refusedFor how long
	// after it the last one was; zero when the last one was not.
	refused    time.Time
	refusedFor time.Duration

	mu     sync.Mutex
	status Status
}

// New makes an Elector. Its gate stays as it is until Run.
func New(cfg Config) *Elector {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.OnWon == nil {
		cfg.OnWon = func() {}
	}
	if cfg.OnLost == nil {
		cfg.OnLost = func() {}
	}

	return &Elector{cfg: cfg, lease: &lease{now: cfg.Now}}
}

// Status returns what is known now.
func (e *Elector) Status() Status {
	e.mu.Lock()
	defer e.mu.Unlock()

	return e.status
}

// Run campaigns until ctx ends, then pauses the gate and gives the lease back,
// within about a second. Whatever keeps it from campaigning is logged, and
// tried again after a while, with the gate paused.
func (e *Elector) Run(ctx context.Context) {
	e.mu.Lock()
	e.status = Status{Since: e.cfg.Now()}
	e.mu.Unlock()
	e.turn.Lock()
	e.stopping, e.err = false, nil
	e.turn.Unlock()
	e.align()

	for try := 0; ; try++ {
		begun, err := e.campaign(ctx)
		if ctx.Err() != nil {
			break
		}
		if begun {
			try = 0
		}
		wait := backoff.TwentySec.Duration(try)
		e.cfg.Log.Errorf("Cannot take part in the election, trying again in %v: %v", wait.Round(time.Millisecond), err)
		if backoff.TwentySec.Sleep(ctx, wait) != nil {
			break
		}
	}

	e.stop()
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	if err := e.lease.release(bounded); err != nil {
		e.cfg.Log.Warnf("Could not give the lease back, another provisioner takes over when it runs out: %v", err)
	}
}

func (e *Elector) stop() {
	e.turn.Lock()
	e.stopping = true
	e.turn.Unlock()
	e.align()
}

// campaign takes part over one connection until it is closed or ctx ends, and
// says whether it came as far as taking part.
func (e *Elector) campaign(ctx context.Context) (begun bool, err error) {
	defer func() { e.campaigning(nil, err) }()

	nc, err := e.cfg.Connect(ctx)
	if err != nil {
		return false, fmt.Errorf("connecting for the election: %w", err)
	}
	b, err := openBucket(ctx, nc)
	if err != nil {
		return false, err
	}
	defer b.close()
	e.lease.use(b)
	e.lease.question("the connection was replaced")
	e.turn.Lock()
	e.ttl = b.ttl
	e.turn.Unlock()
	e.campaigning(nc, nil)

	parent := ctx
	ctx, cancel := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer cancel()

	// Made anew for each try: a start that fails leaves go-choria's election
	// locked.
	member, err := streams.NewElection(e.cfg.Identity, key,
		&ballot{KeyValue: b.kv, ctx: ctx, lease: e.lease, ttl: b.status, wrote: e.wrote},
		streams.OnWon(func() {
			if ctx.Err() == nil {
				e.lease.confirm()
				e.align()
			}
		}),
		streams.WithBackoff(pace{lease: e.lease, ttl: b.ttl}),
		streams.WithDebug(e.cfg.Log.Debugf),
	)
	if err != nil {
		return false, fmt.Errorf("preparing the election: %w", err)
	}
	ended := make(chan error, 1)
	tasks.Go(func() { ended <- member.Start(ctx) })

	w := watch(nc)
	defer w.close()
	renewed := make(chan struct{}, 1)
	renewing := false
	for {
		if w.dropped() {
			e.lease.question("the connection was lost")
			e.refusal(false)
		}
		e.align()

		// go-choria's election would wait for its next campaign.
		if s := e.lease.standing(); s.held && s.doubt != "" && nc.IsConnected() && !renewing {
			renewing = true
			tasks.Go(func() {
				e.wrote(e.lease.renew(ctx, []byte(e.cfg.Identity)))
				renewed <- struct{}{}
			})
		}

		select {
		case <-parent.Done():
			e.stop()
			return true, context.Cause(parent)
		case err := <-ended:
			if err == nil {
				err = errors.New("it ended")
			}
			return false, fmt.Errorf("starting the election in bucket %s: %w", bucketName, err)
		case <-renewed:
			renewing = false
		case <-w.closed:
			return true, nats.ErrConnectionClosed
		case <-w.lost:
		case <-w.found:
		case <-w.tick.C:
			if nc.IsClosed() {
				return true, nats.ErrConnectionClosed
			}
		}
	}
}

// campaigning records the connection campaigned over, or why there is none.
func (e *Elector) campaigning(nc *nats.Conn, err error) {
	e.turn.Lock()
	e.nc, e.err = nc, err
	e.turn.Unlock()
	e.refusal(false)
	e.align()
}

// wrote is told how each write to the lease ended.
func (e *Elector) wrote(err error) {
	e.turn.Lock()
	if err != nil && !errors.Is(err, errRefused) && !errors.Is(err, context.Canceled) {
		err = fmt.Errorf("the lease in bucket %s could not be written: %w", bucketName, err)
		if e.err == nil || e.err.Error() != err.Error() || e.cfg.Now().Sub(e.said) >= remindInterval {
			e.cfg.Log.Warnf("Nobody can be elected from here: %v", err)
			e.said = e.cfg.Now()
		}
	}
	e.err = err
	e.turn.Unlock()
	e.refusal(errors.Is(err, errRefused))
	e.align()
}

// refusal records whether the last write was refused. What was refused before a
// connection was lost tells nothing: nobody has seen what went by meanwhile.
func (e *Elector) refusal(is bool) {
	e.turn.Lock()
	defer e.turn.Unlock()

	switch now := e.cfg.Now(); {
	case !is:
		e.refused, e.refusedFor = time.Time{}, 0
	case e.refused.IsZero():
		e.refused = now
	default:
		e.refusedFor = now.Sub(e.refused)
	}
}

// led tells whether another member is known to lead; turn is held.
func (e *Elector) led() bool {
	// A server may be late to remove what has run out.
	return !e.stopping && e.refusedFor > e.ttl+time.Second && e.nc != nil && e.nc.IsConnected()
}

// align brings gate, status and callbacks in line with the lease and the
// connection. Whatever changes one of these calls it, in any order.
func (e *Elector) align() {
	e.turn.Lock()
	defer e.turn.Unlock()

	s := e.lease.standing()
	leads := s.leads() && !e.stopping && e.nc != nil && e.nc.IsConnected()
	was := e.Status().Leader
	reason := e.reason(s)

	// A gate that found the lease over by itself may find it back by now, but
	// its sessions are gone.
	if was && (!leads || !e.cfg.Gate.IsOpen()) {
		e.cfg.Gate.Pause(reason)
		e.become(Status{Reason: reason, Err: e.fault()})
		e.cfg.Log.Warnf("No longer the leader: %s", reason)
		e.cfg.OnLost()
		was = false
	}

	switch {
	case leads && !was:
		// First, so that who finds the gate open finds the epoch too.
		e.become(Status{Leader: true, Led: true, Epoch: s.epoch, Stream: s.created})
		e.cfg.Gate.OpenWhile(e.lease.valid)
		e.cfg.Log.Warnf("Leader since epoch %d", s.epoch)
		e.cfg.OnWon()
	case !leads:
		e.cfg.Gate.Pause(reason)
		e.stay(reason)
	}
}

// become records a change of leadership.
func (e *Elector) become(s Status) {
	s.Since = e.cfg.Now()
	e.mu.Lock()
	e.status = s
	e.mu.Unlock()
}

// stay records why this member still does not lead.
func (e *Elector) stay(reason string) {
	e.mu.Lock()
	changed := e.status.Reason != reason
	e.status.Reason, e.status.Err = reason, e.fault()
	e.status.Led = e.led()
	e.mu.Unlock()

	if changed {
		e.cfg.Log.Warnf("Paused: %s", reason)
	}
}

// fault is what keeps this member from taking part; turn is held.
func (e *Elector) fault() error {
	if e.stopping || errors.Is(e.err, errRefused) || errors.Is(e.err, errExpired) {
		return nil
	}

	return e.err
}

// reason says why this member does not lead; turn is held.
func (e *Elector) reason(s standing) string {
	switch {
	case e.stopping:
		return "shutting down"
	case e.nc != nil && !e.nc.IsConnected():
		return "the connection was lost"
	case s.held && s.doubt != "":
		return s.doubt
	case s.held:
		return "elected, and waiting for a former leader to stand down"
	case errors.Is(e.err, errRefused):
		return "another provisioner leads"
	case e.err != nil:
		return e.err.Error()
	case e.Status().Leader:
		return "the lease ran out"
	default:
		return "no election yet"
	}
}
