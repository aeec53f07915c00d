package boltstore_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"

	"github.com/choria-provisioner/provisioner/version/ledger"
	"github.com/choria-provisioner/provisioner/version/ledger/boltstore"
	"github.com/choria-provisioner/provisioner/version/ledger/storetest"
)

// place is a directory.
type place string

func (p place) Open(t testing.TB) storetest.Store { return open(t, string(p)) }

// Damage writes a record behind a header that is intact; nothing at all has
// none.
func (p place) Damage(t testing.TB, identity string, data []byte) {
	t.Helper()
	db, err := bolt.Open(filepath.Join(string(p), boltstore.FileName), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(data) > 0 {
		data = append(make([]byte, 16), data...)
	}
	err = db.Update(func(tx *bolt.Tx) error { return tx.Bucket([]byte("records")).Put([]byte(identity), data) })
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
}

func open(t testing.TB, dir string) *boltstore.Store {
	t.Helper()
	s, err := boltstore.Open(dir)
	if err != nil {
		t.Fatal(err)
	}

	return s
}

func TestStore(t *testing.T) {
	storetest.Run(t, func(t testing.TB) storetest.Place { return place(t.TempDir()) })
}

func TestFileIsForItsOwnerOnly(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	if err := open(t, dir).Close(); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]os.FileMode{dir: 0o700, filepath.Join(dir, boltstore.FileName): 0o600} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%s has mode %o, want %o", path, got, want)
		}
	}
}

func TestSecondProcessIsToldWhoHasTheFile(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	defer s.Close()

	_, err := boltstore.Open(dir)
	if !errors.Is(err, boltstore.ErrLocked) {
		t.Fatalf("opened twice: %v", err)
	}
	if want := fmt.Sprintf("pid %d", os.Getpid()); !strings.Contains(err.Error(), want) {
		t.Errorf("%v does not name %s", err, want)
	}
}

func TestDamagedFileIsAnError(t *testing.T) {
	for name, damage := range map[string]func(data []byte) []byte{
		"no ledger":        func([]byte) []byte { return []byte(strings.Repeat("no ledger ", 10_000)) },
		"first pages gone": func(data []byte) []byte { clear(data[:3*os.Getpagesize()]); return data },
		"other pages gone": func(data []byte) []byte { clear(data[2*os.Getpagesize():]); return data },
		"pages of nonsense": func(data []byte) []byte {
			copy(data[2*os.Getpagesize():], strings.Repeat("nonsense", 10_000))
			return data
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := open(t, dir)
			for i := range 100 {
				if _, err := s.CompareAndSwap(t.Context(), storetest.Record(fmt.Sprintf("node%d", i))); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, boltstore.FileName)
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, damage(data), 0o600); err != nil {
				t.Fatal(err)
			}

			s, err = boltstore.Open(dir)
			if err == nil {
				_, err = s.Get(t.Context(), "node1")
				if closeErr := s.Close(); closeErr != nil {
					t.Logf("closing: %v", closeErr)
				}
			}
			if err == nil || errors.Is(err, ledger.ErrNotFound) {
				t.Fatalf("nothing was said: %v", err)
			}
			t.Log(err)
		})
	}
}

// Wherever the file was cut, that is an error at start, and no fault of the
// process, unless all records are there.
func TestFileThatIsCutShort(t *testing.T) {
	const count = 300
	dir := t.TempDir()
	s := open(t, dir)
	for i := range count {
		if _, err := s.CompareAndSwap(t.Context(), storetest.Record(fmt.Sprintf("node%d", i))); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(dir, boltstore.FileName))
	if err != nil {
		t.Fatal(err)
	}

	refused := 0
	for size := os.Getpagesize(); size < len(data); size += os.Getpagesize() {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, boltstore.FileName), data[:size], 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := boltstore.Open(dir)
		if err != nil {
			refused++
			continue
		}
		read := 0
		for _, err := range s.List(t.Context()) {
			if err != nil {
				t.Errorf("%d of %d bytes: %v", size, len(data), err)
			}
			read++
		}
		if read != count {
			t.Errorf("%d of %d bytes: %d records", size, len(data), read)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if refused == 0 {
		t.Error("every file was taken")
	}
}

// Nobody is told to put aside a file that could not even be opened.
func TestFileThatCannotBeOpened(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, boltstore.FileName), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := boltstore.Open(dir); err == nil || !strings.Contains(err.Error(), "is a directory") || strings.Contains(err.Error(), "aside") {
		t.Errorf("%v", err)
	}
}
