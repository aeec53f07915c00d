//go:build unix

package socket_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/choria-provisioner/provisioner/version/ledger"
	"github.com/choria-provisioner/provisioner/version/ledger/book"
	"github.com/choria-provisioner/provisioner/version/ledger/memstore"
	"github.com/choria-provisioner/provisioner/version/ledger/socket"
)

// childEnv makes the test's program a daemon in the directory it names.
const childEnv = "SOCKET_TEST_DAEMON"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		s, err := socket.Listen(context.Background(), dir, daemonBook(memstore.New()), silent())
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("listening")
		_ = s.Serve(context.Background())
	}
	os.Exit(m.Run())
}

func silent() *logrus.Entry {
	log := logrus.New()
	log.SetOutput(io.Discard)

	return log.WithField("component", "ledger")
}

// daemonBook is the book of a daemon in its third epoch.
func daemonBook(store ledger.Store) *book.Kept {
	return book.New(store, daemonKeeper(store))
}

func daemonKeeper(store ledger.Store) *ledger.Keeper {
	env := func() ledger.Env {
		return ledger.Env{
			Wall: time.Now(), Observed: ledger.Observed(time.Hour), Epoch: 3,
			Policy: ledger.Policy{Upgrades: true, Repository: true, Trial: 10 * time.Minute, ReleaseTimeout: 20 * time.Minute},
		}
	}

	return ledger.NewKeeper(store, ledger.NewIndex(0), env, func(string, error) {})
}

// serve serves a book until the test ends, or stop is called.
func serve(t testing.TB, dir string, b book.Book) (stop func()) {
	t.Helper()
	s, err := socket.Listen(t.Context(), dir, b, silent())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)

	return stop
}

func dial(t testing.TB, dir string) *socket.Client {
	t.Helper()
	c, err := socket.Dial(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })

	return c
}

