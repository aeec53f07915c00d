package fleet

import (
	"context"
	"crypto/sha256"
	"sync"
	"time"

	"github.com/choria-io/go-choria/lifecycle"
	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"
	"golang.org/x/time/rate"

	"github.com/choria-provisioner/provisioner/host"
)

const (
	// witnessDelay is how long an event waits for its double: that may come over
	// another connection, and from another server.
	witnessDelay = 2 * time.Second
	// witnessMemory is how long what was heard is remembered at least.
	witnessMemory = 10 * time.Second
	// witnessLimit is how many events may wait; what is more is passed over.
	witnessLimit = 20_000
	// heardLimit is how many digests are remembered, twice. Whoever waits may
	// publish hundreds of thousands a second; honest nodes that wait publish none of
	// these.
	heardLimit = 100_000
)

// Witness tells what nodes of the main account say of themselves from what
// waiting nodes say in their names: a broker lets the lifecycle events of its
// provisioning account into the main one (go-choria, broker/network,
// Server.setupAccounts), and whoever waits may publish any. It hears the provisioning
// account; what is heard there too comes from there.
type Witness struct {
	log *logrus.Entry
	// said and unsure pace what is said of events that are not believed.
	said   rate.Sometimes
	unsure rate.Sometimes

	mu sync.Mutex
	// since is when it began to hear without a gap; zero while it hears nothing.
	since time.Time
	// dropped is how many messages of the present subscriptions were lost.
	dropped func() int
	lost    int
	// heard are the digests of now and of the time before turned.
	heard, before map[[sha256.Size]byte]bool
	turned        time.Time
	// forgotten is until when what is heard may be one whose double was forgotten
	// too early.
	forgotten time.Time
	waiting   int
}

// NewWitness returns a witness that hears nothing before Run.
func NewWitness(log *logrus.Entry) *Witness {
	return &Witness{log: log, said: rate.Sometimes{Interval: ignoredPause}, unsure: rate.Sometimes{Interval: ignoredPause}, dropped: func() int { return 0 }}
}

// Run hears the events of component in the provisioning account, over whichever
// connection the network has, until ctx ends.
func (w *Witness) Run(ctx context.Context, network *host.Network, component string, types ...lifecycle.Type) {
	l := Listener{Network: network, Component: component, Types: types}
	for {
		session, err := network.Session(ctx)
		if err != nil {
			return
		}
		subs, err := l.subscribe(session, func(m *nats.Msg) { w.hear(sha256.Sum256(m.Data)) })
		if err == nil {
			// Not before the broker knows of it.
			err = session.Connector.Nats().FlushTimeout(witnessMemory)
		}
		if err == nil {
			w.listen(func() (dropped int) {
				for _, s := range subs {
					n, _ := s.Dropped()
					dropped += n
				}
				return dropped
			})
		} else if session.Context().Err() == nil {
			w.log.Errorf("Could not listen for forged events; nothing that nodes of the main account say is believed: %v", err)
		}

		select {
		case <-ctx.Done():
		case <-session.Context().Done():
		}
		w.deaf()
		if ctx.Err() != nil {
			return
		}
	}
}

func (w *Witness) listen(dropped func() int) {
	w.mu.Lock()
	defer w.mu.Unlock()

	w.since, w.dropped, w.lost = time.Now(), dropped, 0
}

func (w *Witness) deaf() {
	w.mu.Lock()
	defer w.mu.Unlock()

	w.since = time.Time{}
}

func (w *Witness) hear(digest [sha256.Size]byte) {
	w.mu.Lock()
	defer w.mu.Unlock()

	if len(w.heard) >= heardLimit {
		w.before, w.heard = nil, nil
		w.forgotten = time.Now().Add(witnessMemory)
	}
	if w.heard == nil || time.Since(w.turned) > witnessMemory {
		w.before, w.heard, w.turned = w.heard, map[[sha256.Size]byte]bool{}, time.Now()
	}
	w.heard[digest] = true
}

// Believe calls accept with an event of the main account a little later, unless
// it was heard in the provisioning account, or might have been.
func (w *Witness) Believe(e Event, accept func(Event)) {
	w.mu.Lock()
	defer w.mu.Unlock()

	if w.waiting >= witnessLimit {
		return
	}
	w.waiting++
	arrived := time.Now()
	time.AfterFunc(witnessDelay, func() {
		if w.doubts(e, arrived) {
			return
		}
		accept(e)
	})
}

func (w *Witness) doubts(e Event, arrived time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()

	w.waiting--
	if lost := w.dropped(); lost != w.lost && !w.since.IsZero() {
		w.lost, w.since = lost, time.Now()
	}
	switch {
	case w.heard[e.Digest], w.before[e.Digest]:
		w.said.Do(func() {
			w.log.WithField("identity", e.Identity).Errorf("A waiting node publishes that this one runs version %q in the fleet; that is not believed", e.Version)
		})
		return true
	case w.since.IsZero(), w.since.After(arrived), arrived.Before(w.forgotten):
		w.unsure.Do(func() {
			w.log.WithField("identity", e.Identity).Infof("The node says that it runs version %q in the fleet, which cannot be told from a forged event now, as others cannot; its next one counts", e.Version)
		})
		return true
	default:
		return false
	}
}
