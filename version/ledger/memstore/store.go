// Package memstore keeps records in memory, for tests and trial runs.
package memstore

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"

	"github.com/choria-provisioner/provisioner/version/ledger"
	"github.com/choria-provisioner/provisioner/version/ledger/internal/watch"
)

// Memory is what outlives a Store, as a disk does. The zero value is empty.
type Memory struct {
	mu       sync.Mutex
	records  map[string]entry
	aside    map[string][]byte
	revision uint64
	epoch    uint64
	observed ledger.Observed
}

type entry struct {
	revision uint64
	epoch    uint64
	data     []byte
}

// Store implements ledger.Store and ledger.Counters.
type Store struct {
	memory *Memory
	hub    watch.Hub
	// closed is guarded by memory.mu.
	closed bool
}

// Open returns a store over a memory.
func Open(m *Memory) *Store { return &Store{memory: m} }

// New returns a store over a memory of its own.
func New() *Store { return Open(&Memory{}) }

// Damage replaces the record of a node by something else.
func (m *Memory) Damage(identity string, data []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()

	e := m.records[identity]
	e.data = data
	m.records[identity] = e
}

// SetAside are the records that could not be read.
func (m *Memory) SetAside() map[string][]byte {
	m.mu.Lock()
	defer m.mu.Unlock()

	return maps.Clone(m.aside)
}

// Get implements ledger.Store.
func (s *Store) Get(ctx context.Context, identity string) (ledger.Record, error) {
	m := s.memory
	m.mu.Lock()
	defer m.mu.Unlock()

	if err := s.usable(ctx); err != nil {
		return ledger.Record{}, err
	}
	e, found := m.records[identity]
	if !found {
		return ledger.Record{}, fmt.Errorf("%s: %w", identity, ledger.ErrNotFound)
	}

	return m.decode(identity, e)
}

// decode reads an entry and sets it aside when that fails.
func (m *Memory) decode(identity string, e entry) (ledger.Record, error) {
	rec, err := ledger.Decode(identity, e.data)
	if err != nil {
		if m.aside == nil {
			m.aside = map[string][]byte{}
		}
		m.aside[identity] = e.data
		delete(m.records, identity)

		return ledger.Record{Identity: identity}, fmt.Errorf("%s: %w", identity, err)
	}
	rec.Revision = e.revision

	return rec, nil
}

// CompareAndSwap implements ledger.Store.
func (s *Store) CompareAndSwap(ctx context.Context, rec ledger.Record) (uint64, error) {
	data, err := ledger.Encode(rec)
	if err != nil {
		return 0, err
	}

	m := s.memory
	m.mu.Lock()
	defer m.mu.Unlock()

	if err := s.usable(ctx); err != nil {
		return 0, err
	}
	current := m.records[rec.Identity]
	if current.revision != rec.Revision {
		return 0, fmt.Errorf("%s: %w", rec.Identity, ledger.ErrConflict)
	}
	if rec.Epoch < max(current.epoch, m.epoch) {
		return 0, fmt.Errorf("%s: %w", rec.Identity, ledger.ErrStaleEpoch)
	}
	if m.records == nil {
		m.records = map[string]entry{}
	}
	m.revision++
	rec.Revision = m.revision
	m.records[rec.Identity] = entry{revision: rec.Revision, epoch: rec.Epoch, data: data}
	s.hub.Send(ledger.Update{Record: rec})

	return rec.Revision, nil
}

// Delete implements ledger.Store.
func (s *Store) Delete(ctx context.Context, identity string, revision uint64) error {
	m := s.memory
	m.mu.Lock()
	defer m.mu.Unlock()

	if err := s.usable(ctx); err != nil {
		return err
	}
	e, found := m.records[identity]
	switch {
	case !found:
		return fmt.Errorf("%s: %w", identity, ledger.ErrNotFound)
	case e.revision != revision:
		return fmt.Errorf("%s: %w", identity, ledger.ErrConflict)
	}
	delete(m.records, identity)
	s.hub.Send(ledger.Update{Record: ledger.Record{Identity: identity}, Removed: true})

	return nil
}

// Watch implements ledger.Store.
func (s *Store) Watch(ctx context.Context) (<-chan ledger.Update, error) { return s.hub.Watch(ctx) }

// List implements ledger.Store.
func (s *Store) List(ctx context.Context) iter.Seq2[ledger.Record, error] {
	return func(yield func(ledger.Record, error) bool) {
		m := s.memory
		m.mu.Lock()
		identities := slices.Sorted(maps.Keys(m.records))
		m.mu.Unlock()

		for _, identity := range identities {
			m.mu.Lock()
			if err := s.usable(ctx); err != nil {
				m.mu.Unlock()
				yield(ledger.Record{}, err)

				return
			}
			e, found := m.records[identity]
			if !found {
				m.mu.Unlock()
				continue
			}
			rec, err := m.decode(identity, e)
			m.mu.Unlock()
			if !yield(rec, err) {
				return
			}
		}
	}
}

// Close implements ledger.Store.
func (s *Store) Close() error {
	s.memory.mu.Lock()
	defer s.memory.mu.Unlock()

	s.closed = true
	s.hub.Close()

	return nil
}

// BeginEpoch implements ledger.Counters.
func (s *Store) BeginEpoch(ctx context.Context) (uint64, error) {
	s.memory.mu.Lock()
	defer s.memory.mu.Unlock()

	if err := s.usable(ctx); err != nil {
		return 0, err
	}
	s.memory.epoch++

	return s.memory.epoch, nil
}

// Epoch implements ledger.Counters.
func (s *Store) Epoch(ctx context.Context) (uint64, error) {
	s.memory.mu.Lock()
	defer s.memory.mu.Unlock()

	return s.memory.epoch, s.usable(ctx)
}

// SaveObserved implements ledger.Counters.
func (s *Store) SaveObserved(ctx context.Context, epoch uint64, o ledger.Observed) error {
	s.memory.mu.Lock()
	defer s.memory.mu.Unlock()

	if err := s.usable(ctx); err != nil {
		return err
	}
	if epoch < s.memory.epoch {
		return fmt.Errorf("observed time: %w", ledger.ErrStaleEpoch)
	}
	s.memory.observed = max(s.memory.observed, o)

	return nil
}

// Observed implements ledger.Counters.
func (s *Store) Observed(ctx context.Context) (ledger.Observed, error) {
	s.memory.mu.Lock()
	defer s.memory.mu.Unlock()

	return s.memory.observed, s.usable(ctx)
}

func (s *Store) usable(ctx context.Context) error {
	if s.closed {
		return ledger.ErrClosed
	}

	return ctx.Err()
}