func TestSocketIsItsOwnersAndGoesWithTheServer(t *testing.T) {
	dir := t.TempDir()
	stop := serve(t, dir, daemonBook(memstore.New()))
	info, err := os.Stat(socket.Path(dir))
	if err != nil || info.Mode() != os.ModeSocket|0o600 {
		t.Fatalf("mode %v, %v", info.Mode(), err)
	}
	standing, err := dial(t, dir).Standing(t.Context())
	if err != nil || !standing.Live || standing.Epoch != 3 || standing.Observed != ledger.Observed(time.Hour) || standing.Policy.Trial != 10*time.Minute {
		t.Errorf("%+v, %v", standing, err)
	}
	stop()
	if _, err := os.Lstat(socket.Path(dir)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
	if _, err := socket.Dial(t.Context(), dir); !errors.Is(err, socket.ErrNoDaemon) {
		t.Errorf("dialled: %v", err)
	}

	// One that never served goes as well.
	s, err := socket.Listen(t.Context(), dir, daemonBook(memstore.New()), silent())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(socket.Path(dir)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
	serve(t, dir, daemonBook(memstore.New()))
}

// Whoever looks as often as they can sees no socket that others may open.
func TestSocketIsNeverOpenToOthers(t *testing.T) {
	before := syscall.Umask(0)
	defer syscall.Umask(before)

	dir := t.TempDir()
	done := make(chan struct{})
	wide := make(chan os.FileMode, 1)
	seen := 0
	go func() {
		defer close(wide)
		for {
			select {
			case <-done:
				return
			default:
			}
			info, err := os.Lstat(socket.Path(dir))
			if err != nil {
				continue
			}
			seen++
			if info.Mode().Perm() != 0o600 {
				wide <- info.Mode()
				return
			}
		}
	}()
	for range 200 {
		serve(t, dir, daemonBook(memstore.New()))()
	}
	close(done)
	if mode, ok := <-wide; ok {
		t.Errorf("it was seen with mode %s", mode)
	}
	if seen == 0 {
		t.Error("it was never seen")
	}
}

func TestLiveSocketIsRefused(t *testing.T) {
	dir := t.TempDir()
	serve(t, dir, daemonBook(memstore.New()))
	if _, err := socket.Listen(t.Context(), dir, daemonBook(memstore.New()), silent()); !errors.Is(err, socket.ErrInUse) {
		t.Fatalf("served twice: %v", err)
	}
	// And lives on.
	dial(t, dir)
}

func TestSocketOfAKilledDaemonIsReplaced(t *testing.T) {
	dir := t.TempDir()
	daemon := exec.Command(os.Args[0])
	daemon.Env = append(os.Environ(), childEnv+"="+dir)
	out, err := daemon.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, len("listening"))
	if _, err := io.ReadFull(out, line); err != nil || string(line) != "listening" {
		t.Errorf("%s, %v", line, err)
	}
	if _, err := socket.Listen(t.Context(), dir, daemonBook(memstore.New()), silent()); !errors.Is(err, socket.ErrInUse) {
		t.Errorf("a live daemon's was taken: %v", err)
	}
	if err := daemon.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = daemon.Wait()

	if _, err := os.Lstat(socket.Path(dir)); err != nil {
		t.Fatalf("the killed daemon left no socket: %v", err)
	}
	if _, err := socket.Dial(t.Context(), dir); !errors.Is(err, socket.ErrNoDaemon) {
		t.Errorf("dialled: %v", err)
	}
	serve(t, dir, daemonBook(memstore.New()))
	dial(t, dir)
}

func TestWhatIsNoSocketIsLeftAlone(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(socket.Path(dir), []byte("notes"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := socket.Listen(t.Context(), dir, daemonBook(memstore.New()), silent())
	if err == nil || !strings.Contains(err.Error(), "no socket") {
		t.Errorf("%v", err)
	}
	if data, _ := os.ReadFile(socket.Path(dir)); string(data) != "notes" {
		t.Errorf("it holds %q", data)
	}
}

// The address of a socket holds about a hundred bytes, the path of a state
// directory may be longer.
func TestLongPath(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 50))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	stop := serve(t, dir, daemonBook(memstore.New()))
	dial(t, dir)
	stop()
	if _, err := os.Lstat(socket.Path(dir)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
}

// Orders of a build that knows more are not carried out in part.
func TestWhatIsNotUnderstoodIsRefused(t *testing.T) {
	dir := t.TempDir()
	store := memstore.New()
	b := daemonBook(store)
	if _, err := b.Apply(t.Context(), book.Order{Identity: "node", Event: ledger.Expect{Version: "1.0"}, New: true}); err != nil {
		t.Fatal(err)
	}
	serve(t, dir, b)
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket.Path(dir))
	}}}
	for _, body := range []string{
		`{"identity":"node","kind":"pin","version":"1.0","until":"tomorrow"}`,
		`{"identity":"node","kind":"promote","version":"1.0"}`,
		`{"identity":"node"`,
		`{"identity":"node","kind":"pin","version":"1.0","why":"` + strings.Repeat("x", 2<<20) + `"}`,
	} {
		resp, err := client.Post("http://ledger/v1/order", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != http.StatusUnprocessableEntity || len(text) > 300 {
			t.Errorf("%.80s: %s: %s", body, resp.Status, text)
		}
	}
	if rec, err := store.Get(t.Context(), "node"); err != nil || rec.Pin != nil {
		t.Errorf("%+v, %v", rec.Pin, err)
	}
}

// A daemon that ends does not wait for someone who reads slowly, and who reads
// knows that the list is not whole.
func TestListOfADaemonThatEnds(t *testing.T) {
	dir := t.TempDir()
	store := memstore.New()
	b := daemonBook(store)
	for i := range 5_000 {
		if _, err := b.Apply(t.Context(), book.Order{Identity: fmt.Sprint("node", i), Event: ledger.Expect{Version: "1.0"}, New: true}); err != nil {
			t.Fatal(err)
		}
	}
	stop := serve(t, dir, b)
	var last error
	count := 0
	for _, err := range dial(t, dir).List(t.Context(), book.Query{}) {
		if count++; count == 1 {
			stop()
		}
		last = err
	}
	if last == nil || count >= 5_000 {
		t.Errorf("%d records, the last with %v", count, last)
	}
}
