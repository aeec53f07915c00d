package host

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/choria-provisioner/provisioner/helper/helperv1"
	"github.com/choria-provisioner/provisioner/metrics"
	"github.com/choria-provisioner/provisioner/version/ledger"
	"github.com/choria-provisioner/provisioner/version/ledger/memstore"
)

// testLedger is the real rules over a store in memory, with a clock that the
// test moves.
type testLedger struct {
	*ledger.Keeper
	*ledger.Index
	store    *memstore.Store
	policy   ledger.Policy
	observed ledger.Observed
	epoch    uint64
	// fail makes the ledger unusable.
	fail error
}

func newTestLedger() *testLedger {
	l := &testLedger{
		store:  memstore.Open(&memstore.Memory{}),
		Index:  ledger.NewIndex(0),
		policy: ledger.Policy{Upgrades: true, Repository: true, Trial: 10 * time.Minute, ReleaseTimeout: 10 * time.Minute},
		epoch:  1,
	}
	l.Keeper = ledger.NewKeeper(l.store, l.Index, func() ledger.Env {
		return ledger.Env{Wall: time.Now(), Observed: l.observed, Epoch: l.epoch, Policy: l.policy}
	}, func(string, error) {})

	return l
}

func (l *testLedger) Apply(ctx context.Context, identity string, ev ledger.Event) (ledger.Result, error) {
	if l.fail != nil {
		return ledger.Result{}, l.fail
	}

	return l.Keeper.Apply(ctx, identity, ev)
}

func (l *testLedger) pass(d time.Duration) { l.observed = l.observed.Add(d) }

func (l *testLedger) record(t *testing.T) ledger.Record {
	t.Helper()
	rec, err := l.store.Get(t.Context(), testIdentity)
	if errors.Is(err, ledger.ErrNotFound) {
		return ledger.New(testIdentity)
	}
	must(t, err)

	return rec
}

// plugin makes the helper one that decides about versions.
func (s *setup) plugin(decide func(*helperv1.DecideReleaseRequest) (*helperv1.DecideReleaseResponse, error)) {
	s.helper.capabilities = []helperv1.Capability{helperv1.Capability_CAPABILITY_DECIDE_RELEASE}
	s.helper.decide = decide
}

func upgradeTo(v string) *helperv1.DecideReleaseResponse {
	return &helperv1.DecideReleaseResponse{Decision: &helperv1.DecideReleaseResponse_Upgrade{Upgrade: &helperv1.Upgrade{Version: v, Reason: "because"}}}
}

func rollbackTo(v string, bar bool) *helperv1.DecideReleaseResponse {
	return &helperv1.DecideReleaseResponse{Decision: &helperv1.DecideReleaseResponse_Rollback{Rollback: &helperv1.Rollback{Version: v, Reason: "because", Bar: bar}}}
}

func keep() *helperv1.DecideReleaseResponse {
	return &helperv1.DecideReleaseResponse{Decision: &helperv1.DecideReleaseResponse_Keep{Keep: &helperv1.Keep{}}}
}

// always answers every question alike.
func always(answer *helperv1.DecideReleaseResponse) func(*helperv1.DecideReleaseRequest) (*helperv1.DecideReleaseResponse, error) {
	return func(*helperv1.DecideReleaseRequest) (*helperv1.DecideReleaseResponse, error) { return answer, nil }
}

func updateReplies(messages ...string) func(context.Context, int) ([]Reply, error) {
	return func(_ context.Context, n int) ([]Reply, error) {
		m := messages[min(n, len(messages))-1]
		switch m {
		case "":
			return nil, nil
		case "ok":
			return ok(map[string]any{"message": "Restarting Choria Server after 2s"}), nil
		default:
			return []Reply{{Sender: testIdentity, Code: 1, Message: m}}, nil
		}
	}
}

