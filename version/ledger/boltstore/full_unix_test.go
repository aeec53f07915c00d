//go:build unix

package boltstore_test

import (
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/choria-provisioner/provisioner/version/ledger/boltstore"
)

// Fill limits the size of files that this process writes, which to the store is
// a disk that is full.
func (p place) Fill(t testing.TB) (free func()) {
	t.Helper()
	info, err := os.Stat(filepath.Join(string(p), boltstore.FileName))
	if err != nil {
		t.Fatal(err)
	}
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	signal.Ignore(syscall.SIGXFSZ)
	limit := before
	limit.Cur = uint64(info.Size()) + 1<<20
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		t.Fatal(err)
	}

	return func() {
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
			t.Fatal(err)
		}
		signal.Reset(syscall.SIGXFSZ)
	}
}
