package election

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/choria-provisioner/provisioner/election/internal/natstest"
)

// testTTL is never waited for here: the clock is moved.
const testTTL = time.Minute

// clock is a time.Now that can be moved on.
type clock struct{ ahead atomic.Int64 }

func (c *clock) now() time.Time       { return time.Now().Add(time.Duration(c.ahead.Load())) }
func (c *clock) move(d time.Duration) { c.ahead.Add(int64(d)) }

// member is a lease on a bucket of its own connection.
type member struct {
	*lease
	name  string
	clock *clock
	nc    *nats.Conn
}

func newMember(t *testing.T, s *natstest.Server, user, name string) *member {
	t.Helper()

	c := &clock{}
	m := &member{lease: &lease{now: c.now}, name: name, clock: c, nc: s.Connect(user)}
	b, err := openBucket(t.Context(), m.nc)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.close)
	// The subscriptions are in place once the server answers.
	if err := m.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	m.use(b)

	return m
}

func (m *member) mustAcquire(t *testing.T) {
	t.Helper()

	if err := m.acquire(t.Context(), []byte(m.name)); err != nil {
		t.Fatalf("%s: %v", m.name, err)
	}
	m.confirm()
}

// saw waits until m has seen a delete go by.
func (m *member) saw(t *testing.T) {
	t.Helper()

	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if len(m.bucket.recentDeletes()) > 0 {
			return
		}
	}
	t.Fatalf("%s saw no delete", m.name)
}

// stored is the last entry of the key, as only the admin can read it.
func stored(t *testing.T, s *natstest.Server) *nats.RawStreamMsg {
	t.Helper()

	js, err := s.Connect(natstest.Admin).JetStream()
	if err != nil {
		t.Fatal(err)
	}
	msg, err := js.GetLastMsg("KV_"+bucketName, keySubject)
	if err != nil {
		t.Fatal(err)
	}

	return msg
}