// What release_update is answered, and what that comes to: the calls, the state
// of the record, how the pass ends when upgrades are optional and when not.
func TestReleaseUpdateReplies(t *testing.T) {
	const (
		rolledBack = "Update to version 0.31.0 failed, release rolled back: checksum mismatch"
		broken     = "Update to version 0.31.0 failed, rollback also failed, server in broken state: no space"
		off        = "Version updates is not enabled in the configuration"
		locked     = "Could not obtain provisioning lock"
	)
	for _, tc := range []struct {
		name    string
		replies []string
		sent    int
		state   ledger.State
		must    Result // not optional
		may     Result // optional
		err     error
	}{
		{"taken", []string{"ok"}, 1, ledger.Swapped, UpgradeSent, UpgradeSent, nil},
		{"lost is never sent again blindly", []string{""}, 1, ledger.Verify, UpgradeSent, UpgradeSent, nil},
		{"failed once, then taken", []string{rolledBack, "ok"}, 2, ledger.Swapped, UpgradeSent, UpgradeSent, nil},
		{"failed, then lost", []string{rolledBack, ""}, 2, ledger.Verify, UpgradeSent, UpgradeSent, nil},
		{"failed three times", []string{rolledBack}, 3, ledger.Idle, Refused, Provisioned, nil},
		{"could not restore its binary", []string{broken}, 1, ledger.Held, Refused, Refused, nil},
		{"updates are off on the node", []string{off}, 3, ledger.Idle, Refused, Provisioned, nil},
		{"locked for another provisioner", []string{locked}, 1, ledger.Idle, Locked, Locked, ErrLocked},
	} {
		for _, optional := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, optional %t", tc.name, optional), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := newSetup(t, Features{Upgrades: true})
					s.ledger.policy.Optional = optional
					s.plugin(always(upgradeTo("0.31.0")))
					s.node.replies[ActionUpdate] = updateReplies(tc.replies...)

					outcome, err := s.provision(t.Context())
					if err != nil {
						outcome.Result = Failure(t.Context(), err)
					}
					want := tc.must
					if optional {
						want = tc.may
					}
					if outcome.Result != want || !errors.Is(err, tc.err) {
						t.Errorf("outcome %+v, %v, want %s, %v", outcome, err, want, tc.err)
					}
					sent := 0
					for _, c := range s.caller.calls {
						if c.Action == ActionUpdate {
							sent++
							if c.Version != "0.31.0" || c.Repository != "https://repo.example.net" || c.Token != "s3cret" {
								t.Errorf("sent %+v", c)
							}
						}
					}
					if sent != tc.sent {
						t.Errorf("sent %d times, want %d", sent, tc.sent)
					}
					if rec := s.ledger.record(t); rec.State != tc.state {
						t.Errorf("record is %s, want %s: %+v", rec.State, tc.state, rec.Evidence)
					}
					if configured := slices.Contains(s.caller.actions(), ActionConfigure); configured != (want == Provisioned) {
						t.Errorf("configured %t, outcome %s", configured, want)
					}
				})
			})
		}
	}
}

// A plugin's upgrade spares the node a key; an exec helper's is decided after it.
func TestWhereIsDecided(t *testing.T) {
	t.Run("plugin", func(t *testing.T) {
		s := newSetup(t, Features{PKI: true, Upgrades: true})
		s.plugin(always(upgradeTo("0.31.0")))
		outcome, err := s.provision(t.Context())
		must(t, err)
		if got := s.caller.actions(); outcome.Result != UpgradeSent || !slices.Equal(got, []string{ActionInventory, ActionUpdate}) {
			t.Errorf("outcome %+v, calls %v", outcome, got)
		}
	})
	t.Run("exec helper", func(t *testing.T) {
		s := newSetup(t, Features{PKI: true, Upgrades: true})
		s.helper.configure = configureWith(func(c *helperv1.Configure) { c.Version = "v0.31.0" })
		outcome, err := s.provision(t.Context())
		must(t, err)
		if got := s.caller.actions(); outcome.Result != UpgradeSent || !slices.Equal(got, []string{ActionInventory, ActionGenCSR, ActionUpdate}) {
			t.Errorf("outcome %+v, calls %v", outcome, got)
		}
		if sent := s.caller.last(ActionUpdate); sent.Version != "v0.31.0" {
			t.Errorf("sent %q", sent.Version)
		}
	})
	t.Run("exec helper that goes back bars nothing", func(t *testing.T) {
		s := newSetup(t, Features{Upgrades: true})
		s.helper.configure = configureWith(func(c *helperv1.Configure) { c.Version = "0.29.0" })
		_, err := s.provision(t.Context())
		must(t, err)
		if rec := s.ledger.record(t); rec.Trial == nil || rec.Trial.Direction != ledger.Rollback || len(rec.Barred()) > 0 {
			t.Errorf("record %+v", rec)
		}
	})
	t.Run("plugin that goes back and bars", func(t *testing.T) {
		s := newSetup(t, Features{Upgrades: true})
		s.plugin(always(rollbackTo("0.29.0", true)))
		_, err := s.provision(t.Context())
		must(t, err)
		if rec := s.ledger.record(t); !slices.Equal(rec.Barred(), []string{"0.30.2"}) {
			t.Errorf("record %+v", rec)
		}
	})
	t.Run("with upgrades off nothing is asked, sent or written", func(t *testing.T) {
		s := newSetup(t, Features{})
		s.plugin(always(upgradeTo("0.31.0")))
		s.helper.configure = configureWith(func(c *helperv1.Configure) { c.Version = "0.31.0" })
		outcome, err := s.provision(t.Context())
		must(t, err)
		if rec := s.ledger.record(t); outcome.Result != Provisioned || rec.State != ledger.Unknown || slices.Contains(s.caller.actions(), ActionUpdate) {
			t.Errorf("outcome %+v, record %+v", outcome, rec)
		}
	})
	t.Run("a plugin defers or shuts down before a key is made", func(t *testing.T) {
		s := newSetup(t, Features{PKI: true, Upgrades: true})
		s.plugin(always(&helperv1.DecideReleaseResponse{Decision: &helperv1.DecideReleaseResponse_Defer{Defer: &helperv1.Defer{Reason: "freeze"}}}))
		outcome, err := s.provision(t.Context())
		must(t, err)
		if got := s.caller.actions(); outcome.Result != Deferred || !slices.Equal(got, []string{ActionInventory}) {
			t.Errorf("outcome %+v, calls %v", outcome, got)
		}
	})
}

