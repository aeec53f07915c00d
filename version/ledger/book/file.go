package book

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/choria-provisioner/provisioner/version/ledger"
	"github.com/choria-provisioner/provisioner/version/ledger/boltstore"
)

// ErrNoLedger is returned where there is no ledger's file.
var ErrNoLedger = errors.New("there is no ledger")

// File is the book of a ledger whose daemon does not run. As long as it is open,
// none can start.
type File struct {
	*Kept
	store *boltstore.Store
}

// OpenFile opens the ledger in a directory. ErrNoLedger when there is none,
// boltstore.ErrLocked when a process has it.
func OpenFile(ctx context.Context, dir string) (*File, error) {
	path := filepath.Join(dir, boltstore.FileName)
	switch _, err := os.Stat(path); {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%w: %s does not exist: a daemon with features.upgrades makes it", ErrNoLedger, path)
	case err != nil:
		return nil, fmt.Errorf("ledger: %w", err)
	}

	return CreateFile(ctx, dir)
}

// CreateFile is OpenFile that makes a ledger where there is none.
func CreateFile(ctx context.Context, dir string) (*File, error) {
	store, err := boltstore.Open(dir)
	if err != nil {
		return nil, err
	}
	epoch, err := store.Epoch(ctx)
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	observed, err := store.Observed(ctx)
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}

	// A person is no leader: it begins no epoch, and no time passes.
	env := func() ledger.Env { return ledger.Env{Wall: time.Now(), Observed: observed, Epoch: epoch} }
	// Whoever reads next is told of what was set aside.
	keeper := ledger.NewKeeper(store, ledger.NewIndex(0), env, func(string, error) {})

	return &File{Kept: &Kept{store: store, keeper: keeper}, store: store}, nil
}

// Close lets go of the file.
func (f *File) Close() error { return f.store.Close() }