func TestLease(t *testing.T) {
	t.Parallel()
	refusedBy := func(t *testing.T, m *member) {
		t.Helper()
		if err := m.acquire(t.Context(), []byte(m.name)); !errors.Is(err, errRefused) {
			t.Errorf("%s got %v, want a refusal", m.name, err)
		}
	}

	for _, tc := range []struct {
		why  string
		do   func(t *testing.T, s *natstest.Server, user string, a, b *member)
		last string // value of the key's last entry afterwards, "" for a marker
	}{
		{
			why: "a free lease is taken, a live one is refused to others",
			do: func(t *testing.T, _ *natstest.Server, _ string, a, b *member) {
				a.mustAcquire(t)
				refusedBy(t, b)
				if !a.valid() || b.valid() {
					t.Error("both or none lead")
				}
			},
			last: "a",
		},
		{
			why: "a lease that was given back is taken at the next try",
			do: func(t *testing.T, _ *natstest.Server, _ string, a, b *member) {
				a.mustAcquire(t)
				refusedBy(t, b)
				if err := a.release(t.Context()); err != nil {
					t.Fatal(err)
				}
				b.saw(t)
				b.mustAcquire(t)
				if a.valid() || !b.valid() {
					t.Error("the lease did not change hands")
				}
			},
			last: "b",
		},
		{
			why: "the epoch grows from holder to holder, and not with renewals",
			do: func(t *testing.T, _ *natstest.Server, _ string, a, b *member) {
				a.mustAcquire(t)
				before := a.standing().epoch
				if err := a.renew(t.Context(), []byte("a")); err != nil {
					t.Fatal(err)
				}
				if got := a.standing().epoch; got != before {
					t.Errorf("renewed into epoch %d from %d", got, before)
				}
				if err := a.release(t.Context()); err != nil {
					t.Fatal(err)
				}
				b.saw(t)
				b.mustAcquire(t)
				if got := b.standing().epoch; got <= before {
					t.Errorf("epoch %d after %d", got, before)
				}
			},
			last: "b",
		},
		{
			why: "a delete that nobody saw is not overwritten",
			do: func(t *testing.T, s *natstest.Server, user string, a, _ *member) {
				a.mustAcquire(t)
				if err := a.release(t.Context()); err != nil {
					t.Fatal(err)
				}
				refusedBy(t, newMember(t, s, user, "late"))
			},
		},
		{
			why: "a delete that the stream refused leaves the live lease alone",
			do: func(t *testing.T, _ *natstest.Server, _ string, a, b *member) {
				a.mustAcquire(t)
				old := a.held()
				if err := a.renew(t.Context(), []byte("a")); err != nil {
					t.Fatal(err)
				}
				late := newDelete(old)
				if _, err := a.bucket.put(t.Context(), late); !errors.Is(err, errRefused) {
					t.Fatal(err)
				}
				b.saw(t)
				refusedBy(t, b)
				refusedBy(t, b)
				if err := a.renew(t.Context(), []byte("a")); err != nil {
					t.Errorf("the leader is out: %v", err)
				}
			},
			last: "a",
		},
		{
			why: "a marker that has been overwritten already is not overwritten again",
			do: func(t *testing.T, s *natstest.Server, user string, a, b *member) {
				c := newMember(t, s, user, "c")
				a.mustAcquire(t)
				if err := a.release(t.Context()); err != nil {
					t.Fatal(err)
				}
				b.saw(t)
				c.saw(t)
				b.mustAcquire(t)
				refusedBy(t, c)
			},
			last: "b",
		},
		{
			why: "a foreign delete without a message id proves nothing",
			do: func(t *testing.T, s *natstest.Server, user string, a, b *member) {
				a.mustAcquire(t)
				msg := nats.NewMsg(apiPrefix + "." + keySubject)
				msg.Header.Set(operationHeader, operationDelete)
				if err := s.Connect(user).PublishMsg(msg); err != nil {
					t.Fatal(err)
				}
				for stored(t, s).Header.Get(operationHeader) != operationDelete {
					time.Sleep(time.Millisecond)
				}
				refusedBy(t, b)
				if err := a.renew(t.Context(), []byte("a")); !errors.Is(err, errRefused) {
					t.Errorf("an evicted leader renewed: %v", err)
				}
				if a.valid() {
					t.Error("an evicted leader leads")
				}
			},
		},
		{
			why: "a renewal whose answer was lost goes on",
			do: func(t *testing.T, _ *natstest.Server, _ string, a, b *member) {
				a.mustAcquire(t)
				epoch := a.standing().epoch
				a.loseAnswer(t, newWrite(a.held(), []byte("a")))
				if a.valid() {
					t.Error("leads without knowing that it does")
				}
				if err := a.renew(t.Context(), []byte("a")); err != nil {
					t.Fatal(err)
				}
				if s := a.standing(); !s.leads() || s.epoch != epoch {
					t.Errorf("not the leader of epoch %d any more: %+v", epoch, s)
				}
				refusedBy(t, b)
			},
			last: "a",
		},
		{
			why: "so does a lease taken with a write whose answer was lost",
			do: func(t *testing.T, _ *natstest.Server, _ string, a, _ *member) {
				a.loseAnswer(t, newWrite(0, []byte("a")))
				a.mustAcquire(t)
				if !a.valid() {
					t.Error("does not lead")
				}
			},
			last: "a",
		},
		{
			why: "and it is given back though the last renewal was not answered",
			do: func(t *testing.T, _ *natstest.Server, _ string, a, b *member) {
				a.mustAcquire(t)
				a.loseAnswer(t, newWrite(a.held(), []byte("a")))
				if err := a.release(t.Context()); err != nil {
					t.Fatal(err)
				}
				b.saw(t)
				b.mustAcquire(t)
			},
			last: "b",
		},
		{
			why: "a hold that ran out while a renewal was not answered has to be won anew",
			do: func(t *testing.T, _ *natstest.Server, _ string, a, _ *member) {
				a.mustAcquire(t)
				a.clock.move(testTTL / 2)
				a.loseAnswer(t, newWrite(a.held(), []byte("a")))
				a.clock.move(testTTL / 2)
				if err := a.renew(t.Context(), []byte("a")); !errors.Is(err, errExpired) {
					t.Errorf("renewed: %v", err)
				}
				if err := a.acquire(t.Context(), []byte("a")); err != nil {
					t.Fatal(err)
				}
				if s := a.standing(); !s.held || s.leads() {
					t.Errorf("not a candidate: %+v", s)
				}
			},
			last: "a",
		},
		{
			why: "a process stopped past its lease finds it over, and cannot renew it",
			do: func(t *testing.T, _ *natstest.Server, _ string, a, _ *member) {
				a.mustAcquire(t)
				a.clock.move(testTTL - time.Second)
				if !a.valid() {
					t.Error("over too early")
				}
				a.clock.move(time.Second)
				if a.valid() {
					t.Error("valid past its end")
				}
				if err := a.renew(t.Context(), []byte("a")); !errors.Is(err, errExpired) {
					t.Errorf("renewed: %v", err)
				}
			},
			last: "a",
		},
		{
			why: "one that is over is not given back: it may be another's",
			do: func(t *testing.T, _ *natstest.Server, _ string, a, _ *member) {
				a.mustAcquire(t)
				a.clock.move(testTTL)
				if err := a.release(t.Context()); err != nil {
					t.Error(err)
				}
			},
			last: "a",
		},
		{
			why: "a hold goes on over another connection",
			do: func(t *testing.T, s *natstest.Server, user string, a, b *member) {
				a.mustAcquire(t)
				epoch := a.standing().epoch
				other := newMember(t, s, user, "a")
				a.nc.Close()
				a.use(other.bucket)
				a.mustAcquire(t)
				if got := a.standing().epoch; got != epoch {
					t.Errorf("epoch %d, want %d", got, epoch)
				}
				refusedBy(t, b)
			},
			last: "a",
		},
		{
			why: "a lost connection is said at once, nothing waits in its buffer",
			do: func(t *testing.T, _ *natstest.Server, _ string, a, _ *member) {
				a.mustAcquire(t)
				a.nc.Close()
				if err := a.renew(t.Context(), []byte("a")); !errors.Is(err, nats.ErrDisconnected) {
					t.Errorf("renewed: %v", err)
				}
				if a.valid() {
					t.Error("leads without a connection")
				}
			},
			last: "a",
		},
	} {
		for _, user := range []string{natstest.Imported, natstest.Mapped} {
			t.Run(user+": "+tc.why, func(t *testing.T) {
				t.Parallel()
				s := natstest.StartServer(t)
				s.CreateBucket(testTTL)
				tc.do(t, s, user, newMember(t, s, user, "a"), newMember(t, s, user, "b"))

				last := stored(t, s)
				if got := string(last.Data); got != tc.last {
					t.Errorf("the last entry is %q, want %q", got, tc.last)
				}
				if marker := last.Header.Get(operationHeader) == operationDelete; marker != (tc.last == "") {
					t.Errorf("marker: %v", marker)
				}
			})
		}
	}
}

