package election

import (
	"context"
	"errors"
	"fmt"
	"strconv"
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
	// setupTimeout bounds the first question about the bucket, lookTimeout
	// those after the first was answered.
	setupTimeout = 5 * time.Second
	lookTimeout  = time.Second
)

// Headers and values of the NATS key-value store (ADR-8 of nats-io/nats-architecture-and-design).
const (
	operationHeader = "KV-Operation"
	operationDelete = "DEL"
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

	mu     sync.Mutex
	marker *write // the last delete seen, nil when there is none to ask about
	subs   []*nats.Subscription
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
		return fmt.Errorf("Choria Streams does not answer on %s.STREAM.INFO.KV_%s: turn it on in the brokers, or import it under %s into the account of this connection: %w", apiPrefix, bucketName, apiPrefix, err)
	case errors.Is(nc.LastError(), nats.ErrPermissionViolation):
		return fmt.Errorf("no permission: let this user read %s.STREAM.INFO.KV_%s and publish to %s.%s: %w", apiPrefix, bucketName, apiPrefix, keySubject, errors.Join(err, nc.LastError()))
	default:
		return fmt.Errorf("looking for bucket %s in Choria Streams: %w", bucketName, err)
	}
}

func (b *bucket) close() {
	for _, sub := range b.subs {
		// The connection may be gone, and the subscription with it.
		_ = sub.Unsubscribe()
	}
}

// write is one change of the key, bound to the revision it follows. Its message
// id lets the stream know it again: sent twice it is stored once, and the
// second answer names the revision of the first.
type write struct {
	id     string
	after  uint64 // revision of the key's last entry, 0 when there is none
	value  []byte
	delete bool
}

func newWrite(after uint64, value []byte) *write {
	return &write{id: nuid.Next(), after: after, value: value}
}

// errRefused means that the key's last entry is another than the write says.
var errRefused = nats.ErrKeyExists

// put sends w until it is answered, a few times, and returns its revision.
// errRefused is final; after any other error w may or may not be stored.
func (b *bucket) put(ctx context.Context, w *write) (uint64, error) {
	// All tries fit between a renewal, due at three quarters of the lease, and
	// its end.
	patience := min(max(b.ttl/(4*writes), 100*time.Millisecond), 2*time.Second)

	var err error
	for range writes {
		// A write that waits in the buffer of a lost connection is no help.
		if !b.nc.IsConnected() {
			return 0, errors.Join(nats.ErrDisconnected, err)
		}

		var revision uint64
		revision, err = b.send(ctx, w, patience)
		if err == nil || errors.Is(err, errRefused) {
			return revision, err
		}
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
	}
	if errors.Is(b.nc.LastError(), nats.ErrPermissionViolation) {
		err = errors.Join(err, b.nc.LastError())
	}

	return 0, err
}

func (b *bucket) send(ctx context.Context, w *write, patience time.Duration) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()

	msg := &nats.Msg{Subject: apiPrefix + "." + keySubject, Header: nats.Header{}, Data: w.value}
	if w.delete {
		msg.Header.Set(operationHeader, operationDelete)
	}
	ack, err := b.js.PublishMsg(msg, nats.Context(ctx), nats.MsgId(w.id), nats.ExpectLastSequencePerSubject(w.after))
	if err != nil {
		return 0, err
	}

	return ack.Sequence, nil
}

// see remembers deletes among the writes to the key as they go by. Whether one
// was stored is not to be seen: see marked.
func (b *bucket) see(msg *nats.Msg) {
	if msg.Header.Get(operationHeader) != operationDelete {
		return
	}
	after, err := strconv.ParseUint(msg.Header.Get(nats.ExpectedLastSubjSeqHdr), 10, 64)
	id := msg.Header.Get(nats.MsgIdHdr)
	if err != nil || after == 0 || id == "" {
		return // not a lease given back by one of us
	}

	b.mu.Lock()
	b.marker = &write{id: id, after: after, delete: true}
	b.mu.Unlock()
}

// marked returns the revision of the delete marker that a member left on the
// key when it gave the lease back; it is to be overwritten by compare-and-swap.
//
// A delete that was seen may have been refused, with a live lease in its place,
// and nobody in the provisioning account can read the key to find out. So the
// same delete is sent again: the stream knows its message id if it stored it,
// and answers with the marker's revision; if it did not, the delete is refused
// once more.
func (b *bucket) marked(ctx context.Context) (uint64, bool) {
	b.mu.Lock()
	marker := b.marker
	b.mu.Unlock()
	if marker == nil {
		return 0, false
	}

	revision, err := b.put(ctx, marker)
	if errors.Is(err, errRefused) {
		b.forget(marker)
	}

	return revision, err == nil
}

func (b *bucket) forget(marker *write) {
	b.mu.Lock()
	defer b.mu.Unlock()

	if b.marker == marker {
		b.marker = nil
	}
}
