//go:build unix

package socket_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/choria-provisioner/provisioner/version/ledger"
	"github.com/choria-provisioner/provisioner/version/ledger/boltstore"
	"github.com/choria-provisioner/provisioner/version/ledger/book"
	"github.com/choria-provisioner/provisioner/version/ledger/memstore"
	"github.com/choria-provisioner/provisioner/version/ledger/socket"
)

// way is one in which people reach the same ledger.
type way struct {
	name string
	// open returns the book of a ledger that holds these events' records.
	open func(t testing.TB, fill func(k *ledger.Keeper)) book.Book
}

// ways are the file of a daemon that does not run, and the socket of one that
// does.
func ways() []way {
	return []way{
		{"file", func(t testing.TB, fill func(k *ledger.Keeper)) book.Book {
			dir := t.TempDir()
			store := openStore(t, dir)
			for range 3 {
				if _, err := store.BeginEpoch(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			fill(daemonKeeper(store))
			if err := errors.Join(store.SaveObserved(t.Context(), 3, ledger.Observed(time.Hour)), store.Close()); err != nil {
				t.Fatal(err)
			}
			f, err := book.OpenFile(t.Context(), dir)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = f.Close() })

			return f
		}},
		{"socket", func(t testing.TB, fill func(k *ledger.Keeper)) book.Book {
			dir := t.TempDir()
			store := openStore(t, dir)
			t.Cleanup(func() { _ = store.Close() })
			keeper := daemonKeeper(store)
			fill(keeper)
			serve(t, dir, book.New(store, keeper))

			return dial(t, dir)
		}},
	}
}

func openStore(t testing.TB, dir string) *boltstore.Store {
	t.Helper()
	s, err := boltstore.Open(dir)
	if err != nil {
		t.Fatal(err)
	}

	return s
}

// onBoth runs a test over a ledger with an idle, a swapped and a held node, once
// for each way to reach it.
func onBoth(t *testing.T, test func(t *testing.T, b book.Book)) {
	for _, w := range ways() {
		t.Run(w.name, func(t *testing.T) { test(t, w.open(t, func(k *ledger.Keeper) { fill(t, k) })) })
	}
}

