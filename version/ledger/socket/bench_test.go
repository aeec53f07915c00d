//go:build unix

package socket_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/choria-provisioner/provisioner/version/ledger"
	"github.com/choria-provisioner/provisioner/version/ledger/book"
	"github.com/choria-provisioner/provisioner/version/ledger/storetest"
)

const fleet = 100_000

// fleetRecord is that of a node with a change behind it.
func fleetRecord(n int) ledger.Record {
	rec := storetest.Record(fmt.Sprintf("node%06d.example.net", n))
	for _, text := range []string{"first met with 1.0", "upgrade from 1.0 to 1.1: the site's policy", "upgrade to 1.1", "took the update", "arrived with 1.1", "configured, on trial with 1.1", "seen in the main account with 1.1"} {
		rec.Evidence = append(rec.Evidence, ledger.Evidence{At: rec.Since, Observed: 1, Epoch: 1, Kind: ledger.Observation, Version: "1.1", Text: text, State: ledger.Idle})
	}

	return rec
}

// peak is the most heap that is in use while do runs, in bytes.
func peak(do func()) uint64 {
	runtime.GC()
	var most atomic.Uint64
	done := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			most.Store(max(most.Load(), m.HeapInuse))
			select {
			case <-done:
				return
			case <-tick.C:
			}
		}
	})
	do()
	close(done)
	watch.Wait()

	return most.Load()
}

// processorTime is what this process has used: unlike the time that passes, it
// does not depend on who else works on the machine.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}

	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// A list of a whole fleet, as `nodes ls` asks for it (brief) and as an export
// does (whole). Over the socket the figures are those of both sides.
func BenchmarkList(b *testing.B) {
	dir := b.TempDir()
	f, err := book.CreateFile(b.Context(), dir)
	if err != nil {
		b.Fatal(err)
	}
	lines := make([]book.Line, fleet)
	for n := range lines {
		lines[n].Record = fleetRecord(n)
	}
	began := time.Now()
	if n, err := book.Import(b.Context(), f, lines, false); err != nil || n != fleet {
		b.Fatal(n, err)
	}
	b.Logf("imported in %s", time.Since(began).Round(time.Millisecond))
	lines = nil
	if err := f.Close(); err != nil {
		b.Fatal(err)
	}

	measure := func(name string, open func(b *testing.B) book.Book) {
		for _, q := range []book.Query{{Brief: true}, {}, {States: []ledger.State{ledger.Held}}} {
			b.Run(fmt.Sprintf("%s, brief %v, held only %v", name, q.Brief, len(q.States) > 0), func(b *testing.B) {
				book := open(b)
				var most uint64
				before := processorTime(b)
				for b.Loop() {
					most = max(most, peak(func() {
						count := 0
						for _, err := range book.List(context.Background(), q) {
							if err != nil {
								b.Fatal(err)
							}
							count++
						}
						if want := fleet; len(q.States) == 0 && count != want {
							b.Fatalf("%d records", count)
						}
					}))
				}
				b.ReportMetric((processorTime(b)-before).Seconds()/float64(b.N), "processor-s/op")
				b.ReportMetric(float64(most)/(1<<20), "MB-heap")
			})
		}
	}
	measure("file", func(b *testing.B) book.Book {
		f, err := book.OpenFile(b.Context(), dir)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = f.Close() })

		return f
	})
	measure("socket", func(b *testing.B) book.Book {
		store := openStore(b, dir)
		b.Cleanup(func() { _ = store.Close() })
		serve(b, dir, book.New(store, daemonKeeper(store)))

		return dial(b, dir)
	})
}
