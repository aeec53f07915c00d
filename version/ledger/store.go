package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
)

// ErrNotFound is returned for a node without a record.
var ErrNotFound = errors.New("no such record")

// ErrConflict is returned when somebody else wrote the record in between.
var ErrConflict = errors.New("the record was changed by another writer")

// ErrCorrupt is returned for a record that cannot be read. It was set aside:
// the next Get finds none.
var ErrCorrupt = errors.New("the record cannot be read")

// ErrStaleEpoch is returned to a leader that was deposed.
var ErrStaleEpoch = errors.New("a later leader has taken over")

// ErrClosed is returned by a store after Close.
var ErrClosed = errors.New("the store is closed")

// Store keeps records, one a node. All methods may be called at once.
type Store interface {
	// Get returns the record of a node with its revision, ErrNotFound or
	// ErrCorrupt.
	Get(ctx context.Context, identity string) (Record, error)

	// CompareAndSwap writes rec and returns its new revision. rec.Revision is
	// the one that is replaced, 0 to create. ErrConflict when that is not what
	// the store holds, ErrStaleEpoch when it holds a record of a later epoch.
	// Any other error leaves open whether the record was written.
	CompareAndSwap(ctx context.Context, rec Record) (uint64, error)

	// Delete removes a record of that revision. ErrConflict as above.
	Delete(ctx context.Context, identity string, revision uint64) error

	// Watch sends every write and removal that is made after it returned, in
	// their order. The channel is closed with ctx and with the store. It has to
	// be read: what is not waits in memory.
	Watch(ctx context.Context) (<-chan Update, error)

	// List yields all records, in the order of their identities. It never yields
	// one twice; one that is written meanwhile may be the old or the new one. A
	// record that cannot be read is yielded with its identity alone and
	// ErrCorrupt, and the list goes on; any other error ends it.
	List(ctx context.Context) iter.Seq2[Record, error]

	// Close releases the store.
	Close() error
}

// Update is a write to a store.
type Update struct {
	// Record is the one written; only its identity is set for a removal.
	Record  Record
	Removed bool
}

// Counters are kept beside the records by the leader's own store.
type Counters interface {
	// BeginEpoch counts the start of a leader. From then on the store refuses
	// writes of earlier epochs with ErrStaleEpoch.
	BeginEpoch(ctx context.Context) (uint64, error)
	// Epoch is the last one begun, 0 for none.
	Epoch(ctx context.Context) (uint64, error)
	// SaveObserved keeps the observed time; it never goes back. ErrStaleEpoch
	// for a leader that was deposed.
	SaveObserved(ctx context.Context, epoch uint64, o Observed) error
	// Observed is the time kept last.
	Observed(ctx context.Context) (Observed, error)
}

// Encode is the JSON of a record: what stores keep, and the export format.
func Encode(rec Record) ([]byte, error) {
	if err := rec.Check(); err != nil {
		return nil, fmt.Errorf("record of %q: %w", rec.Identity, err)
	}
	data, err := json.Marshal(rec)
	if err != nil {
		return nil, fmt.Errorf("record of %q: %w", rec.Identity, err)
	}

	return data, nil
}

// Decode reads what Encode wrote of a node; of any when identity is empty.
// Errors wrap ErrCorrupt.
func Decode(identity string, data []byte) (Record, error) {
	var rec Record
	if err := json.Unmarshal(data, &rec); err != nil {
		return Record{}, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if err := rec.Check(); err != nil {
		return Record{}, err
	}
	if identity != "" && rec.Identity != identity {
		return Record{}, fmt.Errorf("%w: it is that of %q", ErrCorrupt, rec.Identity)
	}

	return rec, nil
}
