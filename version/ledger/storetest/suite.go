// Package storetest is what every store of the ledger has to pass.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/choria-provisioner/provisioner/version/ledger"
)

// Store is what is tested.
type Store interface {
	ledger.Store
	// SetAside are the records that could not be read.
	SetAside() (map[string][]byte, error)
}

// Place is where records of one test are kept.
type Place interface {
	// Open opens a store over it. The test closes it.
	Open(t testing.TB) Store
	// Damage replaces what is stored of a node. No store is open.
	Damage(t testing.TB, identity string, data []byte)
}

// Confined is a Place that can run out of room.
type Confined interface {
	// Fill takes the room away until free is called.
	Fill(t testing.TB) (free func())
}

// patience is how long a watcher may take; far more than it needs.
const patience = 10 * time.Second

// Run tests a kind of store. place returns a new, empty place.
func Run(t *testing.T, place func(t testing.TB) Place) {
	for _, test := range []struct {
		name string
		run  func(t *testing.T, p Place)
	}{
		{"a record is read as it was written", roundTrip},
		{"no record", noRecord},
		{"a record that makes no sense is not written", nonsense},
		{"of two writers one wins", conflict},
		{"a removed record can be created, and not overwritten", removal},
		{"of many writers each counts once", concurrent},
		{"a leader of an earlier epoch is refused", epochs},
		{"a watcher sees every change in order", watchAll},
		{"a slow watcher holds nobody up and misses nothing", watchSlow},
		{"a watch ends with its context and with the store", watchEnds},
		{"a list is complete and in order", list},
		{"whoever lists may write", listAndWrite},
		{"a list goes on past what others change", listUnderChange},
		{"records outlive the store", reopen},
		{"a damaged record is set aside and said", damaged},
		{"a damaged record does not end a list", damagedInList},
		{"a closed store says so", closed},
		{"a context that is over is heeded", cancelled},
		{"counters", counters},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, place(t)) })
	}

	t.Run("no room is an error, and what was there stays", func(t *testing.T) {
		p := place(t)
		if confined, ok := p.(Confined); ok {
			full(t, p, confined)
		}
	})
}

// Record is a record of an idle node.
func Record(identity string) ledger.Record {
	rec := ledger.New(identity)
	rec.State = ledger.Idle
	rec.Epoch = 1
	rec.Since = time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	rec.Seen = ledger.Seen{Version: "1.0", At: rec.Since}
	rec.KnownGood = &ledger.KnownGood{Version: "1.0", Source: ledger.FirstSeen}

	return rec
}

func open(t testing.TB, p Place) Store {
	t.Helper()
	s := p.Open(t)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("closing: %v", err)
		}
	})

	return s
}

// put writes rec and returns it as it is stored.
func put(t testing.TB, s ledger.Store, rec ledger.Record) ledger.Record {
	t.Helper()
	revision, err := s.CompareAndSwap(context.Background(), rec)
	if err != nil {
		t.Fatalf("writing %s: %v", rec.Identity, err)
	}
	rec.Revision = revision

	return rec
}

func get(t testing.TB, s ledger.Store, identity string) ledger.Record {
	t.Helper()
	rec, err := s.Get(context.Background(), identity)
	if err != nil {
		t.Fatalf("reading %s: %v", identity, err)
	}

	return rec
}

func want(t testing.TB, what string, err, wanted error) {
	t.Helper()
	if !errors.Is(err, wanted) {
		t.Errorf("%s: %v, want %v", what, err, wanted)
	}
}

// same compares records by their JSON, as times are equal in more than one way.
func same(t testing.TB, got, wanted ledger.Record) {
	t.Helper()
	g, err := ledger.Encode(got)
	if err != nil {
		t.Fatal(err)
	}
	w, err := ledger.Encode(wanted)
	if err != nil {
		t.Fatal(err)
	}
	if string(g) != string(w) || got.Revision != wanted.Revision {
		t.Errorf("got  %s at %d\nwant %s at %d", g, got.Revision, w, wanted.Revision)
	}
}

