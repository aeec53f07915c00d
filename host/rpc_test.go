package host

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

const (
	rpcTime   = "choria_provisioner_rpc_time"
	rpcErrors = "choria_provisioner_rpc_errors"
)

// Every action, spoilt for good: as many attempts as its row in the table
// allows, one observation each, one error in all, and the last error's text.
func TestTries(t *testing.T) {
	all := Features{JWT: true, ED25519: true}
	pki := Features{JWT: true, PKI: true}
	for _, tc := range []struct {
		action   string
		features Features
		tries    int
	}{
		{ActionJWT, all, 3},
		{ActionGen25519, all, 5},
		{ActionInventory, all, 5},
		{ActionGenCSR, pki, 1},
		{ActionConfigure, all, 5},
		{ActionRestart, all, 3},
	} {
		t.Run(tc.action, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSetup(t, tc.features)
				s.node.replies[tc.action] = func(_ context.Context, n int) ([]Reply, error) {
					return refuse(1, "disk full "+strings.Repeat("!", n)), nil
				}

				_, err := s.provision(t.Context())
				if err == nil {
					t.Fatal("a node that always refuses was provisioned")
				}
				if !strings.Contains(err.Error(), tc.action) || !strings.HasSuffix(err.Error(), "disk full "+strings.Repeat("!", tc.tries)) {
					t.Errorf("error %q does not name the action and the last answer", err)
				}
				if got := s.node.counts[tc.action]; got != tc.tries {
					t.Errorf("%d attempts, want %d", got, tc.tries)
				}
				if got := sample(t, s.cfg.Metrics, rpcTime, tc.action); got != float64(tc.tries) {
					t.Errorf("%v observations of rpc_time, want one an attempt: %d", got, tc.tries)
				}
				if got := sample(t, s.cfg.Metrics, rpcErrors, tc.action); got != 1 {
					t.Errorf("rpc_errors is %v, want 1 for the call", got)
				}
			})
		})
	}
}

func TestRetries(t *testing.T) {
	failTimes := func(times int, spoil func() ([]Reply, error)) func(*setup) func(context.Context, int) ([]Reply, error) {
		return func(s *setup) func(context.Context, int) ([]Reply, error) {
			return func(_ context.Context, n int) ([]Reply, error) {
				if n <= times {
					return spoil()
				}
				return s.node.good(Request{Action: ActionInventory}), nil
			}
		}
	}
	silent := func() ([]Reply, error) { return nil, nil }

	for _, tc := range []struct {
		name     string
		why      string
		action   string
		answer   func(*setup) func(context.Context, int) ([]Reply, error)
		attempts int
		errors   float64
		want     error
		text     string
	}{
		{
			name: "four failures then an answer", why: "a node that comes up slowly",
			action: ActionInventory, answer: failTimes(4, silent), attempts: 5,
		},
		{
			name: "five silences", why: "no sixth call; the last real error, not a cancelled context",
			action: ActionInventory, answer: failTimes(9, silent), attempts: 5, errors: 1,
			want: ErrNotAnswered, text: "rpcutil#inventory failed after 5 tries: not answered",
		},
		{
			name: "locked", why: "another provisioner works on the node: no try is taken, nothing is counted",
			action: ActionInventory, answer: failTimes(9, func() ([]Reply, error) { return refuse(1, lockedMessage), nil }), attempts: 1,
			want: ErrLocked,
		},
		{
			name: "locked later", why: "the other one came in between; the earlier failure is no error of the call",
			action: ActionInventory, answer: func(s *setup) func(context.Context, int) ([]Reply, error) {
				return func(_ context.Context, n int) ([]Reply, error) {
					if n == 1 {
						return nil, nil
					}
					return refuse(1, lockedMessage), nil
				}
			},
			attempts: 2, want: ErrLocked,
		},
		{
			name: "two replies", why: "twins or an impostor: trying again answers nothing",
			action: ActionInventory, answer: failTimes(9, func() ([]Reply, error) {
				return []Reply{{Sender: testIdentity, Data: []byte("{}")}, {}}, nil
			}), attempts: 1, errors: 1, want: ErrTwins,
		},
		{
			name: "another's reply", why: "an impostor that does not even use the name",
			action: ActionInventory, answer: failTimes(9, func() ([]Reply, error) {
				return []Reply{{Sender: "n2.example.net", Data: []byte("{}")}}, nil
			}), attempts: 1, errors: 1, want: ErrTwins,
		},
		{
			name: "restart unanswered", why: "the node may be restarting: it is not told a second time",
			action: ActionRestart, answer: failTimes(9, silent), attempts: 1, errors: 1,
			want: ErrNotAnswered, text: "choria_provision#restart failed: not answered",
		},
		{
			name: "restart refused once", why: "an answer that says nothing was done can be tried again",
			action: ActionRestart, answer: failTimes(1, func() ([]Reply, error) { return refuse(1, "busy"), nil }), attempts: 2,
		},
		{
			name: "disconnected", why: "a call in flight when the broker went is tried again",
			action: ActionInventory, answer: failTimes(2, func() ([]Reply, error) { return nil, ErrDisconnected }), attempts: 3,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSetup(t, Features{})
				s.node.replies[tc.action] = tc.answer(s)

				_, err := s.provision(t.Context())
				if !errors.Is(err, tc.want) {
					t.Fatalf("error %v, want %v (%s)", err, tc.want, tc.why)
				}
				if tc.text != "" && err.Error() != tc.text {
					t.Errorf("error text %q, want %q", err, tc.text)
				}
				if got := s.node.counts[tc.action]; got != tc.attempts {
					t.Errorf("%d attempts, want %d (%s)", got, tc.attempts, tc.why)
				}
				if got := sample(t, s.cfg.Metrics, rpcErrors, tc.action); got != tc.errors {
					t.Errorf("rpc_errors is %v, want %v (%s)", got, tc.errors, tc.why)
				}
			})
		})
	}
}

