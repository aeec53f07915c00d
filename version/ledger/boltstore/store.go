// Package boltstore keeps the ledger in one file: a bbolt database that belongs
// to one process at a time.
package boltstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/choria-provisioner/provisioner/version/ledger"
	"github.com/choria-provisioner/provisioner/version/ledger/internal/watch"
)

// FileName is the name of the ledger's file within its directory.
const FileName = "ledger.db"

// LockTimeout is how long Open waits for another process to let go of the file.
const LockTimeout = 2 * time.Second

// ErrLocked is returned by Open while another process has the file.
var ErrLocked = errors.New("the ledger is in use by another process")

// Store implements ledger.Store and ledger.Counters.
type Store struct {
	db     *bolt.DB
	path   string
	hub    watch.Hub
	writes chan *write
	// closing is closed with the store, stopped when the last write is done.
	closing chan struct{}
	stopped chan struct{}
	close   func() error
}

// Open opens the ledger in dir, and makes both if they are not there. Only this
// user may read the file. A record that cannot be read does not keep it from
// opening; Get and List say so and set it aside. ErrLocked names the process
// that has the file where the system tells.
func Open(dir string) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("ledger: %w", err)
	}
	path := filepath.Join(dir, FileName)
	s := &Store{path: path, writes: make(chan *write), closing: make(chan struct{}), stopped: make(chan struct{})}
	err := unpanic(func() (err error) {
		s.db, err = bolt.Open(path, 0o600, &bolt.Options{
			Timeout: LockTimeout,
			// The map finds free pages of a large file without searching a list.
			FreelistType: bolt.FreelistMapType,
		})

		return err
	})
	switch {
	case errors.Is(err, bolterrors.ErrTimeout):
		return nil, fmt.Errorf("ledger %s: %w%s: stop it, or ask it instead of the file", path, ErrLocked, owner(path))
	case errors.Is(err, fs.ErrPermission), errors.As(err, new(*fs.PathError)):
		// It was not read: that says nothing about what is in it.
		return nil, fmt.Errorf("ledger: %w", err)
	case err != nil:
		return nil, fmt.Errorf("ledger %s: %w: if the file is damaged, put it aside and start without memory, or restore it", path, err)
	}
	err = s.view(s.whole)
	if err == nil {
		err = s.update(createBuckets)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("ledger %s: %w", path, err), s.db.Close())
	}
	s.close = sync.OnceValue(s.shut)
	go s.write()

	return s, nil
}

// whole tells when pages at the end of the file are gone. Others would be found
// one by one, when somebody asks for what stood there.
func (s *Store) whole(tx *bolt.Tx) error {
	info, err := os.Stat(s.path)
	if err != nil {
		return err
	}
	if info.Size() < tx.Size() {
		return fmt.Errorf("the file is cut short, it has %d bytes of %d: put it aside and start without memory, or restore it", info.Size(), tx.Size())
	}

	return nil
}

// The buckets of the file.
func records(tx *bolt.Tx) *bolt.Bucket  { return tx.Bucket([]byte("records")) }
func setAside(tx *bolt.Tx) *bolt.Bucket { return tx.Bucket([]byte("set-aside")) }
func counters(tx *bolt.Tx) *bolt.Bucket { return tx.Bucket([]byte("counters")) }

func createBuckets(tx *bolt.Tx) error {
	for _, name := range []string{"records", "set-aside", "counters"} {
		if _, err := tx.CreateBucketIfNotExists([]byte(name)); err != nil {
			return fmt.Errorf("bucket %s: %w", name, err)
		}
	}

	return nil
}

// Get implements ledger.Store.
func (s *Store) Get(ctx context.Context, identity string) (ledger.Record, error) {
	if err := ctx.Err(); err != nil {
		return ledger.Record{}, err
	}
	var raw []byte
	err := s.view(func(tx *bolt.Tx) error {
		raw = bytes.Clone(records(tx).Get([]byte(identity)))

		return nil
	})
	switch {
	case err != nil:
		return ledger.Record{}, fmt.Errorf("%s: %w", identity, err)
	case raw == nil:
		return ledger.Record{}, fmt.Errorf("%s: %w", identity, ledger.ErrNotFound)
	}

	return s.decode(ctx, identity, raw)
}

// CompareAndSwap implements ledger.Store.
func (s *Store) CompareAndSwap(ctx context.Context, rec ledger.Record) (uint64, error) {
	data, err := ledger.Encode(rec)
	if err != nil {
		return 0, err
	}
	key, revision := []byte(rec.Identity), rec.Revision
	err = s.do(ctx, func(tx *bolt.Tx) (*ledger.Update, error) {
		current := headOf(records(tx).Get(key))
		if current.revision != revision {
			return nil, ledger.ErrConflict
		}
		if rec.Epoch < max(current.epoch, number(counters(tx), epochKey)) {
			return nil, ledger.ErrStaleEpoch
		}
		next, err := records(tx).NextSequence()
		if err != nil {
			return nil, fatal(err)
		}
		rec.Revision = next
		if err := records(tx).Put(key, join(head{revision: next, epoch: rec.Epoch}, data)); err != nil {
			return nil, fatal(err)
		}

		return &ledger.Update{Record: rec}, nil
	})
	if err != nil {
		return 0, fmt.Errorf("%s: %w", rec.Identity, err)
	}

	return rec.Revision, nil
}

