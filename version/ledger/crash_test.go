package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/choria-provisioner/provisioner/version/ledger"
	"github.com/choria-provisioner/provisioner/version/ledger/memstore"
)

// errKilled ends a daemon at a fail point.
var errKilled = errors.New("killed")

// machine is a real node in small: what it does with an update.
type machine struct {
	version string
	// loses is how many replies to updates are lost.
	loses int
	// deaf is how many updates never reach it.
	deaf int
	// refuses are versions with which it refuses its configuration.
	refuses map[string]bool
	sent    []string
	// inMain is set once it runs in the fleet.
	inMain bool
}

func (m *machine) update(v string) ledger.ReplyResult {
	m.sent = append(m.sent, v)
	if m.deaf > 0 {
		m.deaf--
		return ledger.ReplyLost
	}
	m.version = v
	if m.loses > 0 {
		m.loses--
		return ledger.ReplyLost
	}

	return ledger.ReplyOK
}

// daemon is one life of a leader over one node. It dies before the action
// number killAt; a write and a send are two actions each, as it may die before
// or after.
type daemon struct {
	t       *testing.T
	store   *memstore.Store
	machine *machine
	env     *ledger.Env
	killAt  int
	actions *int
}

func (d *daemon) point() error {
	*d.actions++
	if *d.actions == d.killAt {
		return errKilled
	}

	return nil
}

// apply is what the daemon does with every event.
func (d *daemon) apply(ev ledger.Event) (ledger.Result, error) {
	ctx := context.Background()
	rec, err := d.store.Get(ctx, "node")
	if errors.Is(err, ledger.ErrNotFound) {
		rec, err = ledger.New("node"), nil
	}
	if err != nil {
		d.t.Fatal(err)
	}
	result, err := ledger.Step(rec, ev, *d.env)
	if err != nil {
		d.t.Fatal(err)
	}
	if result.Changed {
		if err := d.point(); err != nil {
			return result, err
		}
		if _, err := d.store.CompareAndSwap(ctx, result.Record); err != nil {
			d.t.Fatal(err)
		}
		if err := d.point(); err != nil {
			return result, err
		}
	}
	for _, e := range result.Effects {
		send, ok := e.(ledger.Send)
		if !ok {
			continue
		}
		if err := d.point(); err != nil {
			return result, err
		}
		reply := d.machine.update(send.Version)
		if err := d.point(); err != nil {
			return result, err
		}
		if result, err = d.apply(ledger.Reply{AttemptID: send.AttemptID, Result: reply}); err != nil {
			return result, err
		}
	}

	return result, nil
}

// pass is one pass over the node, and what its fleet hears of it.
func (d *daemon) pass(want string) error {
	if d.machine.inMain {
		_, err := d.apply(ledger.SeenInMain{Version: d.machine.version})
		return err
	}
	result, err := d.apply(ledger.Inventory{Version: d.machine.version, LockFree: true})
	if err != nil || result.Next != ledger.NextContinue {
		return err
	}
	decision := ledger.Wish(d.machine.version, want)
	decision.Upgradable = true
	decision.AttemptID = fmt.Sprintf("%d-%s", d.env.Epoch, d.env.Observed)
	result, err = d.apply(decision)
	if err != nil || result.Next != ledger.NextContinue {
		return err
	}
	if d.machine.refuses[d.machine.version] {
		_, err = d.apply(ledger.Refused{Action: "choria_provision#configure", Pass: decision.AttemptID})
		return err
	}
	d.machine.inMain = true
	_, err = d.apply(ledger.Configured{})

	return err
}

// live runs daemons, one after the other, until the node has been in the fleet
// for a while. The first dies at killAt.
func live(t *testing.T, m *machine, killAt int) (rec ledger.Record, actions int) {
	env := &ledger.Env{
		Wall: time.Unix(0, 0), Observed: ledger.Observed(time.Hour),
		Policy: ledger.Policy{Upgrades: true, Optional: true, Repository: true, Trial: 10 * time.Minute, ReleaseTimeout: 10 * time.Minute},
	}
	memory := &memstore.Memory{}
	start := func() *daemon {
		s := memstore.Open(memory)
		epoch, err := s.BeginEpoch(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		env.Epoch = epoch

		return &daemon{t: t, store: s, machine: m, env: env, killAt: killAt, actions: &actions}
	}

	d := start()
	for range 30 {
		env.Observed = env.Observed.Add(20 * time.Second)
		if err := d.pass("2.0"); err != nil {
			if err := d.store.Close(); err != nil {
				t.Fatal(err)
			}
			d = start()
			if _, err := d.apply(ledger.Found{}); err != nil {
				t.Fatal("killed twice")
			}
		}
	}
	rec, err := d.store.Get(context.Background(), "node")
	if err != nil {
		t.Fatal(err)
	}

	return rec, actions
}

// A daemon that is killed before or after any write or send comes to the same
// verdict as one that is not, and sends at most what a lost reply explains.
func TestKilledAnywhereEndsInTheSameVerdict(t *testing.T) {
	for _, row := range []struct {
		name    string
		machine func() *machine
		state   ledger.State
		good    string
		version string
		sends   int
	}{
		{"upgraded", func() *machine { return &machine{version: "1.0"} }, ledger.Idle, "2.0", "2.0", 1},
		{"the reply is lost", func() *machine { return &machine{version: "1.0", loses: 1} }, ledger.Idle, "2.0", "2.0", 1},
		{"the update is lost", func() *machine { return &machine{version: "1.0", deaf: 1} }, ledger.Idle, "2.0", "2.0", 2},
		{"the update is lost twice", func() *machine { return &machine{version: "1.0", deaf: 9} }, ledger.Held, "1.0", "1.0", 2},
		{"refuses with the new version", func() *machine {
			return &machine{version: "1.0", refuses: map[string]bool{"2.0": true}}
		}, ledger.Idle, "1.0", "1.0", 2},
		{"refuses with both", func() *machine {
			return &machine{version: "1.0", refuses: map[string]bool{"1.0": true, "2.0": true}}
		}, ledger.Held, "1.0", "1.0", 2},
	} {
		t.Run(row.name, func(t *testing.T) {
			_, actions := live(t, row.machine(), 0)
			if actions < 8 {
				t.Fatalf("only %d actions", actions)
			}
			for killAt := range actions + 1 {
				m := row.machine()
				rec, _ := live(t, m, killAt)
				if rec.State != row.state || rec.KnownGood.Version != row.good || m.version != row.version {
					t.Errorf("killed at %d of %d: %s, known-good %s, runs %s; want %s, %s, %s\n%+v",
						killAt, actions, rec.State, rec.KnownGood.Version, m.version, row.state, row.good, row.version, rec.Evidence)
				}
				// Killed with an update in hand, nobody knows whether it left:
				// one more is sent to a node that shows it has not taken it.
				if extra := len(m.sent) - row.sends; extra > 1 || extra == 1 && killAt == 0 || extra < 0 {
					t.Errorf("killed at %d of %d: sent were %q, want %d", killAt, actions, m.sent, row.sends)
				}
			}
		})
	}
}
