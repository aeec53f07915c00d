package election

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"
)

// ballot is the lease as the bucket of go-choria's election, for as long as ctx
// lasts.
type ballot struct {
	nats.KeyValue

	ctx   context.Context
	lease *lease
	ttl   nats.KeyValueStatus
	wrote func(error) // called after each write
}

// Status implements nats.KeyValue with what is known already: go-choria asks
// for the bucket's TTL, without end if it gets no answer.
func (b *ballot) Status() (nats.KeyValueStatus, error) { return b.ttl, nil }

// Create implements nats.KeyValue.
func (b *ballot) Create(_ string, value []byte) (uint64, error) {
	return b.done(b.lease.acquire(b.ctx, value))
}

// Update implements nats.KeyValue. The revision that counts is the lease's,
// which is also renewed outside of the election.
func (b *ballot) Update(_ string, value []byte, _ uint64) (uint64, error) {
	return b.done(b.lease.renew(b.ctx, value))
}

func (b *ballot) done(err error) (uint64, error) {
	b.wrote(err)
	if err != nil {
		return 0, err
	}

	return b.lease.held(), nil
}

// confirmSoon is when the hold on a lease that was given back is confirmed: its
// former holder has stood down already.
const confirmSoon = 500 * time.Millisecond

// pace is how long go-choria's election waits between campaigns.
type pace struct {
	lease *lease
	ttl   time.Duration
}

// Duration implements the election's Backoff.
func (p pace) Duration(int) time.Duration {
	// As go-choria without a backoff. A member is leader from the second
	// campaign on, when any former leader has found out that it no longer is.
	renewal := p.ttl * 3 / 4

	switch s := p.lease.standing(); {
	case s.held && s.handed:
		return min(renewal, confirmSoon)
	case s.held:
		return renewal
	default:
		// Sooner than go-choria: a lease that is given back is taken within
		// seconds, not within most of a minute.
		return min(renewal, max(p.ttl/12, time.Second), 5*time.Second)
	}
}