// loseAnswer stores w as m would, with the answer lost on its way.
func (m *member) loseAnswer(t *testing.T, w *write) {
	t.Helper()

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	sent := m.clock.now()
	if err := m.outcome(ctx, w, sent); err == nil || errors.Is(err, errRefused) {
		t.Fatalf("answered: %v", err)
	}
	if _, err := m.bucket.put(t.Context(), w); err != nil {
		t.Fatal(err)
	}
}

// A bucket that was made anew knows nothing of the lease.
func TestLease_anotherStream(t *testing.T) {
	t.Parallel()
	s := natstest.StartServer(t)
	s.CreateBucket(testTTL)
	a := newMember(t, s, natstest.Imported, "a")
	a.mustAcquire(t)

	js, err := s.Connect(natstest.Admin).JetStream()
	if err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteKeyValue(bucketName); err != nil {
		t.Fatal(err)
	}
	s.CreateBucket(testTTL)
	a.use(newMember(t, s, natstest.Imported, "a").bucket)

	if a.standing().held {
		t.Error("still held")
	}
}

func TestOpenBucket_errors(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		why, user string
		cause     error
		advice    string
	}{
		{"streams, but no bucket", natstest.Imported, nats.ErrStreamNotFound, "plugin.choria.network.stream.store"},
		{"no streams under the prefix", natstest.Bare, nats.ErrNoResponders, "import it under choria.streams"},
		{"no permission", natstest.Refused, nats.ErrPermissionViolation, "let this user publish to choria.streams.STREAM.INFO.KV_CHORIA_LEADER_ELECTION"},
	} {
		t.Run(tc.why, func(t *testing.T) {
			t.Parallel()
			s := natstest.StartServer(t)
			_, err := openBucket(t.Context(), s.Connect(tc.user))
			if !errors.Is(err, tc.cause) || !strings.Contains(err.Error(), tc.advice) {
				t.Errorf("error %v", err)
			}
		})
	}
}
