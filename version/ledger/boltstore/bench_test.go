package boltstore_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"github.com/choria-provisioner/provisioner/version/ledger"
	"github.com/choria-provisioner/provisioner/version/ledger/boltstore"
	"github.com/choria-provisioner/provisioner/version/ledger/storetest"
)

const fleet = 100_000

// node is the identity of the nth node of the fleet.
func node(n int) string { return fmt.Sprintf("node%06d.example.net", n) }

// record is that of a node with a change behind it.
func record(n int) ledger.Record {
	rec := storetest.Record(node(n))
	rec.KnownGood.Source = ledger.Proved
	for _, text := range []string{"first met with 1.0", "upgrade from 1.0 to 1.1: the site's policy", "upgrade to 1.1", "took the update", "arrived with 1.1", "configured, on trial with 1.1", "seen in the main account with 1.1"} {
		rec.Evidence = append(rec.Evidence, ledger.Evidence{At: rec.Since, Observed: 1, Epoch: 1, Kind: ledger.Observation, Version: "1.1", Text: text, State: ledger.Idle})
	}

	return rec
}

// fleetDir makes a ledger of the whole fleet.
func fleetDir(b *testing.B) string {
	b.Helper()
	dir := b.TempDir()
	s := open(b, dir)
	identities := make(chan int)
	var wg sync.WaitGroup
	for range 256 {
		wg.Go(func() {
			for n := range identities {
				if _, err := s.CompareAndSwap(context.Background(), record(n)); err != nil {
					b.Error(err)
				}
			}
		})
	}
	for n := range fleet {
		identities <- n
	}
	close(identities)
	wg.Wait()
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, boltstore.FileName))
	if err != nil {
		b.Fatal(err)
	}
	b.Logf("%d records are %d MB on disk", fleet, info.Size()>>20)

	return dir
}

// heap is what is in use after a collection, in bytes.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)

	return m.HeapAlloc
}

func BenchmarkFleet(b *testing.B) {
	dir := fleetDir(b)

	b.Run("open", func(b *testing.B) {
		for b.Loop() {
			if err := open(b, dir).Close(); err != nil {
				b.Fatal(err)
			}
		}
	})

	s := open(b, dir)
	defer s.Close()

	// What a leader does at its start.
	b.Run("list and index", func(b *testing.B) {
		var x *ledger.Index
		before := heap()
		for b.Loop() {
			x = ledger.NewIndex(0)
			for rec, err := range s.List(b.Context()) {
				if err != nil {
					b.Fatal(err)
				}
				x.Put(rec)
			}
		}
		b.ReportMetric(float64(heap()-before)/(1<<20), "MB-index")
		if got := x.Candidate("1.0").Proved; got != fleet {
			b.Fatalf("%d nodes", got)
		}
	})
	b.Run("get", func(b *testing.B) {
		for n := 0; b.Loop(); n++ {
			if _, err := s.Get(b.Context(), node(n*7919%fleet)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("get and swap", func(b *testing.B) {
		for n := 0; b.Loop(); n++ {
			swap(b, s, n*7919%fleet)
		}
	})
	b.Run("get and swap, 32 workers", func(b *testing.B) {
		b.SetParallelism(32 / runtime.GOMAXPROCS(0))
		var mu sync.Mutex
		n := 0
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				mu.Lock()
				n++
				mine := n
				mu.Unlock()
				swap(b, s, mine*7919%fleet)
			}
		})
	})
}

func swap(b *testing.B, s ledger.Store, n int) {
	rec, err := s.Get(b.Context(), node(n))
	if err != nil {
		b.Error(err)
		return
	}
	if _, err := s.CompareAndSwap(b.Context(), rec); err != nil {
		b.Error(err)
	}
}
