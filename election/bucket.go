package election

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"
)

// Names that all provisioners share, older ones too: they exclude one another
// because they campaign for the same key.
const (
	bucketName = "CHORIA_LEADER_ELECTION"
	key        = "provisioner"
	apiPrefix  = "choria.streams"

	keySubject = "$KV." + bucketName + "." + key

	// writes is how often a write is sent that is not answered.
	writes = 4
	// maxDeletes is how many deletes are remembered: one that is sent again
	// counts as another.
	maxDeletes = 2 * writes
	// setupTimeout bounds the first question about the bucket, lookTimeout
	// those after the first was answered.
	setupTimeout = 5 * time.Second
	lookTimeout  = time.Second
)

// Headers and values of the NATS key-value store (ADR-8 of nats-io/nats-architecture-and-design).
const (
	operationHeader = "KV-Operation"
	operationDelete = "DEL"

	// deleteID begins the message ids of deletes, and of nothing else.
	deleteID = "given-back-"

	// wrongLastMsgID is JSStreamWrongLastMsgIDErrF of nats-server's
	// jetstream_errors_generated.go.
	wrongLastMsgID nats.ErrorCode = 10070
)

// bucket is the election's bucket as reached over one connection. In the
// provisioning account of go-choria's broker nothing may be read from it but
// the stream's description; what is known of the key comes from the answers to
// writes and from watching the writes of others go by.
type bucket struct {
	kv      nats.KeyValue
	status  nats.KeyValueStatus
	nc      *nats.Conn
	js      nats.JetStreamContext
	ttl     time.Duration
	created time.Time

	mu      sync.Mutex
	deletes []sighting // the last deletes seen, whatever came of them
	subs    []*nats.Subscription
}

// sighting is a delete that went by.
type sighting struct {
	id string
	at time.Time
}

// openBucket finds the bucket and watches its key. Its error says what to do.
func openBucket(ctx context.Context, nc *nats.Conn) (*bucket, error) {
	ctx, cancel := context.WithTimeout(ctx, setupTimeout)
	defer cancel()

	js, err := nc.JetStream(nats.APIPrefix(apiPrefix), nats.MaxWait(lookTimeout))
	if err != nil {
		return nil, fmt.Errorf("preparing Choria Streams: %w", err)
	}
	// Asked for first because it takes a context, which the others do not.
	info, err := js.StreamInfo("KV_"+bucketName, nats.Context(ctx))
	if err != nil {
		return nil, explain(nc, err)
	}
	kv, err := js.KeyValue(bucketName)
	if err != nil {
		return nil, explain(nc, err)
	}
	status, err := kv.Status()
	if err != nil {
		return nil, explain(nc, err)
	}

	b := &bucket{kv: kv, status: status, nc: nc, js: js, ttl: status.TTL(), created: info.Created}
	// With an account import, writes are seen under the subject they were sent
	// to; with a subject mapping, under the one they were mapped to.
	for _, subject := range []string{apiPrefix + "." + keySubject, keySubject} {
		sub, err := nc.Subscribe(subject, b.see)
		if err != nil {
			b.close()
			return nil, fmt.Errorf("watching %s: %w", subject, err)
		}
		b.subs = append(b.subs, sub)
	}

	return b, nil
}

// explain adds what to do to an error of a look for the bucket.
func explain(nc *nats.Conn, err error) error {
	switch {
	case errors.Is(err, nats.ErrStreamNotFound), errors.Is(err, nats.ErrBucketNotFound):
		return fmt.Errorf("no bucket %s: the brokers make it when Choria Streams is on (plugin.choria.network.stream.store); elsewhere add it as a key-value bucket with a TTL of a minute: %w", bucketName, err)
	case errors.Is(err, nats.ErrNoResponders), errors.Is(err, nats.ErrNoStreamResponse), errors.Is(err, nats.ErrJetStreamNotEnabled), errors.Is(err, nats.ErrJetStreamNotEnabledForAccount):
		return fmt.Errorf("no answer from Choria Streams on %s.STREAM.INFO.KV_%s: turn it on in the brokers, or import it under %s into the account of this connection: %w", apiPrefix, bucketName, apiPrefix, err)
	}
	if denied := denied(nc); denied != nil {
		return denied
	}

	return fmt.Errorf("looking for bucket %s in Choria Streams: %w", bucketName, err)
}

// denied is why a request may have gone without an answer: a server says apart
// from it that its sender lacks the permission.
func denied(nc *nats.Conn) error {
	err := nc.LastError()
	if !errors.Is(err, nats.ErrPermissionViolation) || !strings.Contains(err.Error(), bucketName) {
		return nil
	}

	return fmt.Errorf("no permission: let this user publish to %s.STREAM.INFO.KV_%s and %s.%s: %w", apiPrefix, bucketName, apiPrefix, keySubject, err)
}

func (b *bucket) close() {
	for _, sub := range b.subs {
		// The connection may be gone, and the subscription with it.
		_ = sub.Unsubscribe()
	}
}