// The gate closes between two attempts, before the first, and in the middle of
// one: no new attempt begins and the one in flight is cancelled.
func TestGateClosesInTheMiddle(t *testing.T) {
	t.Run("between attempts", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSetup(t, Features{})
			s.node.replies[ActionInventory] = func(context.Context, int) ([]Reply, error) {
				s.gate.closed.Store(true)
				return nil, nil
			}

			_, err := s.provision(t.Context())
			if !errors.Is(err, ErrPaused) {
				t.Fatalf("error %v, want ErrPaused", err)
			}
			if got := s.node.counts[ActionInventory]; got != 1 {
				t.Errorf("%d attempts, want 1", got)
			}
			if got := sample(t, s.cfg.Metrics, rpcErrors, ActionInventory); got != 0 {
				t.Errorf("rpc_errors is %v, a pause is no error", got)
			}
		})
	})

	t.Run("before the call", func(t *testing.T) {
		s := newSetup(t, Features{})
		s.gate.closed.Store(true)

		_, err := s.provision(t.Context())
		if !errors.Is(err, ErrPaused) || len(s.caller.calls) != 0 {
			t.Fatalf("error %v and %d calls, want ErrPaused and none", err, len(s.caller.calls))
		}
	})

	t.Run("in an attempt", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSetup(t, Features{})
			lease, lose := context.WithCancelCause(t.Context())
			s.node.replies[ActionInventory] = func(ctx context.Context, _ int) ([]Reply, error) {
				lose(ErrPaused)
				<-ctx.Done()
				return nil, context.Cause(ctx)
			}

			_, err := s.provision(lease)
			if !errors.Is(err, ErrPaused) {
				t.Fatalf("error %v, want ErrPaused", err)
			}
			if got := s.node.counts[ActionInventory]; got != 1 {
				t.Errorf("%d attempts after the lease was lost, want 1", got)
			}
			if got := sample(t, s.cfg.Metrics, rpcErrors, ActionInventory); got != 0 {
				t.Errorf("rpc_errors is %v, a lost lease is no error of the node", got)
			}
		})
	})
}

// A node that takes longer than two seconds to answer does not keep its worker.
func TestSlowNodeLendsItsWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSetup(t, Features{})
		s.node.replies[ActionInventory] = func(context.Context, int) ([]Reply, error) {
			time.Sleep(3 * time.Second)
			return s.node.good(Request{Action: ActionInventory}), nil
		}

		if _, err := s.provision(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := s.slot.lent.Load(); got != 1 {
			t.Errorf("the worker was lent %d times, want once, for the slow call", got)
		}
	})
}

// A second machine's reply that is seen after its call ended stops the pass
// before the configuration leaves, and not after.
func TestDoubtStopsThePass(t *testing.T) {
	for after, want := range map[string]error{
		ActionJWT:       ErrTwins,
		ActionInventory: ErrTwins,
		ActionConfigure: nil,
	} {
		t.Run(after, func(t *testing.T) {
			s := newSetup(t, Features{JWT: true})
			s.cfg.Doubted = func() bool { return s.node.counts[after] > 0 }
			_, err := s.provision(t.Context())
			if !errors.Is(err, want) {
				t.Errorf("error %v, want %v", err, want)
			}
			if configured := s.node.counts[ActionConfigure] > 0; configured != (want == nil) {
				t.Errorf("configured is %v", configured)
			}
		})
	}
}
