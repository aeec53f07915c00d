package boltstore

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/choria-provisioner/provisioner/version/ledger"
)

// writesAtOnce is how many writes share a transaction, and so a sync of the
// disk.
const writesAtOnce = 256

// write is a change on its way into the file.
type write struct {
	// apply changes what it has to, or returns why it did not. An error made by
	// fatal ends the transaction for all.
	apply  func(tx *bolt.Tx) (*ledger.Update, error)
	update *ledger.Update
	err    error
	done   chan struct{}
}

// do has a change written and waits for the disk.
func (s *Store) do(ctx context.Context, apply func(tx *bolt.Tx) (*ledger.Update, error)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	w := &write{apply: apply, done: make(chan struct{})}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-s.closing:
		return ledger.ErrClosed
	case s.writes <- w:
	}
	// Now it will be written, whatever becomes of ctx.
	<-w.done

	return w.err
}

// write is the only writer. It takes all writes that wait into one transaction;
// bbolt's Batch does so too, but waits for company first, and tells of writes in
// no order.
func (s *Store) write() {
	defer close(s.stopped)
	for {
		select {
		case <-s.closing:
			return
		case w := <-s.writes:
			s.commit(s.gather(w))
		}
	}
}

// gather takes what waits behind a first write.
func (s *Store) gather(first *write) []*write {
	batch := []*write{first}
	for len(batch) < writesAtOnce {
		select {
		case w := <-s.writes:
			batch = append(batch, w)
		default:
			return batch
		}
	}

	return batch
}

func (s *Store) commit(batch []*write) {
	err := s.update(func(tx *bolt.Tx) error {
		for _, w := range batch {
			w.update, w.err = w.apply(tx)
			var f fatalError
			if errors.As(w.err, &f) {
				return f.error
			}
		}

		return nil
	})

	var updates []ledger.Update
	for _, w := range batch {
		if err != nil {
			w.err = fmt.Errorf("ledger %s: not written: %w", s.path, err)
		} else if w.err == nil && w.update != nil {
			updates = append(updates, *w.update)
		}
	}
	// Who writes, and then watches, does not see that write.
	s.hub.Send(updates...)
	for _, w := range batch {
		close(w.done)
	}
}

// fatalError is one of the database, not of the caller.
type fatalError struct{ error }

func fatal(err error) error { return fatalError{err} }

func (s *Store) view(fn func(tx *bolt.Tx) error) error {
	return unpanic(func() error { return closed(s.db.View(fn)) })
}

func (s *Store) update(fn func(tx *bolt.Tx) error) error {
	return unpanic(func() error { return closed(s.db.Update(fn)) })
}

func closed(err error) error {
	if errors.Is(err, bolterrors.ErrDatabaseNotOpen) {
		return ledger.ErrClosed
	}

	return err
}

// unpanic makes an error of a panic: that is how bbolt finds a damaged page, and
// one that is gone. To read behind the end of a file that is mapped is a fault.
func unpanic(fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the file is damaged: %v", p)
		}
	}()

	return fn()
}
