package main

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/choria-provisioner/provisioner/config"
	"github.com/choria-provisioner/provisioner/version/ledger/boltstore"
)

// A start waits for whoever has the ledger's file for a moment, and not when it
// is told to end.
func TestOpenLedgerWaits(t *testing.T) {
	log := logrus.New()
	log.SetOutput(io.Discard)
	d := &daemon{cfg: &config.Config{StateDir: t.TempDir()}, log: logrus.NewEntry(log)}
	other, err := boltstore.Open(d.cfg.StateDir)
	if err != nil {
		t.Fatal(err)
	}

	ended, end := context.WithCancel(t.Context())
	end()
	if _, err := d.openLedger(ended); !errors.Is(err, boltstore.ErrLocked) {
		t.Errorf("got %v, want that it is locked", err)
	}

	time.AfterFunc(boltstore.LockTimeout+time.Second, func() { other.Close() })
	store, err := d.openLedger(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Error(err)
	}
}
