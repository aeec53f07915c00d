package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	bolt "go.etcd.io/bbolt"

	"github.com/choria-provisioner/provisioner/version/ledger"
	"github.com/choria-provisioner/provisioner/version/ledger/boltstore"
	"github.com/choria-provisioner/provisioner/version/ledger/book"
	"github.com/choria-provisioner/provisioner/version/ledger/socket"
)

// memory is a state directory whose ledger has a node in each situation that
// people meet.
type memory struct {
	t   testing.TB
	dir string
	env ledger.Env
}

func newMemory(t testing.TB) *memory {
	t.Helper()
	m := &memory{t: t, dir: t.TempDir(), env: ledger.Env{
		Wall: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Observed: ledger.Observed(time.Hour), Epoch: 1,
		Policy: ledger.Policy{Upgrades: true, Optional: true, Repository: true, MainView: true, Trial: 10 * time.Minute, ReleaseTimeout: 20 * time.Minute},
	}}
	store := m.open()
	defer m.close(store)
	if _, err := store.BeginEpoch(t.Context()); err != nil {
		t.Fatal(err)
	}
	keeper := m.keeper(store)
	apply := func(identity string, events ...ledger.Event) {
		t.Helper()
		for _, ev := range events {
			m.env.Wall = m.env.Wall.Add(time.Second)
			if _, err := keeper.Apply(t.Context(), identity, ev); err != nil {
				t.Fatal(err)
			}
		}
	}

	met := ledger.Inventory{Version: "1.0"}
	up := ledger.Decision{Direction: ledger.Upgrade, Version: "2.0", Reason: "site policy", AttemptID: "a", Current: "1.0", Upgradable: true}
	ok := ledger.Reply{AttemptID: "a", Result: ledger.ReplyOK, Text: "restarting"}
	back := ledger.Inventory{Version: "2.0"}
	apply("dark.example.net", met, up, ok)
	m.env.Observed = m.env.Observed.Add(20 * time.Minute)
	apply("dark.example.net", ledger.Tick{})
	apply("held.example.net", met, up, ok, ledger.Inventory{Version: "1.7"})
	apply("idle.example.net", met)
	// What a node says may be meant for the terminal it ends up on.
	refused := "\x1b[2Jno such key"
	apply("left.example.net", met, up, ok, back,
		ledger.Refused{Action: "choria_provision#configure", Text: refused, Pass: "p1"},
		ledger.Refused{Action: "choria_provision#configure", Text: refused, Pass: "p2"},
		ledger.Reply{AttemptID: "a.back", Result: ledger.ReplyOK, Text: "restarting"}, met, ledger.Configured{}, ledger.SeenInMain{Version: "1.0"}, up)
	apply("trial.example.net", met, up, ok, back, ledger.Configured{})
	if err := store.SaveObserved(t.Context(), 1, m.env.Observed); err != nil {
		t.Fatal(err)
	}

	return m
}

func (m *memory) open() *boltstore.Store {
	m.t.Helper()
	s, err := boltstore.Open(m.dir)
	if err != nil {
		m.t.Fatal(err)
	}

	return s
}

func (m *memory) close(s *boltstore.Store) {
	m.t.Helper()
	if err := s.Close(); err != nil {
		m.t.Error(err)
	}
}

func (m *memory) keeper(s *boltstore.Store) *ledger.Keeper {
	return ledger.NewKeeper(s, ledger.NewIndex(0), func() ledger.Env { return m.env }, func(string, error) {})
}

// serve makes a daemon of the rest of the test.
func (m *memory) serve() {
	m.t.Helper()
	store := m.open()
	log := logrus.New()
	log.SetOutput(io.Discard)
	s, err := socket.Listen(m.t.Context(), m.dir, book.New(store, m.keeper(store)), log.WithField("component", "ledger"))
	if err != nil {
		m.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx) }()
	m.t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			m.t.Error(err)
		}
		m.close(store)
	})
}

// onBothWays runs a test without a daemon and with one.
func onBothWays(t *testing.T, test func(t *testing.T, m *memory)) {
	t.Run("file", func(t *testing.T) { test(t, newMemory(t)) })
	t.Run("socket", func(t *testing.T) {
		m := newMemory(t)
		m.serve()
		test(t, m)
	})
}

