//go:build unix

package releases_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/choria-provisioner/provisioner/fleet/releases"
	"github.com/choria-provisioner/provisioner/helper/helperv1"
	"github.com/choria-provisioner/provisioner/host"
	"github.com/choria-provisioner/provisioner/metrics"
	"github.com/choria-provisioner/provisioner/version/ledger"
	"github.com/choria-provisioner/provisioner/version/ledger/boltstore"
)

// The environment of a child: a daemon in small, over one node.
const (
	crashDir      = "CRASH_TEST_DIR"
	crashKillAt   = "CRASH_TEST_KILL_AT"
	crashScenario = "CRASH_TEST_SCENARIO"
)

const crashNode = "n1.example.net"

// scenario is how the node takes a version.
type scenario struct {
	name string
	// loses is how many replies to updates are lost, deaf how many updates do
	// not reach it; refuses is the version with which it refuses to be
	// configured.
	loses, deaf int
	refuses     string
	// sends is how often it is sent a version by a daemon that is not killed.
	sends  int
	state  ledger.State
	good   string
	runs   string
	longer bool
}

func scenarios() []scenario {
	return []scenario{
		{name: "upgraded", sends: 1, state: ledger.Idle, good: "2.0", runs: "2.0"},
		{name: "refuses with the new version", refuses: "2.0", sends: 2, state: ledger.Idle, good: "1.0", runs: "1.0"},
		{name: "the reply is lost", loses: 1, sends: 1, state: ledger.Idle, good: "2.0", runs: "2.0", longer: true},
		{name: "the update is lost", deaf: 1, sends: 2, state: ledger.Idle, good: "2.0", runs: "2.0", longer: true},
		{name: "the update is lost twice", deaf: 9, sends: 2, state: ledger.Held, good: "1.0", runs: "1.0", longer: true},
	}
}

// disk is what the node is, whatever becomes of the daemon.
type disk struct {
	Version string
	Sent    []string
	Lost    int
	InMain  bool
}

func readDisk(t *testing.T, dir string) disk {
	d := disk{Version: "1.0"}
	switch data, err := os.ReadFile(filepath.Join(dir, "node.json")); {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		t.Fatal(err)
	default:
		if err := json.Unmarshal(data, &d); err != nil {
			t.Fatal(err)
		}
	}

	return d
}

func (d *disk) write(t *testing.T, dir string) {
	data, err := json.Marshal(d)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "node.json"), data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// points counts the fail points that are passed, and ends the process with
// SIGKILL at one of them.
type points struct {
	passed atomic.Int32
	killAt int
}