func fill(t testing.TB, k *ledger.Keeper) {
	t.Helper()
	for _, node := range []struct {
		identity string
		events   []ledger.Event
	}{
		{"held", []ledger.Event{ledger.Inventory{Version: "1.0"}, upgrade("up"), ledger.Reply{AttemptID: "up", Result: ledger.ReplyBroken, Text: "broken"}}},
		{"idle", []ledger.Event{ledger.Inventory{Version: "1.0"}}},
		{"swapped", []ledger.Event{ledger.Inventory{Version: "1.0"}, upgrade("up"), ledger.Reply{AttemptID: "up", Result: ledger.ReplyOK}}},
	} {
		for _, ev := range node.events {
			if _, err := k.Apply(t.Context(), node.identity, ev); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func upgrade(attempt string) ledger.Decision {
	return ledger.Decision{Direction: ledger.Upgrade, Version: "2.0", AttemptID: attempt, Current: "1.0", Upgradable: true}
}

func identities(t testing.TB, b book.Book, q book.Query) []string {
	t.Helper()
	var all []string
	for rec, err := range b.List(t.Context(), q) {
		if err != nil {
			t.Errorf("%s: %v", rec.Identity, err)
		}
		if brief := len(rec.Evidence) == 0; brief != q.Brief {
			t.Errorf("%s has %d entries of evidence", rec.Identity, len(rec.Evidence))
		}
		all = append(all, rec.Identity)
	}

	return all
}

func TestList(t *testing.T) {
	onBoth(t, func(t *testing.T, b book.Book) {
		for _, row := range []struct {
			q    book.Query
			want string
		}{
			{book.Query{}, "held idle swapped"},
			{book.Query{Brief: true}, "held idle swapped"},
			{book.Query{States: []ledger.State{ledger.Held, ledger.Swapped}}, "held swapped"},
			{book.Query{States: []ledger.State{ledger.Dark}}, ""},
			{book.Query{Version: "v1.0"}, "held idle swapped"},
			{book.Query{Version: "2.0"}, "swapped"},
			{book.Query{Version: "1.0", States: []ledger.State{ledger.Idle}}, "idle"},
		} {
			if got := strings.Join(identities(t, b, row.q), " "); got != row.want {
				t.Errorf("%+v: %s", row.q, got)
			}
		}
		// Who stops early can ask on.
		for range b.List(t.Context(), book.Query{}) {
			break
		}
		identities(t, b, book.Query{})
	})
}

// What is ordered has the same end whichever way it is, and so have errors, to
// the letter.
func TestOrdersAreTheSameEitherWay(t *testing.T) {
	orders := []struct {
		order book.Order
		want  error
	}{
		{book.Order{Identity: "idle", Event: ledger.SetPin{Version: "1.0", Why: "freeze"}}, nil},
		{book.Order{Identity: "swapped", Event: ledger.SetPin{Version: "2.0"}}, nil},
		{book.Order{Identity: "idle", Event: ledger.Unpin{Why: "thaw"}}, nil},
		{book.Order{Identity: "idle", Event: ledger.Unpin{}}, nil},
		{book.Order{Identity: "held", Event: ledger.Release{Why: "repaired"}}, nil},
		{book.Order{Identity: "held", Event: ledger.Release{}}, ledger.ErrNothingHeld},
		{book.Order{Identity: "held", Event: ledger.Expect{Version: "1.5", Why: "by hand"}}, nil},
		{book.Order{Identity: "swapped", Event: ledger.Expect{Version: "1.5"}}, ledger.ErrUnderWay},
		{book.Order{Identity: "idle", Event: ledger.SetPin{Version: "../1"}}, ledger.ErrInvalidVersion},
		{book.Order{Identity: "Idle", Event: ledger.SetPin{Version: "1.0"}}, ledger.ErrNotFound},
		{book.Order{Identity: "new", Event: ledger.Release{}, New: true}, ledger.ErrNothingHeld},
		{book.Order{Identity: "new", Event: ledger.SetPin{Version: "1.0"}, New: true}, nil},
		{book.Order{Identity: "a b", Event: ledger.SetPin{Version: "1.0"}, New: true}, book.ErrInvalidIdentity},
		{book.Order{Identity: "", Event: ledger.SetPin{Version: "1.0"}, New: true}, book.ErrInvalidIdentity},
		{book.Order{Identity: "idle", Event: ledger.Configured{}}, book.ErrNotForPeople},
	}
	ends := map[string][]string{}
	for _, w := range ways() {
		b := w.open(t, func(k *ledger.Keeper) { fill(t, k) })
		for _, o := range orders {
			rec, err := b.Apply(t.Context(), o.order)
			if !errors.Is(err, o.want) {
				t.Errorf("%s: %+v: %v, want %v", w.name, o.order, err, o.want)
			}
			ends[w.name] = append(ends[w.name], fmt.Sprintf("%v %s", err, timeless(t, rec)))
		}
		for _, f := range []struct {
			identity string
			force    bool
			want     error
		}{{"idle", false, nil}, {"idle", false, ledger.ErrNotFound}, {"swapped", false, ledger.ErrUnderWay}, {"swapped", true, nil}} {
			err := b.Forget(t.Context(), f.identity, f.force)
			if !errors.Is(err, f.want) {
				t.Errorf("%s: forget %s: %v", w.name, f.identity, err)
			}
			ends[w.name] = append(ends[w.name], fmt.Sprint(err))
		}
		if got := strings.Join(identities(t, b, book.Query{}), " "); got != "held new" {
			t.Errorf("left are %s", got)
		}
	}
	if !slices.Equal(ends["file"], ends["socket"]) {
		t.Errorf("file\n%s\nsocket\n%s", strings.Join(ends["file"], "\n"), strings.Join(ends["socket"], "\n"))
	}
}

// timeless is a record without the clock on the wall.
func timeless(t testing.TB, rec ledger.Record) string {
	t.Helper()
	rec.Since, rec.Seen.At = time.Time{}, time.Time{}
	if rec.Pin != nil {
		rec.Pin.At = time.Time{}
	}
	if rec.Hold != nil {
		rec.Hold.At = time.Time{}
	}
	if rec.Trial != nil {
		rec.Trial.SentAt = time.Time{}
	}
	for i := range rec.Evidence {
		rec.Evidence[i].At = time.Time{}
	}
	if rec.Identity == "" {
		return ""
	}
	data, err := ledger.Encode(rec)
	if err != nil {
		t.Fatal(err)
	}

	return string(data)
}

// While the daemon writes a record, what people order is neither lost nor loses
// what the daemon wrote.
func TestOrdersAndTheDaemonAtOnce(t *testing.T) {
	dir := t.TempDir()
	store := openStore(t, dir)
	defer store.Close()
	keeper := daemonKeeper(store)
	if _, err := keeper.Apply(t.Context(), "node", ledger.Inventory{Version: "1.0"}); err != nil {
		t.Fatal(err)
	}
	serve(t, dir, book.New(store, keeper))
	client := dial(t, dir)

	const each = 8
	var wg sync.WaitGroup
	for i := range each {
		wg.Go(func() {
			if _, err := client.Apply(t.Context(), book.Order{Identity: "node", Event: ledger.SetPin{Version: fmt.Sprint("1.", i), Why: "person"}}); err != nil {
				t.Error(err)
			}
		})
		wg.Go(func() {
			if _, err := keeper.Apply(t.Context(), "node", ledger.Inventory{Version: fmt.Sprint("9.", i)}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	rec, err := client.Get(t.Context(), "node")
	if err != nil {
		t.Fatal(err)
	}
	pins, shown := 0, 0
	for _, e := range rec.Evidence {
		if e.Kind == ledger.Ordered {
			pins++
		}
		if strings.HasPrefix(e.Version, "9.") {
			shown++
		}
	}
	if pins != each || shown != each {
		t.Errorf("%d pins and %d versions are in the record, want %d of each", pins, shown, each)
	}
}

// rival writes the record whenever somebody has just read it.
type rival struct {
	ledger.Store
	left int
}

func (r *rival) Get(ctx context.Context, identity string) (ledger.Record, error) {
	rec, err := r.Store.Get(ctx, identity)
	if err == nil && r.left > 0 {
		r.left--
		if _, err := r.CompareAndSwap(ctx, rec); err != nil {
			return rec, err
		}
	}

	return rec, err
}

func TestForgetIsNotDiscouragedByOthers(t *testing.T) {
	store := &rival{Store: memstore.New()}
	k := daemonKeeper(store)
	fill(t, k)
	b := book.New(store, k)
	store.left = 5
	if err := b.Forget(t.Context(), "idle", false); err != nil {
		t.Error(err)
	}
	store.left = 1 << 20
	if err := b.Forget(t.Context(), "held", false); !errors.Is(err, ledger.ErrConflict) {
		t.Errorf("without an end: %v", err)
	}
}

func TestDamagedRecordIsSaid(t *testing.T) {
	memory := &memstore.Memory{}
	store := memstore.Open(memory)
	k := daemonKeeper(store)
	fill(t, k)
	dir := t.TempDir()
	serve(t, dir, book.New(store, k))
	client := dial(t, dir)

	memory.Damage("idle", []byte("{"))
	var got []string
	for rec, err := range client.List(t.Context(), book.Query{States: []ledger.State{ledger.Held}}) {
		got = append(got, fmt.Sprint(rec.Identity, errors.Is(err, ledger.ErrCorrupt)))
	}
	if want := []string{"heldfalse", "idletrue"}; !slices.Equal(got, want) {
		t.Errorf("listed are %v, want %v", got, want)
	}
	memory.Damage("held", []byte("{"))
	if _, err := client.Get(t.Context(), "held"); !errors.Is(err, ledger.ErrCorrupt) {
		t.Errorf("%v", err)
	}
}

func export(t testing.TB, b book.Book) []byte {
	t.Helper()
	var out bytes.Buffer
	err := book.Export(t.Context(), b, &out, func(identity string, err error) { t.Errorf("%s: %v", identity, err) })
	if err != nil {
		t.Fatal(err)
	}

	return out.Bytes()
}

func TestExportComesBackByEitherWay(t *testing.T) {
	onBoth(t, func(t *testing.T, b book.Book) {
		before := export(t, b)
		lines, err := book.ReadExport(before)
		if err != nil || len(lines) != 3 {
			t.Fatalf("%d lines, %v", len(lines), err)
		}
		for _, w := range ways() {
			t.Run("into "+w.name, func(t *testing.T) {
				into := w.open(t, func(*ledger.Keeper) {})
				if n, err := book.Import(t.Context(), into, lines, false); err != nil || n != 3 {
					t.Fatalf("%d imported, %v", n, err)
				}
				// Only who sent an update that is under way is not told again.
				want := bytes.ReplaceAll(before, []byte(`"unanswered":1,"epoch":3`), []byte(`"unanswered":1,"epoch":0`))
				if got := export(t, into); string(got) != string(want) {
					t.Errorf("came back as\n%s\nwant\n%s", got, want)
				}
				// Once more is no fault: an import that was interrupted is repeated.
				if err := book.CheckImport(t.Context(), into, lines, false); err != nil {
					t.Error(err)
				}
				if n, err := book.Import(t.Context(), into, lines, false); err != nil || n != 3 {
					t.Errorf("%d imported, %v", n, err)
				}
			})
		}
	})
}

func TestImportRefusesWhatIsOlderOrUnderWay(t *testing.T) {
	onBoth(t, func(t *testing.T, b book.Book) {
		old, err := book.ReadExport(export(t, b))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.Apply(t.Context(), book.Order{Identity: "idle", Event: ledger.SetPin{Version: "1.0"}}); err != nil {
			t.Fatal(err)
		}
		for i := range old {
			if old[i].Identity == "swapped" {
				old[i].Record = ledger.New("swapped")
			}
		}
		present := export(t, b)
		err = book.CheckImport(t.Context(), b, old, false)
		if !errors.Is(err, ledger.ErrNewer) || !errors.Is(err, ledger.ErrUnderWay) || strings.Count(err.Error(), "\n") != 1 {
			t.Errorf("%v", err)
		}
		if n, err := book.Import(t.Context(), b, old, false); n != 1 || !errors.Is(err, ledger.ErrNewer) || !errors.Is(err, ledger.ErrUnderWay) {
			t.Errorf("%d imported, %v", n, err)
		}
		if got := export(t, b); string(got) != string(present) {
			t.Errorf("changed to\n%s\nfrom\n%s", got, present)
		}
		if err := book.CheckImport(t.Context(), b, old, true); err != nil {
			t.Error(err)
		}
		if n, err := book.Import(t.Context(), b, old, true); n != 3 || err != nil {
			t.Errorf("%d imported, %v", n, err)
		}
		if rec, err := b.Get(t.Context(), "idle"); err != nil || rec.Pin != nil {
			t.Errorf("%+v, %v", rec.Pin, err)
		}
	})
}

func TestFileThatIsNotThereOrLocked(t *testing.T) {
	dir := t.TempDir()
	if _, err := book.OpenFile(t.Context(), dir); !errors.Is(err, book.ErrNoLedger) {
		t.Errorf("%v", err)
	}
	f, err := book.CreateFile(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if standing, err := f.Standing(t.Context()); err != nil || standing.Live {
		t.Errorf("%+v, %v", standing, err)
	}
	if _, err := book.OpenFile(t.Context(), dir); !errors.Is(err, boltstore.ErrLocked) {
		t.Errorf("%v", err)
	}
	if _, err := socket.Dial(t.Context(), dir); !errors.Is(err, socket.ErrNoDaemon) {
		t.Errorf("%v", err)
	}
}