// A helper that fails, or decides what cannot be, changes no version.
func TestDecisionFaults(t *testing.T) {
	for _, tc := range []struct {
		name   string
		answer *helperv1.DecideReleaseResponse
		err    error
		says   string
	}{
		{"it dies", nil, status.Error(codes.Unavailable, "gone"), "helper unavailable"},
		{"it is too slow", nil, status.Error(codes.DeadlineExceeded, "no answer within 10s"), "no answer within 10s"},
		{"no version", upgradeTo(""), nil, "names no version"},
		{"a time below zero", &helperv1.DecideReleaseResponse{Decision: &helperv1.DecideReleaseResponse_Upgrade{Upgrade: &helperv1.Upgrade{Version: "0.31.0", MinHealthy: durationpb.New(-1)}}}, nil, "min_healthy"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newSetup(t, Features{Upgrades: true})
			s.plugin(func(*helperv1.DecideReleaseRequest) (*helperv1.DecideReleaseResponse, error) {
				return tc.answer, tc.err
			})
			_, err := s.provision(t.Context())
			if err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("error %v, want %q", err, tc.says)
			}
			if got := s.caller.actions(); !slices.Equal(got, []string{ActionInventory}) {
				t.Errorf("calls %v", got)
			}
			if rec := s.ledger.record(t); rec.State != ledger.Idle {
				t.Errorf("record %+v", rec)
			}
		})
	}
}

// Guards that a node can meet on its way in, with the same helper: optional is
// provisioned as it is, else refused and nothing is sent.
func TestGuardsAndOptional(t *testing.T) {
	for _, tc := range []struct {
		guard  ledger.Guard
		edit   func(s *setup)
		answer *helperv1.DecideReleaseResponse
	}{
		{ledger.GuardNoRepository, func(s *setup) { s.ledger.policy.Repository = false }, upgradeTo("0.31.0")},
		{ledger.GuardNoVersion, func(s *setup) { delete(s.node.inventory, "version") }, upgradeTo("0.31.0")},
		{ledger.GuardNotUpgradable, func(s *setup) { s.node.inventory["upgradable"] = false }, upgradeTo("0.31.0")},
		{ledger.GuardInvalidVersion, nil, upgradeTo("../../etc/passwd")},
		{ledger.GuardAmbiguous, nil, upgradeTo("0.30.2.0")},
		{ledger.GuardOlderThanCurrent, nil, upgradeTo("0.29.0")},
		{ledger.GuardNewerThanCurrent, nil, rollbackTo("0.31.0", false)},
		{ledger.GuardPinned, func(s *setup) { s.order(ledger.SetPin{Version: "0.30.2"}) }, upgradeTo("0.31.0")},
	} {
		for _, optional := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, optional %t", tc.guard, optional), func(t *testing.T) {
				s := newSetup(t, Features{Upgrades: true})
				s.ledger.policy.Optional = optional
				if tc.edit != nil {
					tc.edit(s)
				}
				s.plugin(always(tc.answer))
				outcome, err := s.provision(t.Context())
				must(t, err)
				want := Refused
				if optional {
					want = Provisioned
				}
				if outcome.Result != want || slices.Contains(s.caller.actions(), ActionUpdate) {
					t.Errorf("outcome %+v, want %s; calls %v", outcome, want, s.caller.actions())
				}
				if !optional && !strings.Contains(outcome.Reason, string(tc.guard)) {
					t.Errorf("reason %q does not name the guard", outcome.Reason)
				}
				if !strings.Contains(s.log.String(), "guard "+string(tc.guard)) {
					t.Errorf("the log does not name the guard: %s", s.log)
				}
			})
		}
	}
}