// run invokes a command on the memory.
func (m *memory) run(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()

	return invoke(t, "", append(args, "--state-dir", m.dir)...)
}

func TestNodesAreShown(t *testing.T) {
	for _, row := range []struct {
		args []string
		want string
	}{
		{[]string{"nodes", "ls"}, `
IDENTITY           STATE  VERSION  KNOWN GOOD        TARGET  SINCE                 NOTE
dark.example.net   dark   1.0      1.0 (first-seen)  2.0     2026-01-02T03:04:09Z
held.example.net   held   1.7      1.0 (first-seen)          2026-01-02T03:04:13Z  third-version
idle.example.net   idle   1.0      1.0 (first-seen)          2026-01-02T03:04:14Z
left.example.net   idle   1.0      1.0 (proved)              2026-01-02T03:04:24Z  barred 2.0
trial.example.net  trial  2.0      1.0 (first-seen)  2.0     2026-01-02T03:04:30Z
`},
		{[]string{"nodes", "ls", "--held"}, `
IDENTITY          STATE  VERSION  KNOWN GOOD        TARGET  SINCE                 NOTE
held.example.net  held   1.7      1.0 (first-seen)          2026-01-02T03:04:13Z  third-version
`},
		{[]string{"nodes", "ls", "--at", "2.0", "--state", "trial"}, `
IDENTITY           STATE  VERSION  KNOWN GOOD        TARGET  SINCE                 NOTE
trial.example.net  trial  2.0      1.0 (first-seen)  2.0     2026-01-02T03:04:30Z
`},
		{[]string{"nodes", "show", "held.example.net"}, `
held.example.net
  state           held since 2026-01-02T03:04:13Z
  held            third-version: shows 1.7 after the upgrade from 1.0 to 2.0
  version         1.7, shown first at 2026-01-02T03:04:13Z
  known good      1.0 (first-seen)
  last written    2026-01-02T03:04:13Z, in epoch 1
`},
		{[]string{"nodes", "show", "trial.example.net"}, `
trial.example.net
  state           trial since 2026-01-02T03:04:30Z
  version         2.0, shown first at 2026-01-02T03:04:29Z
  known good      1.0 (first-seen)
  change          upgrade from 1.0 to 2.0: site policy
  sent            at 2026-01-02T03:04:27Z, attempt a, for the first time
                  the node confirmed it, the node showed it
  last written    2026-01-02T03:04:30Z, in epoch 1
`},
		{[]string{"nodes", "history", "left.example.net"}, `
TIME                  VERSION  WHAT         WHY
2026-01-02T03:04:15Z  1.0      shown        first met with 1.0
2026-01-02T03:04:16Z  2.0      sent         upgrade to 2.0: site policy
2026-01-02T03:04:18Z  2.0      shown        arrived with 2.0
2026-01-02T03:04:20Z  2.0      rolled-back  refused choria_provision#configure 2 times with 2.0: ?[2Jno such key
2026-01-02T03:04:20Z  1.0      sent         rollback to 1.0: refused choria_provision#configure 2 times with 2.0: ?[2Jno such key
2026-01-02T03:04:22Z  1.0      shown        arrived with 1.0
2026-01-02T03:04:24Z  1.0      proved       seen in the main account with 1.0
`},
	} {
		onBothWays(t, func(t *testing.T, m *memory) {
			code, stdout, stderr := m.run(t, row.args...)
			if code != 0 || stderr != "" || stdout != strings.TrimPrefix(row.want, "\n") {
				t.Errorf("%v: code %d: %s\n%s", row.args, code, stderr, stdout)
			}
		})
	}
}

