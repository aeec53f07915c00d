package fleet

import (
	"crypto/sha256"
	"encoding/binary"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
)

// What is said in the main account is believed when the provisioning account was
// heard all the while and nobody said it there.
func TestWitness(t *testing.T) {
	event := Event{Identity: "n1", Version: "2", Digest: sha256.Sum256([]byte("n1 runs 2"))}
	other := sha256.Sum256([]byte("n1 runs 3"))
	var dropped atomic.Int32
	count := func() int { return int(dropped.Load()) }

	for name, tc := range map[string]struct {
		before, after func(w *Witness)
		believed      bool
	}{
		"heard there only":      {believed: true},
		"another was forged":    {before: func(w *Witness) { w.hear(other) }, believed: true},
		"forged, heard first":   {before: func(w *Witness) { w.hear(event.Digest) }},
		"forged, heard last":    {after: func(w *Witness) { w.hear(event.Digest) }},
		"forged in the flood":   {before: func(w *Witness) { w.hear(event.Digest); time.Sleep(witnessMemory - time.Second); w.hear(other) }},
		"not listening yet":     {before: (*Witness).deaf},
		"began to listen after": {before: (*Witness).deaf, after: func(w *Witness) { w.listen(count) }},
		"stopped listening":     {after: (*Witness).deaf},
		"listened anew":         {after: func(w *Witness) { w.deaf(); w.listen(count) }},
		"lost a message":        {after: func(*Witness) { dropped.Add(1) }},
		"forged before a flood": {before: func(w *Witness) { w.hear(event.Digest); flood(w) }},
		"forged, then a flood":  {after: func(w *Witness) { w.hear(event.Digest); flood(w) }},
		"a flood long before":   {before: func(w *Witness) { flood(w); time.Sleep(time.Minute) }, believed: true},
		"lost one long before":  {before: func(w *Witness) { dropped.Add(1); w.Believe(event, func(Event) {}); time.Sleep(time.Minute) }, believed: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dropped.Store(0)
				w := newTestWitness()
				w.listen(count)
				time.Sleep(time.Second)
				if tc.before != nil {
					tc.before(w)
				}
				var believed atomic.Bool
				w.Believe(event, func(got Event) { believed.Store(got == event) })
				time.Sleep(witnessDelay / 2)
				if believed.Load() {
					t.Error("believed at once")
				}
				if tc.after != nil {
					tc.after(w)
				}
				time.Sleep(witnessDelay)
				synctest.Wait()
				if believed.Load() != tc.believed {
					t.Errorf("believed: %v, want %v", believed.Load(), tc.believed)
				}
			})
		})
	}
}

// A flood in either account takes no memory without end.
func TestWitnessForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTestWitness()
		w.listen(func() int { return 0 })
		for i := range 100 {
			w.hear(sha256.Sum256([]byte{byte(i)}))
			time.Sleep(time.Second)
		}
		size := func() (remembered, waiting int) {
			w.mu.Lock()
			defer w.mu.Unlock()
			return len(w.heard) + len(w.before), w.waiting
		}
		if n, _ := size(); n > 25 {
			t.Errorf("%d are remembered", n)
		}
		flood(w)
		if n, _ := size(); n > 2*heardLimit {
			t.Errorf("%d are remembered of a flood", n)
		}
		for range witnessLimit + 10 {
			w.Believe(Event{}, func(Event) {})
		}
		if _, n := size(); n != witnessLimit {
			t.Errorf("%d wait", n)
		}
		time.Sleep(witnessDelay)
		synctest.Wait()
		if _, n := size(); n != 0 {
			t.Errorf("%d wait for ever", n)
		}
	})
}

// flood is more than is remembered, all at once.
func flood(w *Witness) {
	for i := range uint64(2*heardLimit + 10) {
		var digest [sha256.Size]byte
		binary.BigEndian.PutUint64(digest[:], i)
		w.hear(digest)
	}
}

func newTestWitness() *Witness {
	log := logrus.New()
	log.SetOutput(io.Discard)

	return NewWitness(logrus.NewEntry(log))
}