func (p *points) pass() {
	if p.passed.Add(1) == int32(p.killAt) {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}

// fragileStore has a fail point before and after every write.
type fragileStore struct {
	*boltstore.Store
	points *points
	saves  *atomic.Int32
}

func (s fragileStore) CompareAndSwap(ctx context.Context, rec ledger.Record) (uint64, error) {
	s.points.pass()
	defer s.points.pass()

	return s.Store.CompareAndSwap(ctx, rec)
}

func (s fragileStore) BeginEpoch(ctx context.Context) (uint64, error) {
	s.points.pass()
	defer s.points.pass()

	return s.Store.BeginEpoch(ctx)
}

func (s fragileStore) SaveObserved(ctx context.Context, epoch uint64, o ledger.Observed) error {
	// One is like the other.
	if s.saves.Add(1) <= 2 {
		s.points.pass()
		defer s.points.pass()
	}

	return s.Store.SaveObserved(ctx, epoch, o)
}

// fragileNode is the node, with a fail point before and after every request that
// changes it.
type fragileNode struct {
	t        *testing.T
	dir      string
	scenario scenario
	points   *points
}

func (n fragileNode) Call(_ context.Context, _ string, req host.Request) ([]host.Reply, error) {
	node := readDisk(n.t, n.dir)
	good := []host.Reply{{Sender: crashNode, Data: []byte("{}")}}
	switch req.Action {
	case host.ActionInventory:
		return []host.Reply{{Sender: crashNode, Data: fmt.Appendf(nil, `{"version":%q,"upgradable":true}`, node.Version)}}, nil
	case host.ActionJWT:
		return good, nil
	}

	n.points.pass()
	defer n.points.pass()
	switch req.Action {
	case host.ActionUpdate:
		node.Sent = append(node.Sent, req.Version)
		reached := len(node.Sent) > n.scenario.deaf
		if reached {
			node.Version = req.Version
		}
		lost := !reached || node.Lost < n.scenario.loses
		if lost {
			node.Lost++
		}
		node.write(n.t, n.dir)
		if lost {
			return nil, nil
		}
	case host.ActionConfigure:
		if node.Version == n.scenario.refuses {
			return []host.Reply{{Sender: crashNode, Code: 1, Message: "cannot be configured"}}, nil
		}
	case host.ActionRestart:
		node.InMain = true
		node.write(n.t, n.dir)
	}

	return good, nil
}

// wants is a helper that wants version 2.0.
type wants struct{}

func (wants) ConfigureNode(context.Context, *helperv1.ConfigureNodeRequest) (*helperv1.ConfigureNodeResponse, error) {
	return &helperv1.ConfigureNodeResponse{Decision: &helperv1.ConfigureNodeResponse_Configure{Configure: &helperv1.Configure{
		Configuration: map[string]string{"plugin.choria.server.provision": "0"}, Version: "2.0",
	}}}, nil
}

func (wants) DecideRelease(context.Context, *helperv1.DecideReleaseRequest) (*helperv1.DecideReleaseResponse, error) {
	return nil, errors.New("not offered")
}

func (wants) Has(c helperv1.Capability) bool {
	return c == helperv1.Capability_CAPABILITY_CONFIGURE_WITH_VERSION
}

type openGate struct{}

func (openGate) IsOpen() bool { return true }

type ownSlot struct{}

func (ownSlot) Lend(time.Duration) func(context.Context) error {
	return func(context.Context) error { return nil }
}

// TestCrashChild is a daemon's life over one node, in a process of its own. It is
// no test without the environment that its parent gives it.
func TestCrashChild(t *testing.T) {
	dir := os.Getenv(crashDir)
	if dir == "" {
		return
	}
	killAt, err := strconv.Atoi(os.Getenv(crashKillAt))
	if err != nil {
		t.Fatal(err)
	}
	var sc scenario
	for _, s := range scenarios() {
		if s.name == os.Getenv(crashScenario) {
			sc = s
		}
	}

	points := &points{killAt: killAt}
	synctest.Test(t, func(t *testing.T) {
		store, err := boltstore.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		log := logrus.New()
		log.SetOutput(io.Discard)
		m := metrics.New("")
		r, err := releases.New(t.Context(), releases.Config{
			Store:     fragileStore{store, points, &atomic.Int32{}},
			Policy:    ledger.Policy{Upgrades: true, Optional: true, Repository: true, MainView: true, Trial: 10 * time.Minute, ReleaseTimeout: 10 * time.Minute},
			Listening: func() bool { return true },
			Judged:    func(string, ledger.Verdict) {},
			Metrics:   m,
			Log:       log.WithField("component", "ledger"),
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		if err := r.Begin(ctx); err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() { r.Run(ctx); close(ended) }()

		for range 12 {
			time.Sleep(11 * time.Second)
			if node := readDisk(t, dir); node.InMain {
				r.SeenInMain(crashNode, node.Version)
				continue
			}
			// A pass that fails is what some of these nodes are for.
			_, _ = host.New(crashNode, host.Config{
				Caller: fragileNode{t, dir, sc, points}, Helper: wants{}, Gate: openGate{}, Slot: ownSlot{}, Metrics: m,
				Log: log.WithField("component", "host"), Doubted: func() bool { return false },
				Features: host.Features{Upgrades: true}, Ledger: r, UpgradesRepository: "http://127.0.0.1",
			}).Provision(ctx)
		}
		synctest.Wait()
		stop()
		<-ended
		if err := store.Close(); err != nil {
			t.Fatal(err)
		}
	})
	fmt.Printf("points passed: %d\n", points.passed.Load())
}

// crash runs a child that dies at a fail point, 0 for none. It returns how many
// it passed, 0 when it was killed.
func crash(t *testing.T, dir, scenario string, killAt int) int {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestCrashChild$", "-test.v")
	// The race detector would sleep for a second at each end.
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0", crashDir+"="+dir, crashScenario+"="+scenario, fmt.Sprintf("%s=%d", crashKillAt, killAt))
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL && killAt > 0:
		return 0
	case err != nil:
		t.Fatalf("child: %v\n%s", err, out)
	}
	_, after, found := strings.Cut(string(out), "points passed: ")
	passed, err := strconv.Atoi(strings.TrimSpace(strings.SplitN(after, "\n", 2)[0]))
	if !found || err != nil {
		t.Fatalf("the child did not count: %v\n%s", err, out)
	}

	return passed
}

// A daemon that is killed with -9 before or after any write and any request that
// changes the node comes to the same verdict as one that is not, and sends at
// most the one update more that nobody can know to have left. The fail points are
// counted on a run of the real code: each is tried.
func TestKilledAnywhere(t *testing.T) {
	for _, sc := range scenarios() {
		if sc.longer && !longTests {
			continue
		}
		t.Run(sc.name, func(t *testing.T) {
			t.Parallel()

			dir := t.TempDir()
			all := crash(t, dir, sc.name, 0)
			checkVerdict(t, dir, sc, 0)
			if all < 12 {
				t.Fatalf("only %d fail points", all)
			}
			killed := 0
			for killAt := 1; killAt <= all; killAt++ {
				dir := t.TempDir()
				if crash(t, dir, sc.name, killAt) == 0 {
					killed++
				}
				crash(t, dir, sc.name, 0)
				checkVerdict(t, dir, sc, killAt)
			}
			if killed != all {
				t.Errorf("only %d of %d lives were ended", killed, all)
			}
			t.Logf("killed at each of %d fail points", all)
		})
	}
}

func checkVerdict(t *testing.T, dir string, sc scenario, killAt int) {
	t.Helper()
	store, err := boltstore.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	rec, err := store.Get(t.Context(), crashNode)
	if err != nil {
		t.Fatalf("killed at %d: %v", killAt, err)
	}
	node := readDisk(t, dir)
	if rec.State != sc.state || rec.KnownGood == nil || rec.KnownGood.Version != sc.good || node.Version != sc.runs {
		t.Errorf("killed at %d: %s, known-good %+v, runs %s; want %s, %s, %s\n%+v", killAt, rec.State, rec.KnownGood, node.Version, sc.state, sc.good, sc.runs, rec.Evidence)
	}
	if extra := len(node.Sent) - sc.sends; extra < 0 || extra > 1 || extra == 1 && killAt == 0 {
		t.Errorf("killed at %d: sent %v, want %d", killAt, node.Sent, sc.sends)
	}
}