func roundTrip(t *testing.T, p Place) {
	s := open(t, p)
	rec := Record("node.example.net")
	rec.Trial = &ledger.Change{
		Direction: ledger.Upgrade, Version: "2.0", From: "1.0", ID: "a", AttemptID: "a.2", Sends: 2,
		Epoch: 1, SentAt: rec.Since, Sent: 5, Deadline: ledger.Observed(time.Hour + 1), Reversible: true,
	}
	rec.State = ledger.Trial
	rec.RolledBack = []ledger.RolledBack{{From: "1.5", To: "1.0", At: rec.Since, Outcome: ledger.OutcomeRolledBack, Why: "ä \x00", Barred: true}}
	rec.Evidence = []ledger.Evidence{{At: rec.Since, Observed: 7, Kind: ledger.Judged, Text: "<why>", State: ledger.Idle}}

	first := put(t, s, rec)
	if first.Revision == 0 {
		t.Error("revision 0 was given")
	}
	same(t, get(t, s, rec.Identity), first)

	first.State, first.Trial = ledger.Idle, nil
	second := put(t, s, first)
	if second.Revision <= first.Revision {
		t.Errorf("revision %d after %d", second.Revision, first.Revision)
	}
	same(t, get(t, s, rec.Identity), second)
}

func noRecord(t *testing.T, p Place) {
	s := open(t, p)
	_, err := s.Get(t.Context(), "nobody")
	want(t, "reading", err, ledger.ErrNotFound)
	want(t, "removing", s.Delete(t.Context(), "nobody", 1), ledger.ErrNotFound)
}

func nonsense(t *testing.T, p Place) {
	s := open(t, p)
	rec := Record("a")
	rec.State = ledger.Trial
	_, err := s.CompareAndSwap(t.Context(), rec)
	want(t, "a trial of nothing", err, ledger.ErrCorrupt)
	_, err = s.CompareAndSwap(t.Context(), Record(""))
	want(t, "no identity", err, ledger.ErrCorrupt)
}

func conflict(t *testing.T, p Place) {
	s := open(t, p)
	first := put(t, s, Record("a"))
	_, err := s.CompareAndSwap(t.Context(), Record("a"))
	want(t, "creating twice", err, ledger.ErrConflict)

	second := put(t, s, first)
	_, err = s.CompareAndSwap(t.Context(), first)
	want(t, "an old revision", err, ledger.ErrConflict)
	want(t, "removing an old revision", s.Delete(t.Context(), "a", first.Revision), ledger.ErrConflict)
	if got := get(t, s, "a").Revision; got != second.Revision {
		t.Errorf("revision %d, want %d", got, second.Revision)
	}

	absent := Record("b")
	absent.Revision = second.Revision
	_, err = s.CompareAndSwap(t.Context(), absent)
	want(t, "replacing what is not there", err, ledger.ErrConflict)
}

func removal(t *testing.T, p Place) {
	s := open(t, p)
	first := put(t, s, Record("a"))
	if err := s.Delete(t.Context(), "a", first.Revision); err != nil {
		t.Fatal(err)
	}
	_, err := s.Get(t.Context(), "a")
	want(t, "reading a removed record", err, ledger.ErrNotFound)
	_, err = s.CompareAndSwap(t.Context(), first)
	want(t, "replacing a removed record", err, ledger.ErrConflict)

	again := put(t, s, Record("a"))
	if again.Revision <= first.Revision {
		t.Errorf("revision %d after %d: a late writer of the removed record would win", again.Revision, first.Revision)
	}
}