func TestNodesExplain(t *testing.T) {
	onBothWays(t, func(t *testing.T, m *memory) {
		for identity, wants := range map[string][]string{
			"left.example.net": {
				"left.example.net is idle since 2026-01-02T03:04:24Z: nothing is under way\n",
				"decision  idle     upgrade from 1.0 to 2.0: site policy\n",
				"intent    intent   upgrade to 2.0: site policy\n",
				"reply     swapped  took the update: restarting\n",
				"event     arrived  arrived with 2.0\n",
				"verdict   arrived  2.0 rolled-back: refused choria_provision#configure 2 times",
				"verdict   idle     1.0 proved: seen in the main account with 1.0\n",
				"guard     idle     upgrade stopped: this node left 2.0 for good: refused choria_provision#configure 2 times with 2.0: ?[2Jno such key (guard barred)\n",
				"What happens next\n  - it is provisioned at its version",
			},
			"held.example.net":  {"it waits for a person: shows 1.7 after the upgrade from 1.0 to 2.0", "What you can do\n", "nodes expect"},
			"dark.example.net":  {"it was sent 2.0 and was not seen since", "not seen within the bound: dark", "nodes forget --force"},
			"trial.example.net": {"which has not proved itself", "in 10m10s of listening"},
		} {
			code, stdout, stderr := m.run(t, "nodes", "explain", identity)
			if code != 0 || strings.ContainsRune(stdout, '\x1b') {
				t.Errorf("%s: code %d: %s", identity, code, stderr)
			}
			for _, want := range wants {
				if !strings.Contains(stdout, want) {
					t.Errorf("%q is not in\n%s", want, stdout)
				}
			}
		}

		code, stdout, stderr := m.run(t, "nodes", "explain", "trial.example.net", "--json")
		var got seen
		if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != 0 {
			t.Fatalf("code %d, %v: %s", code, err, stderr)
		}
		if got.Record.State != ledger.Trial || got.Standing.Observed != m.env.Observed || len(got.Advice.Next) == 0 {
			t.Errorf("%+v", got)
		}
	})
}

func TestNodesJSON(t *testing.T) {
	onBothWays(t, func(t *testing.T, m *memory) {
		_, stdout, _ := m.run(t, "nodes", "ls", "--json", "--state", "idle", "--state", "held")
		var identities []string
		for line := range strings.Lines(stdout) {
			rec, err := ledger.Decode("", []byte(line))
			if err != nil || len(rec.Evidence) == 0 {
				t.Errorf("%s: %v", line, err)
			}
			identities = append(identities, rec.Identity)
		}
		if got := strings.Join(identities, " "); got != "held.example.net idle.example.net left.example.net" {
			t.Errorf("listed are %s", got)
		}

		_, stdout, _ = m.run(t, "nodes", "show", "held.example.net", "--json")
		if rec, err := ledger.Decode("held.example.net", []byte(stdout)); err != nil || rec.Hold.Reason != ledger.HeldThirdVersion {
			t.Errorf("%s: %v", stdout, err)
		}
		_, stdout, _ = m.run(t, "nodes", "history", "idle.example.net", "--json")
		var chapters []chapter
		if err := json.Unmarshal([]byte(stdout), &chapters); err != nil || len(chapters) != 1 || chapters[0].What != "shown" {
			t.Errorf("%s: %v", stdout, err)
		}
	})
}