func (s *setup) order(ev ledger.Event) {
	if _, err := s.ledger.Apply(context.Background(), testIdentity, ev); err != nil {
		panic(err)
	}
}

// The whole life of a bad version: sent, arrives, is refused by its own node
// twice, goes back once, is never sent again.
func TestConvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSetup(t, Features{Upgrades: true})
		s.ledger.policy.Optional = true
		s.plugin(always(upgradeTo("0.31.0")))
		s.node.replies[ActionConfigure] = func(context.Context, int) ([]Reply, error) {
			if s.node.inventory["version"] == "0.31.0" {
				return []Reply{{Sender: testIdentity, Code: 1, Message: "cannot write the configuration"}}, nil
			}
			return ok(map[string]any{"message": "done"}), nil
		}
		next := func(version string, want Result) {
			t.Helper()
			s.node.inventory["version"] = version
			s.ledger.pass(time.Minute)
			s.caller.calls = nil
			outcome, err := s.provision(t.Context())
			if err != nil {
				outcome.Result = Failure(t.Context(), err)
			}
			if outcome.Result != want {
				t.Fatalf("outcome %+v, %v, want %s", outcome, err, want)
			}
		}

		next("0.30.2", UpgradeSent)
		next("0.31.0", Failed)
		next("0.31.0", UpgradeSent)
		if sent := s.caller.last(ActionUpdate); sent.Version != "0.30.2" {
			t.Errorf("went back to %q", sent.Version)
		}
		next("0.30.2", Provisioned)
		if s.ledger.pass(time.Hour); slices.Contains(s.caller.actions(), ActionUpdate) {
			t.Error("the barred version was sent again")
		}
		if rec := s.ledger.record(t); !slices.Equal(rec.Barred(), []string{"0.31.0"}) {
			t.Errorf("record %+v", rec)
		}
	})
}

// A node in the middle of its update is asked behind its lock first, and is
// neither given keys nor configured.
func TestUpdatingNode(t *testing.T) {
	for _, tc := range []struct {
		name string
		jwt  func(context.Context, int) ([]Reply, error)
		free bool
	}{
		{"its lock is free", nil, true},
		{"it has no JWT to show", func(context.Context, int) ([]Reply, error) {
			return []Reply{{Sender: testIdentity, Code: 1, Message: "no JWT"}}, nil
		}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSetup(t, Features{Upgrades: true})
				s.plugin(always(upgradeTo("0.31.0")))
				s.node.replies[ActionUpdate] = updateReplies("")
				_, err := s.provision(t.Context())
				must(t, err)

				s.node.replies[ActionJWT] = tc.jwt
				for look := 1; look <= 2; look++ {
					s.ledger.pass(15 * time.Second)
					s.caller.calls = nil
					outcome, err := s.provision(t.Context())
					must(t, err)
					want := []string{ActionJWT, ActionInventory}
					if look == 2 {
						want = append(want, ActionUpdate)
					}
					// An answer that is no OK is tried again.
					if got := slices.Compact(s.caller.actions()); !slices.Equal(got, want) {
						t.Errorf("look %d: calls %v, want %v; outcome %+v", look, got, want, outcome)
					}
				}
				if rec := s.ledger.record(t); rec.Trial.Sends != 2 || !rec.Trial.Resent {
					t.Errorf("record %+v", rec.Trial)
				}
			})
		})
	}
}

// A ledger that cannot be written sends nothing.
func TestLedgerDown(t *testing.T) {
	s := newSetup(t, Features{Upgrades: true})
	s.ledger.fail = errors.New("disk full")
	s.plugin(always(upgradeTo("0.31.0")))
	_, err := s.provision(t.Context())
	if err == nil || !strings.Contains(err.Error(), "disk full") {
		t.Errorf("error %v", err)
	}
	if got := s.caller.actions(); !slices.Equal(got, []string{ActionInventory}) {
		t.Errorf("calls %v", got)
	}
}

