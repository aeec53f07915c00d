package boltstore

import (
	"context"
	"encoding/binary"
	"fmt"

	bolt "go.etcd.io/bbolt"

	"github.com/choria-provisioner/provisioner/version/ledger"
)

const (
	epochKey    = "epoch"
	observedKey = "observed"
)

// BeginEpoch implements ledger.Counters.
func (s *Store) BeginEpoch(ctx context.Context) (uint64, error) {
	var epoch uint64
	err := s.do(ctx, func(tx *bolt.Tx) (*ledger.Update, error) {
		epoch = number(counters(tx), epochKey) + 1

		return nil, setNumber(counters(tx), epochKey, epoch)
	})
	if err != nil {
		return 0, fmt.Errorf("epoch: %w", err)
	}

	return epoch, nil
}

// Epoch implements ledger.Counters.
func (s *Store) Epoch(ctx context.Context) (uint64, error) { return s.read(ctx, epochKey) }

// SaveObserved implements ledger.Counters.
func (s *Store) SaveObserved(ctx context.Context, epoch uint64, o ledger.Observed) error {
	err := s.do(ctx, func(tx *bolt.Tx) (*ledger.Update, error) {
		if epoch < number(counters(tx), epochKey) {
			return nil, ledger.ErrStaleEpoch
		}
		if o <= ledger.Observed(number(counters(tx), observedKey)) {
			return nil, nil
		}

		return nil, setNumber(counters(tx), observedKey, uint64(o))
	})
	if err != nil {
		return fmt.Errorf("observed time: %w", err)
	}

	return nil
}

// Observed implements ledger.Counters.
func (s *Store) Observed(ctx context.Context) (ledger.Observed, error) {
	n, err := s.read(ctx, observedKey)

	return ledger.Observed(n), err
}

func (s *Store) read(ctx context.Context, key string) (n uint64, err error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	err = s.view(func(tx *bolt.Tx) error {
		n = number(counters(tx), key)

		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("%s: %w", key, err)
	}

	return n, nil
}

// number is 0 for none.
func number(b *bolt.Bucket, key string) uint64 {
	raw := b.Get([]byte(key))
	if len(raw) != 8 {
		return 0
	}

	return binary.BigEndian.Uint64(raw)
}

func setNumber(b *bolt.Bucket, key string, n uint64) error {
	if err := b.Put([]byte(key), binary.BigEndian.AppendUint64(nil, n)); err != nil {
		return fatal(err)
	}

	return nil
}