// Each command does what it says, or says why not and with which code.
func TestNodesAreChanged(t *testing.T) {
	onBothWays(t, func(t *testing.T, m *memory) {
		for _, row := range []struct {
			args   []string
			code   int
			stdout string
			stderr string
		}{
			{[]string{"pin", "idle.example.net", "1.0", "--why", "freeze"}, 0, "idle.example.net is idle, known good is 1.0 (first-seen), pinned to 1.0\n", ""},
			{[]string{"pin", "idle.example.net", "1.0"}, 1, "", "required flag --why not provided"},
			{[]string{"unpin", "idle.example.net"}, 0, "idle.example.net is idle, known good is 1.0 (first-seen)\n", ""},
			{[]string{"pin", "idle", "1.0", "--why", "freeze"}, 3, "", "idle: no such record: nodes ls lists all"},
			{[]string{"pin", "next.example.net", "1.0", "--why", "freeze", "--new"}, 0, "next.example.net is unknown, pinned to 1.0\n", ""},
			{[]string{"pin", "idle.example.net", "../etc", "--why", "freeze"}, 1, "", `idle.example.net: pinning: not a version: "../etc"`},
			{[]string{"expect", "trial.example.net", "2.0"}, 4, "", "trial.example.net: expecting 2.0: a change of the node is under way: it is trial"},
			{[]string{"release", "idle.example.net"}, 4, "", "idle.example.net: releasing: the node is not held, dark or convicted: it is idle"},
			{[]string{"release", "held.example.net", "--why", "repaired"}, 0, "held.example.net is idle, known good is 1.0 (first-seen)\n", ""},
			{[]string{"expect", "dark.example.net", "2.0"}, 0, "dark.example.net is idle, known good is 2.0 (operator)\n", ""},
			{[]string{"forget", "trial.example.net"}, 4, "", "a change of the node is under way: it is trial: to forget it now may have it sent the version again; --force does it all the same"},
			{[]string{"forget", "trial.example.net", "--force"}, 0, "trial.example.net is forgotten\n", ""},
			{[]string{"forget", "trial.example.net"}, 3, "", "no such record"},
			{[]string{"forget", "idle.example"}, 3, "", "no such record"},
			{[]string{"forget", "idle.example.net"}, 0, "idle.example.net is forgotten\n", ""},
			{[]string{"show", "idle.example.net"}, 3, "", "idle.example.net: no such record: nodes ls lists all"},
		} {
			code, stdout, stderr := m.run(t, append([]string{"nodes"}, row.args...)...)
			if code != row.code || stdout != row.stdout || !strings.Contains(stderr, row.stderr) || (stderr == "") != (row.stderr == "") {
				t.Errorf("%v: code %d, stdout %q, stderr %q", row.args, code, stdout, stderr)
			}
		}
		_, stdout, _ := m.run(t, "nodes", "ls")
		if got := regexp.MustCompile(`(?m)^\S+\.net`).FindAllString(stdout, -1); fmt.Sprint(got) != "[dark.example.net held.example.net left.example.net next.example.net]" {
			t.Errorf("left are %v", got)
		}
		_, stdout, _ = m.run(t, "nodes", "explain", "held.example.net")
		if !strings.Contains(stdout, "released: repaired\n") {
			t.Errorf("%s", stdout)
		}
	})
}

// The ledger of a daemon that people cannot reach, and no ledger at all.
func TestNodesWithoutALedger(t *testing.T) {
	code, _, stderr := invoke(t, "", "nodes", "ls", "--state-dir", filepath.Join(t.TempDir(), "none"))
	if code != 2 || !strings.Contains(stderr, "there is no ledger") {
		t.Errorf("code %d: %s", code, stderr)
	}
	if code, _, stderr := invoke(t, "", "nodes", "ls"); code != 1 || !strings.Contains(stderr, "--config FILE or --state-dir DIR") {
		t.Errorf("code %d: %s", code, stderr)
	}

	m := newMemory(t)
	store := m.open()
	code, _, stderr = m.run(t, "nodes", "ls")
	if code != 2 || !strings.Contains(stderr, "the ledger is in use by another process (pid ") || !strings.Contains(stderr, "without a socket") {
		t.Errorf("code %d: %s", code, stderr)
	}
	m.close(store)
}

// Where the state directory is stands in the daemon's configuration.
func TestNodesByConfiguration(t *testing.T) {
	m := newMemory(t)
	file := writeFile(t, "provisioner.yaml", "helper: /bin/true\nstate_dir: "+m.dir+"\n", 0o600)
	code, stdout, stderr := invoke(t, "", "nodes", "ls", "--held", "--config", file)
	if code != 0 || !strings.Contains(stdout, "held.example.net") {
		t.Errorf("code %d: %s%s", code, stdout, stderr)
	}
}

// damage spoils a stored record.
func (m *memory) damage(identity string) {
	m.t.Helper()
	db, err := bolt.Open(filepath.Join(m.dir, boltstore.FileName), 0o600, nil)
	if err != nil {
		m.t.Fatal(err)
	}
	err = db.Update(func(tx *bolt.Tx) error {
		return tx.Bucket([]byte("records")).Put([]byte(identity), append(make([]byte, 16), "{spoilt"...))
	})
	if err := errors.Join(err, db.Close()); err != nil {
		m.t.Fatal(err)
	}
}