func concurrent(t *testing.T, p Place) {
	s := open(t, p)
	put(t, s, Record("a"))

	const writers, writes = 8, 20
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for done := 0; done < writes; {
				rec, err := s.Get(context.Background(), "a")
				if err != nil {
					t.Error(err)
					return
				}
				rec.Recent = append(rec.Recent, ledger.Begun{Version: "1"})
				switch _, err := s.CompareAndSwap(context.Background(), rec); {
				case err == nil:
					done++
				case !errors.Is(err, ledger.ErrConflict):
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if got := len(get(t, s, "a").Recent); got != writers*writes {
		t.Errorf("%d writes are there, want %d", got, writers*writes)
	}
}

func epochs(t *testing.T, p Place) {
	s := open(t, p)
	rec := Record("a")
	rec.Epoch = 5
	rec = put(t, s, rec)
	rec.Epoch = 4
	_, err := s.CompareAndSwap(t.Context(), rec)
	want(t, "an earlier epoch", err, ledger.ErrStaleEpoch)
	rec.Epoch = 6
	put(t, s, rec)
}

// next reads an update; a missing one ends the test.
func next(t testing.TB, updates <-chan ledger.Update) ledger.Update {
	t.Helper()
	select {
	case u, open := <-updates:
		if !open {
			t.Fatal("the watch ended")
		}

		return u
	case <-time.After(patience):
		t.Fatal("no update")
	}

	return ledger.Update{}
}

func watchAll(t *testing.T, p Place) {
	s := open(t, p)
	put(t, s, Record("before"))
	updates, err := s.Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	first := put(t, s, Record("a"))
	second := put(t, s, first)
	if _, err := s.CompareAndSwap(t.Context(), first); err == nil {
		t.Fatal("an old revision was written")
	}
	if err := s.Delete(t.Context(), "a", second.Revision); err != nil {
		t.Fatal(err)
	}

	same(t, next(t, updates).Record, first)
	same(t, next(t, updates).Record, second)
	if u := next(t, updates); !u.Removed || u.Record.Identity != "a" {
		t.Errorf("got %+v, want the removal of a", u)
	}

	const writers, writes = 8, 20
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			for n := range writes {
				if _, err := s.CompareAndSwap(context.Background(), Record(fmt.Sprintf("%d-%d", i, n))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	var last uint64
	for range writers * writes {
		u := next(t, updates)
		if u.Record.Revision <= last {
			t.Errorf("revision %d after %d", u.Record.Revision, last)
		}
		last = u.Record.Revision
	}
	wg.Wait()
}

func watchSlow(t *testing.T, p Place) {
	s := open(t, p)
	updates, err := s.Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	rec := Record("a")
	const writes = 300
	for range writes {
		rec = put(t, s, rec)
	}
	for range writes - 1 {
		next(t, updates)
	}
	same(t, next(t, updates).Record, rec)
}

func watchEnds(t *testing.T, p Place) {
	s := open(t, p)
	ctx, cancel := context.WithCancel(t.Context())
	with, err := s.Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	without, err := s.Watch(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	rec := put(t, s, Record("a"))
	cancel()
	ended(t, with)

	put(t, s, rec)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	next(t, without)
	next(t, without)
	ended(t, without)
	_, err = s.Watch(t.Context())
	want(t, "watching a closed store", err, ledger.ErrClosed)
}

func ended(t testing.TB, updates <-chan ledger.Update) {
	t.Helper()
	late := time.After(patience)
	for {
		select {
		case _, open := <-updates:
			if !open {
				return
			}
		case <-late:
			t.Fatal("the watch did not end")
		}
	}
}

// identities of the records that a list yields without error.
func identities(t testing.TB, s ledger.Store) []string {
	t.Helper()
	var all []string
	for rec, err := range s.List(context.Background()) {
		if err != nil {
			t.Fatalf("%s: %v", rec.Identity, err)
		}
		all = append(all, rec.Identity)
	}

	return all
}

// many is more than any store reads at once.
const many = 600

func fill(t testing.TB, s ledger.Store) []string {
	t.Helper()
	var all []string
	var wg sync.WaitGroup
	for i := range many {
		identity := fmt.Sprintf("node%04d", i)
		all = append(all, identity)
		wg.Go(func() {
			if _, err := s.CompareAndSwap(context.Background(), Record(identity)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()

	return all
}

func list(t *testing.T, p Place) {
	s := open(t, p)
	if got := identities(t, s); len(got) != 0 {
		t.Errorf("an empty store lists %q", got)
	}
	all := fill(t, s)
	if got := identities(t, s); !slices.Equal(got, all) {
		t.Errorf("%d of %d records, in order: %v", len(got), len(all), slices.IsSorted(got))
	}
	for rec := range s.List(t.Context()) {
		if rec.Revision == 0 {
			t.Error("a list yields no revisions")
		}
		break
	}
}

func listAndWrite(t *testing.T, p Place) {
	s := open(t, p)
	fill(t, s)
	for rec, err := range s.List(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		rec.Seen.Version = "2.0"
		put(t, s, rec)
	}
	for rec := range s.List(t.Context()) {
		if rec.Seen.Version != "2.0" {
			t.Fatalf("%s was not written", rec.Identity)
		}
	}
}

func listUnderChange(t *testing.T, p Place) {
	s := open(t, p)
	all := fill(t, s)
	n := 0
	var got []string
	for rec, err := range s.List(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, rec.Identity)
		n++
		// One that is still to come, one that is behind, a new one at each end.
		if n == 10 {
			late := get(t, s, all[many-10])
			if err := s.Delete(t.Context(), late.Identity, late.Revision); err != nil {
				t.Fatal(err)
			}
			put(t, s, get(t, s, all[5]))
			put(t, s, Record("a"))
			put(t, s, Record("z"))
		}
	}
	if !slices.IsSorted(got) || len(slices.Compact(slices.Clone(got))) != len(got) {
		t.Error("a record came twice, or out of order")
	}
	for i, identity := range all {
		if i != many-10 && !slices.Contains(got, identity) {
			t.Errorf("%s is missing, which nobody removed", identity)
		}
	}
}

func reopen(t *testing.T, p Place) {
	s := p.Open(t)
	first := put(t, s, Record("a"))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	s = open(t, p)
	same(t, get(t, s, "a"), first)
	second := put(t, s, first)
	if second.Revision <= first.Revision {
		t.Errorf("revision %d after %d", second.Revision, first.Revision)
	}
}

// damages are ways in which a record can be unreadable.
func damages() map[string]string {
	return map[string]string{
		"nothing":         "",
		"no JSON":         "\x00\x01\x02 not JSON, and longer than any header",
		"torn":            `{"format":1,"identity":"a","state":"id`,
		"a later format":  `{"format":99,"identity":"a","state":"idle"}`,
		"another node":    `{"format":1,"identity":"b","state":"idle"}`,
		"unknown state":   `{"format":1,"identity":"a","state":"happy"}`,
		"half a trial":    `{"format":1,"identity":"a","state":"trial"}`,
		"the wrong types": `{"format":1,"identity":"a","state":"idle","rolled_back":7}`,
	}
}

func damaged(t *testing.T, p Place) {
	for name, data := range damages() {
		t.Run(name, func(t *testing.T) {
			s := p.Open(t)
			if _, err := s.Get(t.Context(), "a"); errors.Is(err, ledger.ErrNotFound) {
				put(t, s, Record("a"))
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			p.Damage(t, "a", []byte(data))

			s = open(t, p)
			_, err := s.Get(t.Context(), "a")
			want(t, "reading", err, ledger.ErrCorrupt)
			_, err = s.Get(t.Context(), "a")
			want(t, "reading again", err, ledger.ErrNotFound)
			put(t, s, Record("a"))
			aside, err := s.SetAside()
			if err != nil {
				t.Fatal(err)
			}
			if _, found := aside["a"]; !found {
				t.Errorf("set aside are %q", aside)
			}
		})
	}
}

func damagedInList(t *testing.T, p Place) {
	s := p.Open(t)
	for _, identity := range []string{"a", "b", "c"} {
		put(t, s, Record(identity))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	p.Damage(t, "b", []byte("damaged"))

	s = open(t, p)
	var got []string
	for rec, err := range s.List(t.Context()) {
		got = append(got, rec.Identity)
		if rec.Identity == "b" {
			want(t, "listing b", err, ledger.ErrCorrupt)
		} else if err != nil {
			t.Error(err)
		}
	}
	if !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("listed are %q", got)
	}
	if got := identities(t, s); !slices.Equal(got, []string{"a", "c"}) {
		t.Errorf("listed again are %q", got)
	}
}

func closed(t *testing.T, p Place) {
	s := open(t, p)
	rec := put(t, s, Record("a"))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := s.Get(t.Context(), "a")
	want(t, "reading", err, ledger.ErrClosed)
	_, err = s.CompareAndSwap(t.Context(), rec)
	want(t, "writing", err, ledger.ErrClosed)
	want(t, "removing", s.Delete(t.Context(), "a", rec.Revision), ledger.ErrClosed)
	for _, err := range s.List(t.Context()) {
		want(t, "listing", err, ledger.ErrClosed)
	}
}

func cancelled(t *testing.T, p Place) {
	s := open(t, p)
	put(t, s, Record("a"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.Get(ctx, "a")
	want(t, "reading", err, context.Canceled)
	_, err = s.CompareAndSwap(ctx, Record("b"))
	want(t, "writing", err, context.Canceled)
	for _, err := range s.List(ctx) {
		want(t, "listing", err, context.Canceled)
	}
}

// counters are tested where the store keeps them.
func counters(t *testing.T, p Place) {
	s := p.Open(t)
	c, ok := s.(ledger.Counters)
	if !ok {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}

		return
	}
	epoch(t, c, 0)
	if n, err := c.BeginEpoch(t.Context()); n != 1 || err != nil {
		t.Errorf("epoch %d, %v, want 1", n, err)
	}
	rec := put(t, s, Record("a"))
	if n, err := c.BeginEpoch(t.Context()); n != 2 || err != nil {
		t.Errorf("epoch %d, %v, want 2", n, err)
	}
	_, err := s.CompareAndSwap(t.Context(), rec)
	want(t, "a write of a deposed leader", err, ledger.ErrStaleEpoch)

	want(t, "the time of a deposed leader", c.SaveObserved(t.Context(), 1, 50), ledger.ErrStaleEpoch)
	for _, o := range []ledger.Observed{100, 60, -1} {
		if err := c.SaveObserved(t.Context(), 2, o); err != nil {
			t.Error(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	s = open(t, p)
	c = s.(ledger.Counters)
	epoch(t, c, 2)
	if o, err := c.Observed(t.Context()); o != 100 || err != nil {
		t.Errorf("observed time %d, %v, want 100: it never goes back", o, err)
	}
}

func epoch(t testing.TB, c ledger.Counters, wanted uint64) {
	t.Helper()
	if n, err := c.Epoch(context.Background()); n != wanted || err != nil {
		t.Errorf("epoch %d, %v, want %d", n, err, wanted)
	}
}

func full(t *testing.T, p Place, confined Confined) {
	s := open(t, p)
	kept := put(t, s, Record("kept"))

	free := confined.Fill(t)
	var err error
	written := 0
	for ; err == nil && written < 100_000; written++ {
		rec := Record(fmt.Sprintf("node%d", written))
		rec.Seen.Version = string(make([]byte, 1<<16))
		_, err = s.CompareAndSwap(t.Context(), rec)
	}
	free()
	if err == nil {
		t.Fatalf("%d records found room where there is none", written)
	}
	t.Logf("record %d: %v", written, err)

	same(t, get(t, s, "kept"), kept)
	put(t, s, Record("there is room again"))
}
