package election

import (
	"context"
	"errors"
	"sync"
	"time"
)

// errExpired means that the lease ran out before it was renewed.
var errExpired = errors.New("the lease ran out before it could be renewed")

// lease is this member's hold on the election's key. It outlives connections
// and go-choria's election, which keeps to itself the revision that is needed
// to give the lease back.
type lease struct {
	now func() time.Time

	// writing is held while a write is under way, which can be seconds; state
	// is never held for long.
	writing sync.Mutex
	state   sync.Mutex

	bucket   *bucket
	revision uint64 // of our entry, 0 when we have none
	epoch    uint64 // the revision at which our hold began
	from     time.Time
	won      bool   // the election has confirmed the hold
	handed   bool   // the member before us gave the lease back
	doubt    string // why it is not certain that the hold goes on
	unsure   *write // sent, never answered: it may have been stored
	sentAt   time.Time
}

// use makes b the bucket of the following writes. A hold goes on if it is the
// same bucket, reached over another connection.
func (l *lease) use(b *bucket) {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.state.Lock()
	defer l.state.Unlock()

	if l.bucket != nil && !l.bucket.created.Equal(b.created) {
		l.drop()
		l.unsure = nil
	}
	l.bucket = b
}

// drop forgets the hold, but not a write that may have renewed it; state is
// held.
func (l *lease) drop() {
	l.revision, l.epoch, l.won, l.handed, l.doubt = 0, 0, false, false, ""
}

// expired looks at both clocks: the monotonic one stands still while the
// machine is suspended, the wall clock may be set back. state is held.
func (l *lease) expired(from time.Time) bool {
	now, ttl := l.now(), l.bucket.ttl

	return now.Sub(from) >= ttl || now.Round(0).Sub(from.Round(0)) >= ttl
}

// standing is what is known of the hold.
type standing struct {
	held, won, handed bool
	doubt             string
	epoch             uint64
	created           time.Time // of the bucket's stream
}

// leads says whether this member is the leader and may act as one.
func (s standing) leads() bool { return s.held && s.won && s.doubt == "" }

// standing drops a hold that has run out.
func (l *lease) standing() standing {
	l.state.Lock()
	defer l.state.Unlock()

	if l.revision == 0 {
		return standing{}
	}
	if l.expired(l.from) {
		l.drop()
		return standing{}
	}

	return standing{held: true, won: l.won, handed: l.handed, doubt: l.doubt, epoch: l.epoch, created: l.bucket.created}
}

// valid is for the gate.
func (l *lease) valid() bool { return l.standing().leads() }

// confirm records that the election was won.
func (l *lease) confirm() {
	l.state.Lock()
	defer l.state.Unlock()

	l.won = l.revision != 0
	l.handed = false
}

// question records why the hold may be over. A renewal clears it.
func (l *lease) question(why string) {
	l.state.Lock()
	defer l.state.Unlock()

	if l.revision != 0 {
		l.doubt = why
	}
}

// acquire takes the lease, or renews one that is still held: the election was
// started anew, or gave up after a renewal that was not answered. errRefused
// means that someone else holds it.
func (l *lease) acquire(ctx context.Context, value []byte) error {
	l.writing.Lock()
	defer l.writing.Unlock()

	if err := l.settle(ctx); err != nil {
		return err
	}
	if l.standing().held {
		return l.put(ctx, newWrite(l.held(), value))
	}

	err := l.put(ctx, newWrite(0, value))
	if !errors.Is(err, errRefused) {
		return err
	}
	marker, ok := l.bucket.marked(ctx)
	if !ok {
		return err
	}

	err = l.put(ctx, newWrite(marker, value))
	if err == nil {
		l.state.Lock()
		l.handed = true
		l.state.Unlock()
	}

	return err
}

// renew extends the lease. errRefused or errExpired mean that it is lost; it is
// then to be acquired and won anew, even if the last renewal, not answered,
// went through.
func (l *lease) renew(ctx context.Context, value []byte) error {
	l.writing.Lock()
	defer l.writing.Unlock()

	if !l.standing().held {
		return errExpired
	}
	if err := l.settle(ctx); err != nil {
		return err
	}
	if !l.standing().held {
		return errRefused
	}

	return l.put(ctx, newWrite(l.held(), value))
}

func (l *lease) held() uint64 {
	l.state.Lock()
	defer l.state.Unlock()

	return l.revision
}

// put sends w and takes over its outcome; writing is held.
func (l *lease) put(ctx context.Context, w *write) error {
	return l.outcome(ctx, w, l.now())
}

// settle finds out what became of a write that was not answered, by sending it
// again; its error says that there is still no answer. writing is held.
func (l *lease) settle(ctx context.Context) error {
	l.state.Lock()
	w, sent := l.unsure, l.sentAt
	if w != nil && l.expired(sent) {
		w, l.unsure = nil, nil
	}
	l.state.Unlock()
	if w == nil {
		return nil
	}

	err := l.outcome(ctx, w, sent)
	if errors.Is(err, errRefused) {
		return nil
	}

	return err
}

// outcome sends w, which was first sent at from, and records what came of it.
// The lease counts from the sending: the stream stored the entry later.
func (l *lease) outcome(ctx context.Context, w *write, from time.Time) error {
	revision, err := l.bucket.put(ctx, w)

	l.state.Lock()
	defer l.state.Unlock()
	switch {
	case err == nil:
		if l.revision == 0 {
			l.epoch = revision
		}
		l.revision, l.from, l.doubt, l.unsure = revision, from, "", nil
		if l.expired(from) {
			l.drop()
			return errExpired
		}
	case errors.Is(err, errRefused):
		l.drop()
		l.unsure = nil
	default:
		l.unsure, l.sentAt = w, from
		if l.revision != 0 {
			l.doubt = "the renewal of the lease was not answered: " + err.Error()
		}
	}

	return err
}

// release gives the lease back: it deletes the key if our entry is its last.
// Without a hold it does nothing.
func (l *lease) release(ctx context.Context) error {
	l.writing.Lock()
	defer l.writing.Unlock()

	l.state.Lock()
	known := l.bucket != nil
	l.state.Unlock()
	if !known {
		return nil
	}
	if err := l.settle(ctx); err != nil {
		return err
	}
	if !l.standing().held {
		return nil
	}

	_, err := l.bucket.put(ctx, newDelete(l.held()))
	l.state.Lock()
	l.drop()
	l.state.Unlock()

	return err
}