func TestDamagedRecordsAreSaid(t *testing.T) {
	onDamaged := func(name string, test func(t *testing.T, m *memory)) {
		for _, live := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, daemon %v", name, live), func(t *testing.T) {
				m := newMemory(t)
				m.damage("idle.example.net")
				if live {
					m.serve()
				}
				test(t, m)
			})
		}
	}
	onDamaged("ls", func(t *testing.T, m *memory) {
		code, stdout, stderr := m.run(t, "nodes", "ls")
		if code != 0 || strings.Count(stdout, ".example.net") != 4 || !strings.Contains(stderr, "warning: the record of idle.example.net is set aside: ") {
			t.Errorf("code %d: %s%s", code, stdout, stderr)
		}
	})
	onDamaged("export", func(t *testing.T, m *memory) {
		code, stdout, stderr := m.run(t, "ledger", "export")
		if code != 0 || strings.Count(stdout, "\n") != 4 || !strings.Contains(stderr, "the record of idle.example.net is set aside") || !strings.Contains(stderr, "not among them: 1 records") {
			t.Errorf("code %d: %s", code, stderr)
		}
		code, stdout, _ = m.run(t, "ledger", "set-aside")
		if code != 0 || !strings.HasPrefix(stdout, "idle.example.net\t") || !strings.Contains(stdout, "{spoilt") {
			t.Errorf("code %d: %s", code, stdout)
		}
	})
	onDamaged("show", func(t *testing.T, m *memory) {
		code, _, stderr := m.run(t, "nodes", "show", "idle.example.net")
		if code != 3 || !strings.Contains(stderr, "the record cannot be read") {
			t.Errorf("code %d: %s", code, stderr)
		}
		code, _, stderr = m.run(t, "nodes", "show", "idle.example.net")
		if code != 3 || !strings.Contains(stderr, "could not be read and is set aside") {
			t.Errorf("code %d: %s", code, stderr)
		}
	})
}

// A list of more rows than decide about the widths is whole.
func TestLongTable(t *testing.T) {
	var out strings.Builder
	table := newTable(&out, "A", "B")
	for i := range 3 * measured {
		if err := table.row(strings.Repeat("x", 1+i/measured), "y"); err != nil {
			t.Fatal(err)
		}
	}
	if err := table.flush(); err != nil {
		t.Fatal(err)
	}
	if lines := strings.Split(out.String(), "\n"); len(lines) != 3*measured+2 || lines[1] != "x  y" || lines[3*measured] != "xxx  y" {
		t.Errorf("%d lines, the last is %q", len(lines), lines[len(lines)-2])
	}
}

// Who may not ask is told who may. Root may anything, and asks as somebody else.
func TestNodesOfAnotherUser(t *testing.T) {
	ask := func(t *testing.T, dir string, _ os.FileMode) (int, string) {
		if err := os.Chmod(dir, 0); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.Chmod(dir, 0o700) })
		code, _, stderr := invoke(t, "", "nodes", "ls", "--state-dir", dir)

		return code, stderr
	}
	if os.Geteuid() == 0 {
		program := filepath.Join(t.TempDir(), "choria-provisioner")
		if err := os.WriteFile(program, []byte(read(t, "/proc/self/exe")), 0o755); err != nil {
			t.Fatal(err)
		}
		openTo(t, filepath.Dir(program))
		ask = func(t *testing.T, dir string, mode os.FileMode) (int, string) {
			openTo(t, dir)
			if err := os.Chmod(dir, mode); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(program, "nodes", "ls", "--state-dir", dir)
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
			out, err := cmd.CombinedOutput()
			if cmd.ProcessState == nil {
				t.Fatal(err)
			}

			return cmd.ProcessState.ExitCode(), string(out)
		}
	}

	onBothWays(t, func(t *testing.T, m *memory) {
		for _, mode := range []os.FileMode{0o755, 0o700} {
			code, out := ask(t, m.dir, mode)
			if code != 2 || !strings.Contains(out, "permission denied: run this as ") || strings.Contains(out, "damaged") {
				t.Errorf("mode %o: code %d: %s", mode, code, out)
			}
		}
	})
}

// openTo lets others reach a test's directory.
func openTo(t *testing.T, dir string) {
	t.Helper()
	for ; dir != filepath.Dir(dir) && dir != filepath.Clean(os.TempDir()); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}
