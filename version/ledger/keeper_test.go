package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/choria-provisioner/provisioner/version/ledger"
	"github.com/choria-provisioner/provisioner/version/ledger/memstore"
)

func keeper(t testing.TB, store ledger.Store, policy func(p *ledger.Policy)) (*ledger.Keeper, *ledger.Index) {
	n := newNode(t)
	if policy != nil {
		policy(&n.env.Policy)
	}
	x := ledger.NewIndex(0)

	return ledger.NewKeeper(store, x, func() ledger.Env { return n.env }, func(identity string, err error) { t.Logf("set aside: %s: %v", identity, err) }), x
}

func TestKeeperStoresAndCounts(t *testing.T) {
	store := memstore.New()
	k, x := keeper(t, store, nil)
	for _, ev := range []ledger.Event{ledger.Answered{}, ledger.SeenInMain{Version: "1.0"}, ledger.Upgraded{Version: "2.0"}, ledger.Tick{}, ledger.Found{}} {
		if result, err := k.Apply(t.Context(), "invented", ev); err != nil || result.Changed {
			t.Errorf("%T makes a record of a node nobody has answered for: %v", ev, err)
		}
	}

	result, err := k.Apply(t.Context(), "node", upgrade("2.0"))
	if err != nil || result.Next != ledger.NextSend {
		t.Fatalf("%+v, %v", result, err)
	}
	rec, err := store.Get(t.Context(), "node")
	if err != nil || rec.State != ledger.Intent || rec.Revision != result.Record.Revision {
		t.Errorf("stored is %+v, %v", rec, err)
	}
	if x.OnTrial() != 1 {
		t.Errorf("%d nodes on trial", x.OnTrial())
	}

	again, other := keeper(t, store, nil)
	if err := again.Load(t.Context()); err != nil || other.OnTrial() != 1 {
		t.Errorf("loaded are %d nodes on trial, %v", other.OnTrial(), err)
	}
	if err := k.Forget(t.Context(), "node"); err != nil || x.OnTrial() != 0 {
		t.Errorf("forgotten: %d nodes on trial, %v", x.OnTrial(), err)
	}
	if err := k.Forget(t.Context(), "node"); !errors.Is(err, ledger.ErrNotFound) {
		t.Errorf("forgotten twice: %v", err)
	}
}

// rival writes the record whenever somebody has just read it.
type rival struct {
	*memstore.Store
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

func TestKeeperIsNotDiscouragedByOthers(t *testing.T) {
	store := &rival{Store: memstore.New()}
	k, _ := keeper(t, store, nil)
	if _, err := k.Apply(t.Context(), "node", ledger.Inventory{Version: "1.0"}); err != nil {
		t.Fatal(err)
	}
	store.left = 5
	if result, err := k.Apply(t.Context(), "node", upgrade("2.0")); err != nil || result.Next != ledger.NextSend {
		t.Errorf("%+v, %v", result, err)
	}
	store.left = 1 << 20
	if _, err := k.Apply(t.Context(), "node", ledger.Reply{AttemptID: "up-2.0", Result: ledger.ReplyOK}); !errors.Is(err, ledger.ErrConflict) {
		t.Errorf("without an end: %v", err)
	}
}

// full is a store on a disk without room.
type full struct{ *memstore.Store }

var errFull = errors.New("no space left on device")

func (full) CompareAndSwap(context.Context, ledger.Record) (uint64, error) { return 0, errFull }

func TestNothingIsSentThatIsNotStored(t *testing.T) {
	k, x := keeper(t, full{memstore.New()}, nil)
	result, err := k.Apply(t.Context(), "node", upgrade("2.0"))
	if !errors.Is(err, errFull) || len(result.Effects) > 0 || result.Next != ledger.NextLeave || x.OnTrial() != 0 {
		t.Errorf("%+v, %v", result, err)
	}
}

func TestDamagedRecordIsMetAnew(t *testing.T) {
	memory := &memstore.Memory{}
	k, _ := keeper(t, memstore.Open(memory), nil)
	if _, err := k.Apply(t.Context(), "node", ledger.Inventory{Version: "1.0"}); err != nil {
		t.Fatal(err)
	}
	memory.Damage("node", []byte("{"))
	result, err := k.Apply(t.Context(), "node", ledger.Inventory{Version: "2.0"})
	if err != nil || result.Record.State != ledger.Idle || result.Record.Seen.Version != "2.0" {
		t.Errorf("%+v, %v", result, err)
	}
	memory.Damage("node", []byte("{"))
	if err := k.Load(t.Context()); err != nil {
		t.Error(err)
	}
}

// However many workers ask at once, no more nodes are on trial than may be.
func TestBudgetHoldsAgainstManyWorkers(t *testing.T) {
	k, x := keeper(t, memstore.New(), func(p *ledger.Policy) { p.MaxInTrial = 7 })
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			if _, err := k.Apply(context.Background(), fmt.Sprint(i), upgrade("2.0")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := x.OnTrial(); got != 7 {
		t.Errorf("%d nodes on trial, want 7", got)
	}
}
