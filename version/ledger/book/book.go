// Package book is the ledger as people use it: what they may read and change,
// through a running daemon or in its file.
package book

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"unicode"

	"github.com/choria-provisioner/provisioner/version"
	"github.com/choria-provisioner/provisioner/version/ledger"
)

// ErrInvalidIdentity is returned for a new node whose name cannot be one.
var ErrInvalidIdentity = errors.New("not an identity")

// ErrNotForPeople is returned for an event that is none of a person's.
var ErrNotForPeople = errors.New("not an event that a person may cause")

// Book is the ledger for people. The errors are those of ledger.Store and
// ledger.Step, whichever way it is reached.
type Book interface {
	// Standing is what the records are judged by at the moment.
	Standing(ctx context.Context) (Standing, error)

	// Get returns the record of a node, ledger.ErrNotFound or ledger.ErrCorrupt.
	Get(ctx context.Context, identity string) (ledger.Record, error)

	// List yields the records that a query asks for, as ledger.Store.List does.
	// Those that cannot be read are yielded whatever it asks for.
	List(ctx context.Context, q Query) iter.Seq2[ledger.Record, error]

	// Apply carries out what a person orders, and returns the record after it.
	// Nothing that the daemon writes meanwhile is lost.
	Apply(ctx context.Context, o Order) (ledger.Record, error)

	// Forget removes a record. Unless forced it returns ledger.ErrUnderWay while
	// a change is.
	Forget(ctx context.Context, identity string, force bool) error

	// SetAside are the records that could not be read, as they were stored.
	SetAside(ctx context.Context) (map[string][]byte, error)
}

// Standing is what records are judged by at a moment.
type Standing struct {
	// Live tells that a daemon has the ledger. Otherwise nothing happens to it,
	// and the policy is not known.
	Live     bool            `json:"live"`
	Epoch    uint64          `json:"epoch"`
	Observed ledger.Observed `json:"observed"`
	Policy   ledger.Policy   `json:"policy"`
}

// Query asks for some of the records. The zero value asks for all of them.
type Query struct {
	// States are those asked for; none is any.
	States []ledger.State `json:"states,omitempty"`
	// Version is one that a node showed last, or is on its way to.
	Version string `json:"version,omitempty"`
	// Brief leaves the evidence out.
	Brief bool `json:"brief,omitempty"`
}

// Wants tells whether the query asks for a record.
func (q *Query) Wants(rec *ledger.Record) bool {
	if len(q.States) > 0 && !slices.Contains(q.States, rec.State) {
		return false
	}
	if q.Version == "" || version.Same(q.Version, rec.Seen.Version) {
		return true
	}

	return rec.Trial != nil && version.Same(q.Version, rec.Trial.Version)
}

// Order is what a person wants done.
type Order struct {
	Identity string
	// Event is a ledger.SetPin, Unpin, Release, Expect or Restore.
	Event ledger.Event
	// New allows the event for a node without a record; a Restore needs no leave.
	New bool
}

// Check tells what makes an order none that can be carried out.
func (o *Order) Check() error {
	switch o.Event.(type) {
	case ledger.SetPin, ledger.Unpin, ledger.Release, ledger.Expect, ledger.Restore:
	default:
		return fmt.Errorf("%w: %T", ErrNotForPeople, o.Event)
	}
	if !validIdentity(o.Identity) {
		return fmt.Errorf("%w: %q", ErrInvalidIdentity, o.Identity)
	}

	return nil
}

// longestIdentity is more than a host name or a NATS subject can have.
const longestIdentity = 512

// validIdentity tells whether a node could have the name: it is one word in a
// NATS subject.
func validIdentity(s string) bool {
	if s == "" || len(s) > longestIdentity {
		return false
	}
	for _, r := range s {
		if !unicode.IsGraphic(r) || unicode.IsSpace(r) || r == unicode.ReplacementChar || r == '*' || r == '>' {
			return false
		}
	}

	return true
}

// Kept is a Book over a store and the keeper that writes it.
type Kept struct {
	store  ledger.Store
	keeper *ledger.Keeper
	live   bool
}

// New returns the book of a running daemon.
func New(store ledger.Store, keeper *ledger.Keeper) *Kept {
	return &Kept{store: store, keeper: keeper, live: true}
}

// Standing implements Book.
func (b *Kept) Standing(context.Context) (Standing, error) {
	env := b.keeper.Env()

	return Standing{Live: b.live, Epoch: env.Epoch, Observed: env.Observed, Policy: env.Policy}, nil
}

// Get implements Book.
func (b *Kept) Get(ctx context.Context, identity string) (ledger.Record, error) {
	return b.store.Get(ctx, identity)
}

// List implements Book.
func (b *Kept) List(ctx context.Context, q Query) iter.Seq2[ledger.Record, error] {
	return func(yield func(ledger.Record, error) bool) {
		for rec, err := range b.store.List(ctx) {
			if err == nil && !q.Wants(&rec) {
				continue
			}
			if q.Brief {
				rec.Evidence = nil
			}
			if !yield(rec, err) {
				return
			}
		}
	}
}

// Apply implements Book.
func (b *Kept) Apply(ctx context.Context, o Order) (ledger.Record, error) {
	if err := o.Check(); err != nil {
		return ledger.Record{}, err
	}
	if _, restore := o.Event.(ledger.Restore); !restore && !o.New {
		// The rules make a record of a node that has none.
		if _, err := b.store.Get(ctx, o.Identity); err != nil {
			return ledger.Record{}, err
		}
	}
	result, err := b.keeper.Apply(ctx, o.Identity, o.Event)
	if err != nil {
		return ledger.Record{}, err
	}

	return result.Record, nil
}

// forgetAttempts is how often a record is removed that others write.
const forgetAttempts = 20

// Forget implements Book.
func (b *Kept) Forget(ctx context.Context, identity string, force bool) error {
	for range forgetAttempts {
		rec, err := b.store.Get(ctx, identity)
		if err != nil {
			return err
		}
		if rec.State.UnderWay() && !force {
			return fmt.Errorf("%s: forgetting: %w: it is %s", identity, ledger.ErrUnderWay, rec.State)
		}
		if err := b.keeper.Remove(ctx, rec); !errors.Is(err, ledger.ErrConflict) {
			return err
		}
	}

	return fmt.Errorf("%s: forgetting: %w, %d times in a row", identity, ledger.ErrConflict, forgetAttempts)
}

// SetAside implements Book.
func (b *Kept) SetAside(context.Context) (map[string][]byte, error) {
	s, ok := b.store.(interface {
		SetAside() (map[string][]byte, error)
	})
	if !ok {
		return nil, nil
	}

	return s.SetAside()
}