// Delete implements ledger.Store.
func (s *Store) Delete(ctx context.Context, identity string, revision uint64) error {
	key := []byte(identity)
	err := s.do(ctx, func(tx *bolt.Tx) (*ledger.Update, error) {
		raw := records(tx).Get(key)
		switch {
		case raw == nil:
			return nil, ledger.ErrNotFound
		case headOf(raw).revision != revision:
			return nil, ledger.ErrConflict
		}
		if err := records(tx).Delete(key); err != nil {
			return nil, fatal(err)
		}

		return &ledger.Update{Record: ledger.Record{Identity: identity}, Removed: true}, nil
	})
	if err != nil {
		return fmt.Errorf("%s: %w", identity, err)
	}

	return nil
}

// Watch implements ledger.Store.
func (s *Store) Watch(ctx context.Context) (<-chan ledger.Update, error) { return s.hub.Watch(ctx) }

// listAtOnce is how many records are read in one transaction: as long as one is
// open the file cannot grow, and whoever lists may write.
const listAtOnce = 256

// List implements ledger.Store.
func (s *Store) List(ctx context.Context) iter.Seq2[ledger.Record, error] {
	return func(yield func(ledger.Record, error) bool) {
		var after []byte
		for {
			keys, raws, err := s.page(ctx, after)
			if err != nil {
				yield(ledger.Record{}, err)
				return
			}
			if len(keys) == 0 {
				return
			}
			for i, key := range keys {
				if !yield(s.decode(ctx, string(key), raws[i])) {
					return
				}
			}
			after = keys[len(keys)-1]
		}
	}
}

// page reads the records behind a key.
func (s *Store) page(ctx context.Context, after []byte) (keys, raws [][]byte, err error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	err = s.view(func(tx *bolt.Tx) error {
		c := records(tx).Cursor()
		// The least key behind another is that one with a zero byte.
		k, v := c.First()
		if after != nil {
			k, v = c.Seek(append(bytes.Clone(after), 0))
		}
		for ; k != nil && len(keys) < listAtOnce; k, v = c.Next() {
			keys, raws = append(keys, bytes.Clone(k)), append(raws, bytes.Clone(v))
		}

		return nil
	})

	return keys, raws, err
}

// decode reads a stored record, and sets it aside when that fails.
func (s *Store) decode(ctx context.Context, identity string, raw []byte) (ledger.Record, error) {
	h, data, err := split(raw)
	if err == nil {
		var rec ledger.Record
		rec, err = ledger.Decode(identity, data)
		if err == nil {
			rec.Revision = h.revision

			return rec, nil
		}
	}

	key := []byte(identity)
	aside := s.do(ctx, func(tx *bolt.Tx) (*ledger.Update, error) {
		if !bytes.Equal(records(tx).Get(key), raw) {
			// It was written again in the meantime.
			return nil, nil
		}
		if err := setAside(tx).Put(key, raw); err != nil {
			return nil, fatal(err)
		}
		if err := records(tx).Delete(key); err != nil {
			return nil, fatal(err)
		}

		return nil, nil
	})
	if aside != nil {
		aside = fmt.Errorf("setting it aside: %w", aside)
	}

	return ledger.Record{Identity: identity}, errors.Join(fmt.Errorf("%s: %w", identity, err), aside)
}

// SetAside are the records that could not be read, as they were stored.
func (s *Store) SetAside() (map[string][]byte, error) {
	aside := map[string][]byte{}
	err := s.view(func(tx *bolt.Tx) error {
		return setAside(tx).ForEach(func(k, v []byte) error {
			aside[string(k)] = bytes.Clone(v)

			return nil
		})
	})

	return aside, err
}

// Close implements ledger.Store. A write that has begun is finished.
func (s *Store) Close() error { return s.close() }

func (s *Store) shut() error {
	close(s.closing)
	<-s.stopped
	s.hub.Close()
	if err := s.db.Close(); err != nil {
		return fmt.Errorf("ledger %s: %w", s.path, err)
	}

	return nil
}

// head is what stands before a record's JSON, so that a write needs not read it.
type head struct {
	revision uint64
	epoch    uint64
}

const headSize = 16

func join(h head, data []byte) []byte {
	raw := make([]byte, 0, headSize+len(data))
	raw = binary.BigEndian.AppendUint64(raw, h.revision)
	raw = binary.BigEndian.AppendUint64(raw, h.epoch)

	return append(raw, data...)
}

func split(raw []byte) (head, []byte, error) {
	if len(raw) < headSize {
		return head{}, nil, fmt.Errorf("%w: %d bytes", ledger.ErrCorrupt, len(raw))
	}

	return headOf(raw), raw[headSize:], nil
}

// headOf is zero for no record.
func headOf(raw []byte) head {
	if len(raw) < headSize {
		return head{}
	}

	return head{revision: binary.BigEndian.Uint64(raw), epoch: binary.BigEndian.Uint64(raw[8:])}
}