// write is one change of the key, bound to the revision it follows: however
// often it is sent, it is stored once at most.
type write struct {
	after  uint64 // revision of the key's last entry, 0 when there is none
	value  []byte
	delete bool
	ids    []string // the message id of each time it was sent
}

func newWrite(after uint64, value []byte) *write { return &write{after: after, value: value} }

func newDelete(after uint64) *write { return &write{after: after, delete: true} }

var (
	// errRefused means that the key's last entry is another than the write says.
	errRefused = nats.ErrKeyExists
	// errNotStored means that the stream knows no message of that id.
	errNotStored = errors.New("not stored")
)

// put sends w until it is known what became of it, a few times, and returns its
// revision. errRefused is final; after any other error w may or may not be
// stored.
func (b *bucket) put(ctx context.Context, w *write) (uint64, error) {
	var err error
	for range writes {
		before := w.ids

		var revision uint64
		revision, err = b.send(ctx, w)
		if errors.Is(err, errRefused) {
			// Perhaps because it was stored when it was sent before.
			revision, err = b.probe(ctx, before)
			if errors.Is(err, errNotStored) {
				return 0, errRefused
			}
		}
		if err == nil {
			return revision, nil
		}
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		if errors.Is(err, nats.ErrDisconnected) {
			return 0, err
		}
	}
	if denied := denied(b.nc); denied != nil {
		return 0, denied
	}

	return 0, err
}

func (b *bucket) send(ctx context.Context, w *write) (uint64, error) {
	msg := nats.NewMsg(apiPrefix + "." + keySubject)
	msg.Data = w.value
	id := nuid.Next()
	if w.delete {
		msg.Header.Set(operationHeader, operationDelete)
		id = deleteID + id
	}
	w.ids = append(w.ids, id)

	return b.publish(ctx, msg, nats.MsgId(id), nats.ExpectLastSequencePerSubject(w.after))
}

// probe returns the revision of the one of the message ids that is stored, or
// errNotStored.
//
// It stores nothing: a stream that knows the id answers with its revision, and
// else refuses the message, which demands a predecessor that cannot be. To send
// the write itself again would not do, because NATS servers check its revision
// before its id.
func (b *bucket) probe(ctx context.Context, ids []string) (uint64, error) {
	for _, id := range ids {
		revision, err := b.publish(ctx, nats.NewMsg(apiPrefix+"."+keySubject), nats.MsgId(id), nats.ExpectLastMsgId(nuid.Next()))

		var refusal *nats.APIError
		if errors.As(err, &refusal) && refusal.ErrorCode == wrongLastMsgID {
			continue
		}

		return revision, err
	}

	return 0, errNotStored
}

func (b *bucket) publish(ctx context.Context, msg *nats.Msg, opts ...nats.PubOpt) (uint64, error) {
	// A write that waits in the buffer of a lost connection is no help.
	if !b.nc.IsConnected() {
		return 0, nats.ErrDisconnected
	}
	// All that put does fits between a renewal, due at three quarters of the
	// lease, and its end.
	ctx, cancel := context.WithTimeout(ctx, min(max(b.ttl/(8*writes), 100*time.Millisecond), 2*time.Second))
	defer cancel()

	ack, err := b.js.PublishMsg(msg, append(opts, nats.Context(ctx))...)
	if err != nil {
		return 0, err
	}

	return ack.Sequence, nil
}

// see remembers our deletes among the writes to the key as they go by. Whether
// one was stored is not to be seen: see marked.
func (b *bucket) see(msg *nats.Msg) {
	id := msg.Header.Get(nats.MsgIdHdr)
	if msg.Header.Get(operationHeader) != operationDelete || !strings.HasPrefix(id, deleteID) {
		return
	}

	b.mu.Lock()
	defer b.mu.Unlock()

	seen := func(s sighting) bool { return s.id == id }
	if slices.ContainsFunc(b.deletes, seen) {
		return // under the other subject
	}
	b.deletes = append(b.deletes, sighting{id, time.Now()})
	if len(b.deletes) > maxDeletes {
		b.deletes = b.deletes[1:]
	}
}

// recentDeletes are the message ids of deletes whose marker may still be there,
// the latest first.
func (b *bucket) recentDeletes() []string {
	b.mu.Lock()
	defer b.mu.Unlock()

	b.deletes = slices.DeleteFunc(b.deletes, func(s sighting) bool { return time.Since(s.at) > b.ttl })
	var ids []string
	for _, s := range slices.Backward(b.deletes) {
		ids = append(ids, s.id)
	}

	return ids
}

// marked returns the revision of the delete marker that a member left on the
// key when it gave the lease back; it is to be overwritten by compare-and-swap.
//
// A delete that was seen may have been refused, with a live lease in its place,
// and nobody in the provisioning account can read the key to find out; so the
// stream is asked.
func (b *bucket) marked(ctx context.Context) (uint64, bool) {
	revision, err := b.probe(ctx, b.recentDeletes())

	return revision, err == nil
}
