package ledger

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// swapAttempts is how often an event is applied to a record that others write
// at the same time. Each failure is another writer's success.
const swapAttempts = 20

// Keeper applies events to stored records. All methods may be called at once.
type Keeper struct {
	store Store
	index *Index
	env   func() Env
	// corrupt is told of a record that was set aside.
	corrupt func(identity string, err error)
	// budget is held from a question about a budget to the write that uses it.
	budget sync.Mutex
}

// NewKeeper returns a keeper of the records in a store. The index has to know
// them: see Load. env is asked for every event; its Fleet is the index. corrupt
// is told of records that cannot be read, whose nodes are met anew.
func NewKeeper(store Store, index *Index, env func() Env, corrupt func(identity string, err error)) *Keeper {
	return &Keeper{store: store, index: index, env: env, corrupt: corrupt}
}

// Load tells the index of all records.
func (k *Keeper) Load(ctx context.Context) error {
	for rec, err := range k.store.List(ctx) {
		switch {
		case errors.Is(err, ErrCorrupt):
			k.corrupt(rec.Identity, err)
		case err != nil:
			return fmt.Errorf("reading the ledger: %w", err)
		default:
			k.index.Put(rec)
		}
	}

	return nil
}

// Apply applies an event to the record of a node, and stores what it comes to.
// The effects in the result are the caller's to carry out, now that the record
// is stored. After an error nothing may be carried out; the event can be applied
// again. Errors are those of Step and of the store.
func (k *Keeper) Apply(ctx context.Context, identity string, ev Event) (Result, error) {
	env := k.Env()
	if d, ok := ev.(Decision); ok && d.Direction != "" && env.Policy.hasBudgets() {
		k.budget.Lock()
		defer k.budget.Unlock()
	}

	for range swapAttempts {
		rec, err := k.record(ctx, identity)
		if err != nil {
			return Result{Next: NextLeave}, err
		}
		result, err := Step(rec, ev, env)
		if err != nil || !result.Changed {
			return result, err
		}
		result.Record.Revision, err = k.store.CompareAndSwap(ctx, result.Record)
		switch {
		case err == nil:
			k.index.Put(result.Record)
			return result, nil
		case !errors.Is(err, ErrConflict):
			return Result{Record: rec, Next: NextLeave}, err
		}
	}

	return Result{Next: NextLeave}, fmt.Errorf("%s: %w, %d times in a row", identity, ErrConflict, swapAttempts)
}

// Forget removes the record of a node.
func (k *Keeper) Forget(ctx context.Context, identity string) error {
	rec, err := k.store.Get(ctx, identity)
	if err != nil {
		return err
	}

	return k.Remove(ctx, rec)
}

// Remove removes a record, unless it was written since. ErrConflict says that it
// was.
func (k *Keeper) Remove(ctx context.Context, rec Record) error {
	if err := k.store.Delete(ctx, rec.Identity, rec.Revision); err != nil {
		return err
	}
	k.index.Remove(rec.Identity)

	return nil
}

// Env is what records are judged by at the moment.
func (k *Keeper) Env() Env {
	env := k.env()
	env.Fleet = k.index

	return env
}

// record is that of a node, a new one when there is none that can be read.
func (k *Keeper) record(ctx context.Context, identity string) (Record, error) {
	rec, err := k.store.Get(ctx, identity)
	switch {
	case errors.Is(err, ErrCorrupt):
		k.index.Remove(identity)
		k.corrupt(identity, err)
		return New(identity), nil
	case errors.Is(err, ErrNotFound):
		return New(identity), nil
	default:
		return rec, err
	}
}