// The end of the lease while release_update is out: the reply is lost, and that
// is on record, so that the next leader looks before it sends.
func TestUpdateCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSetup(t, Features{Upgrades: true})
		s.plugin(always(upgradeTo("0.31.0")))
		ctx, cancel := context.WithCancel(t.Context())
		s.node.replies[ActionUpdate] = func(context.Context, int) ([]Reply, error) {
			cancel()
			return nil, ErrDisconnected
		}
		if outcome, err := s.provision(ctx); err == nil {
			t.Errorf("outcome %+v", outcome)
		}
		if rec := s.ledger.record(t); rec.State != ledger.Verify {
			t.Errorf("record is %s", rec.State)
		}
	})
}

// A configured node is on trial, and only its own refusals speak against it.
func TestTrialBegins(t *testing.T) {
	for _, tc := range []struct {
		name  string
		reply func(context.Context, int) ([]Reply, error)
		state ledger.State
		count int
	}{
		{"configured", nil, ledger.Trial, 0},
		{"refused", func(context.Context, int) ([]Reply, error) {
			return []Reply{{Sender: testIdentity, Code: 1, Message: "no"}}, nil
		}, ledger.Arrived, 1},
		{"silent", func(context.Context, int) ([]Reply, error) { return nil, nil }, ledger.Arrived, 0},
		{"locked", func(context.Context, int) ([]Reply, error) {
			return []Reply{{Sender: testIdentity, Code: 1, Message: "Could not obtain provisioning lock"}}, nil
		}, ledger.Arrived, 0},
		{"disconnected", func(context.Context, int) ([]Reply, error) { return nil, ErrDisconnected }, ledger.Arrived, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSetup(t, Features{Upgrades: true})
				s.plugin(always(upgradeTo("0.31.0")))
				_, err := s.provision(t.Context())
				must(t, err)
				s.node.inventory["version"] = "0.31.0"
				s.ledger.pass(time.Minute)
				s.node.replies[ActionRestart] = tc.reply
				_, _ = s.provision(t.Context())
				if rec := s.ledger.record(t); rec.State != tc.state || rec.Trial.Refusals != tc.count {
					t.Errorf("record is %s with %d refusals, want %s with %d", rec.State, rec.Trial.Refusals, tc.state, tc.count)
				}
			})
		})
	}
}

// The helper is told what the ledger knows.
func TestDecisionRequest(t *testing.T) {
	s := newSetup(t, Features{Upgrades: true})
	var asked *helperv1.DecideReleaseRequest
	s.plugin(func(req *helperv1.DecideReleaseRequest) (*helperv1.DecideReleaseResponse, error) {
		asked = req
		return keep(), nil
	})
	s.order(ledger.SetPin{Version: "0.30.2"})
	_, err := s.provision(t.Context())
	must(t, err)
	if r := asked.GetRecord(); r.GetKnownGood() != "0.30.2" || r.GetPin() != "0.30.2" || r.GetTrial() != "" || len(r.GetBarred()) > 0 {
		t.Errorf("record %v", r)
	}
	if asked.GetNode().GetVersion() != "0.30.2" || asked.GetRequestId() != s.helper.asked[0].GetRequestId() {
		t.Errorf("asked %v", asked)
	}
}

// Every guard has its series from the start.
func TestGuardMetrics(t *testing.T) {
	families, err := metrics.New("").Gatherer().Gather()
	must(t, err)
	known := map[string]bool{}
	for _, f := range families {
		if f.GetName() != "choria_provisioner_decisions_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "guard" {
					known[l.GetValue()] = true
				}
			}
		}
	}
	for _, g := range ledger.Guards() {
		if !known[string(g)] {
			t.Errorf("guard %s has no series", g)
		}
		delete(known, string(g))
	}
	delete(known, metrics.Allowed)
	if len(known) > 0 {
		t.Errorf("series of no guard: %v", known)
	}
}

// A record holds what a node shows many times over: a waiting node that shows
// megabytes may not write them there.
func TestLongVersionIsNotRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSetup(t, Features{Upgrades: true})
		s.plugin(always(upgradeTo("0.31.0")))
		s.node.inventory["version"] = strings.Repeat("9", 900_000)
		_, err := s.provision(t.Context())
		if err == nil || !strings.Contains(err.Error(), "the node's version has 900000 bytes") {
			t.Errorf("error %v", err)
		}
		if rec := s.ledger.record(t); rec.State != ledger.Unknown {
			t.Errorf("the record is %s", rec.State)
		}
	})
}
