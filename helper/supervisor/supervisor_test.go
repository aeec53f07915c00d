package supervisor_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/choria-provisioner/provisioner/helper"
	"github.com/choria-provisioner/provisioner/helper/helperv1"
	"github.com/choria-provisioner/provisioner/helper/internal/testplugin"
	"github.com/choria-provisioner/provisioner/helper/supervisor"
)

var program string

func TestMain(m *testing.M) {
	var err error
	program, err = testplugin.Build(testplugin.Program)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(filepath.Dir(program))
	os.Exit(code)
}

// recorder is Metrics that remembers, and a log that can be read.
type recorder struct {
	mu        sync.Mutex
	calls     []string
	states    []supervisor.State
	restarted int
	log       bytes.Buffer
	changed   chan supervisor.State
}

func newRecorder() *recorder { return &recorder{changed: make(chan supervisor.State, 100)} }

func (r *recorder) CallDone(method string, code codes.Code, _ time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, method+" "+code.String())
}

func (r *recorder) Restarted() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.restarted++
}

func (r *recorder) StateChanged(s supervisor.State) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.states = append(r.states, s)
	r.changed <- s
}

func (r *recorder) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.Write(p)
}

func (r *recorder) logged() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.String()
}

// await waits for a state.
func (r *recorder) await(t *testing.T, want supervisor.State) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		select {
		case got := <-r.changed:
			if got == want {
				return
			}
		case <-deadline:
			t.Fatalf("the state was never %v\n%s", want, r.logged())
		}
	}
}

func (r *recorder) config(args ...string) supervisor.Config {
	log := logrus.New()
	log.SetOutput(r)
	log.SetLevel(logrus.DebugLevel)
	log.SetFormatter(&logrus.JSONFormatter{})

	return supervisor.Config{
		Path:    program,
		Args:    args,
		Log:     log.WithField("component", "helper"),
		Metrics: r,
		Restart: supervisor.Restart{Min: 10 * time.Millisecond, Max: 20 * time.Millisecond, Limit: 100},
	}
}

// start starts a helper that ends with the test.
func start(t *testing.T, cfg supervisor.Config) *supervisor.Supervisor {
	t.Helper()
	s, err := supervisor.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })

	return s
}

func node(identity string) *helperv1.ConfigureNodeRequest {
	return &helperv1.ConfigureNodeRequest{RequestId: "r1", Node: &helperv1.Node{Identity: identity}}
}

func answers(t *testing.T, s *supervisor.Supervisor) {
	t.Helper()
	got, err := s.ConfigureNode(t.Context(), node("ok"))
	if err != nil || got.GetConfigure().GetConfiguration()["identity"] != "ok" {
		t.Fatalf("got %v, %v", got, err)
	}
}

// gone waits for a process that is no child of ours to vanish.
func gone(t *testing.T, pid int) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			return
		}
		// A zombie waits for whoever adopts orphans here.
		if rest := stat[bytes.LastIndexByte(stat, ')')+1:]; err == nil && bytes.HasPrefix(rest, []byte(" Z")) {
			return
		}
	}
	t.Errorf("process %d is still there", pid)
}

// children are the processes this one started and that are not reaped.
func children(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil || len(files) == 0 {
		t.Fatalf("no /proc: %v", err)
	}
	var all []string
	for _, f := range files {
		b, _ := os.ReadFile(f)
		all = append(all, strings.Fields(string(b))...)
	}

	return all
}

// sockets are the folders of sockets that were left behind.
func sockets(t *testing.T) []string {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(os.TempDir(), "cph-*"))
	if err != nil {
		t.Fatal(err)
	}

	return left
}

// shortTemp makes a TMPDIR of the test's own; t.TempDir is too long for a socket.
func shortTemp(t *testing.T) {
	t.Helper()
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", dir)
	t.Cleanup(func() { os.RemoveAll(dir) })
}

func TestStart(t *testing.T) {
	r := newRecorder()
	cfg := r.config()
	cfg.PluginConfig = json.RawMessage(`{"warn":"the CA is old"}`)
	cfg.HostVersion = "9.9"
	s := start(t, cfg)

	info := s.Info()
	if info.Name != "test-plugin" || info.Build != "1.2.3" || info.MaxInFlight != 8 || !info.Has(helperv1.Capability_CAPABILITY_DECIDE_RELEASE) {
		t.Errorf("got %+v", info)
	}
	if !s.Healthy() || s.State() != supervisor.Running {
		t.Errorf("state %v", s.State())
	}
	answers(t, s)
	if !strings.Contains(r.logged(), "configuration of helper test-plugin: the CA is old") {
		t.Errorf("no warning in %s", r.logged())
	}

	if err := s.Start(t.Context()); err == nil || err.Error() != "helper: started in state running" {
		t.Errorf("second start: %v", err)
	}
}

// certificate is a certificate as a plugin greets with it.
func certificate(t *testing.T) string {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(nil, template, template, public, private)
	if err != nil {
		t.Fatal(err)
	}

	return base64.RawStdEncoding.EncodeToString(der)
}

// shell makes a shell script the helper.
func shell(cfg supervisor.Config, script string) supervisor.Config {
	cfg.Path, cfg.Args = "/bin/sh", []string{"-c", script}
	return cfg
}

// A start that fails says why in words that help, and leaves neither process
// nor file.
func TestStartFails(t *testing.T) {
	sum, script, plain := strings.Repeat("0", 64), filepath.Join(t.TempDir(), "script"), filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, []byte("#!/bin/sh\nunset PLUGIN_CLIENT_CERT\nexec \"$1\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(script, []byte("#!/bin/sh\necho '1|1|unix|/nowhere|grpc|"+certificate(t)+"'\nexec sleep 600\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	cases := []struct {
		why    string
		change func(*supervisor.Config)
		want   []string
		code   codes.Code
	}{
		{"no such program", func(c *supervisor.Config) { c.Path = "/nonexistent/plugin" }, []string{"/nonexistent/plugin", "no such file or directory"}, codes.Unknown},
		{"the pin is wrong: both sums are said", func(c *supervisor.Config) { c.SHA256 = sum }, []string{"has sha256 ", "the configuration wants " + sum}, codes.Unavailable},
		{"a print before the handshake", func(c *supervisor.Config) { c.Args = []string{"print=hello world"} }, []string{"hello world", "a plugin prints nothing before it"}, codes.Unknown},
		{"it ends: its last words are said", func(c *supervisor.Config) { c.Args = []string{"complain=no licence", "exit"} }, []string{"it ended before it was ready: exit status 3", "last on standard error: no licence"}, codes.Unknown},
		{"it says nothing", func(c *supervisor.Config) { c.Args, c.StartTimeout = []string{"silent"}, 300*time.Millisecond }, []string{"not ready within 300ms"}, codes.Unknown},
		{"it refuses its configuration", func(c *supervisor.Config) { c.PluginConfig = json.RawMessage(`{"fail":"no CA"}`) }, []string{"helper test-plugin: Configure: no CA (FailedPrecondition)"}, codes.FailedPrecondition},
		{"a misspelt key", func(c *supervisor.Config) { c.PluginConfig = json.RawMessage(`{"fial":1}`) }, []string{`helper test-plugin: Validate: config: unknown field "fial" (InvalidArgument)`}, codes.InvalidArgument},
		{"a configuration for one that takes none", func(c *supervisor.Config) {
			c.Args, c.PluginConfig = []string{"unconfigurable"}, json.RawMessage(`{"a":1}`)
		}, []string{"helper test-plugin takes no configuration, but one is set"}, codes.Unknown},
		{"a gRPC without go-plugin's mTLS", func(c *supervisor.Config) { c.Path, c.Args = plain, []string{program} }, []string{"a plugin whose gRPC has no go-plugin mTLS needs mtls: off"}, codes.Unavailable},
		{"a slow start is no start", func(c *supervisor.Config) { *c = shell(*c, "sleep 600"); c.StartTimeout = 300 * time.Millisecond }, []string{"not ready within 300ms"}, codes.Unknown},
		{"another version of the protocol", func(c *supervisor.Config) { *c = shell(*c, "echo '1|2|unix|/nowhere|grpc'; exec sleep 600") }, []string{"version"}, codes.Unknown},
		{"a protocol of go-plugin that we do not speak", func(c *supervisor.Config) { *c = shell(*c, "echo '1|1|unix|/nowhere|netrpc'; exec sleep 600") }, []string{"netrpc"}, codes.Unknown},
		{"half a greeting", func(c *supervisor.Config) { *c = shell(*c, "echo '1|1'; exec sleep 600") }, []string{"Unrecognized remote plugin message: 1|1"}, codes.Unknown},
		{"bytes of any kind", func(c *supervisor.Config) { *c = shell(*c, `printf '\377\000|\n'; exec sleep 600`) }, []string{"a plugin prints nothing before it"}, codes.Unknown},
		{"a greeting without an end", func(c *supervisor.Config) {
			*c = shell(*c, "head -c 100000000 /dev/zero; exec sleep 600")
		}, []string{"a plugin prints nothing before it"}, codes.Unknown},
		{"a socket where nobody listens", func(c *supervisor.Config) {
			*c = shell(*c, "echo '1|1|unix|/nowhere|grpc'; exec sleep 600")
			c.MTLS, c.StartTimeout = supervisor.MTLSOff, time.Second
		}, []string{"/nowhere"}, codes.Unavailable},
		{"go-plugin panics on a certificate it did not ask for", func(c *supervisor.Config) { c.Path, c.MTLS = script, supervisor.MTLSOff }, []string{"the handshake failed"}, codes.Unknown},
	}

	for _, c := range cases {
		t.Run(c.why, func(t *testing.T) {
			shortTemp(t)
			r := newRecorder()
			cfg := r.config()
			c.change(&cfg)
			s, err := supervisor.New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			err = s.Start(t.Context())
			if err == nil {
				s.Close()
				t.Fatal("it started")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in %q", want, err)
				}
			}
			if status.Code(err) != c.code {
				t.Errorf("code %v, want %v", status.Code(err), c.code)
			}
			if left := children(t); len(left) > 0 {
				t.Errorf("processes are left: %v", left)
			}
			if left := sockets(t); len(left) > 0 {
				t.Errorf("files are left: %v", left)
			}
			if s.State() != supervisor.Stopped {
				t.Errorf("state %v", s.State())
			}
		})
	}
}

func TestNewRefuses(t *testing.T) {
	cases := []struct {
		why  string
		cfg  supervisor.Config
		want string
	}{
		{"nothing to run", supervisor.Config{}, "no helper program is set"},
		{"a misspelt value must not switch protection off", supervisor.Config{Path: "x", MTLS: "of"}, `mtls is "of", not auto or off`},
		{"a list is no configuration", supervisor.Config{Path: "x", PluginConfig: json.RawMessage(`[]`)}, "the helper's configuration is no JSON object"},
	}
	for _, c := range cases {
		t.Run(c.why, func(t *testing.T) {
			_, err := supervisor.New(c.cfg)
			if err == nil || !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestChecksum(t *testing.T) {
	out, err := exec.Command("sha256sum", program).Output()
	if err != nil {
		t.Fatal(err)
	}
	r := newRecorder()
	cfg := r.config()
	cfg.SHA256 = strings.ToUpper(strings.Fields(string(out))[0])
	s := start(t, cfg)
	answers(t, s)

	// The checksum is checked again at each start.
	_ = syscall.Kill(s.Info().PID, syscall.SIGKILL)
	r.await(t, supervisor.Restarting)
	r.await(t, supervisor.Running)
	answers(t, s)
}

func TestLongTempDir(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("x", 100))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", dir)
	s, err := supervisor.New(newRecorder().config())
	if err != nil {
		t.Fatal(err)
	}
	err = s.Start(t.Context())
	if err == nil || !strings.Contains(err.Error(), "set TMPDIR to a shorter path") {
		t.Errorf("got %v", err)
	}
	if left := sockets(t); len(left) > 0 {
		t.Errorf("files are left: %v", left)
	}
}

// A start that its caller gives up leaves nothing either.
func TestStartIsCancelled(t *testing.T) {
	for _, by := range []string{"ctx", "Close"} {
		t.Run(by, func(t *testing.T) {
			r := newRecorder()
			s, err := supervisor.New(r.config("silent"))
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			started := make(chan error)
			go func() { started <- s.Start(ctx) }()
			r.await(t, supervisor.Starting)
			if by == "ctx" {
				cancel()
			} else if err := s.Close(); err != nil {
				t.Error(err)
			}
			if err := <-started; !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
			if left := children(t); len(left) > 0 {
				t.Errorf("processes are left: %v", left)
			}
		})
	}
}

func TestCalls(t *testing.T) {
	r := newRecorder()
	cfg := r.config()
	cfg.Timeout = 500 * time.Millisecond
	s := start(t, cfg)

	large := node("ok")
	large.Node.InventoryJson = bytes.Repeat([]byte("x"), helper.MaxMessageSize)
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	cases := []struct {
		why  string
		ctx  context.Context
		req  *helperv1.ConfigureNodeRequest
		is   error
		code codes.Code
		text string
	}{
		{"an answer without a decision", t.Context(), node("nothing"), supervisor.ErrNoDecision, codes.Internal, "helper test-plugin: ConfigureNode: the helper's answer holds no decision (Internal)"},
		{"the deadline", t.Context(), node("hang"), nil, codes.DeadlineExceeded, "helper test-plugin: ConfigureNode: no answer within 500ms (DeadlineExceeded)"},
		{"the helper's own code", t.Context(), node("busy"), nil, codes.Unavailable, "helper test-plugin: ConfigureNode: the CA is down (Unavailable)"},
		{"a request over the limit is not sent", t.Context(), large, supervisor.ErrTooLarge, codes.OutOfRange, "more than 4194304"},
		{"the caller has gone", cancelled, node("ok"), nil, codes.Canceled, "context canceled"},
	}

	var want []string
	for _, c := range cases {
		want = append(want, "ConfigureNode "+c.code.String())
		t.Run(c.why, func(t *testing.T) {
			resp, err := s.ConfigureNode(c.ctx, c.req)
			if resp != nil || status.Code(err) != c.code || !strings.Contains(fmt.Sprint(err), c.text) {
				t.Errorf("got %v, %v, want %v %q", resp, err, c.code, c.text)
			}
			if c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("%v is not %v", err, c.is)
			}
		})
	}
	if !slices.Equal(r.calls, want) {
		t.Errorf("metrics got %v, want %v", r.calls, want)
	}
}

// What a helper may see: its own environment, a deadline, no token.
func TestWhatAHelperSees(t *testing.T) {
	t.Setenv("SITE_SECRET", "s3cret")
	cases := []struct {
		why       string
		change    func(*supervisor.Config)
		rawClaims string
		inherits  bool
	}{
		{"a plugin", func(*supervisor.Config) {}, "", false},
		{"one that asks for raw claims", func(c *supervisor.Config) { c.Args = []string{"raw-claims"} }, "", false},
		{"the adapter", func(c *supervisor.Config) {
			c.Args, c.AllowRawClaims, c.InheritEnv = []string{"raw-claims"}, true, true
		}, `{"token":"t"}`, true},
	}

	for _, c := range cases {
		t.Run(c.why, func(t *testing.T) {
			cfg := newRecorder().config()
			cfg.Env = map[string]string{"SITE": "lon1"}
			c.change(&cfg)
			s := start(t, cfg)
			req := node("echo")
			req.Node.ProvisioningClaimsJson, req.Node.RawClaimsJson = []byte(`{}`), []byte(`{"token":"t"}`)
			resp, err := s.ConfigureNode(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			got := resp.GetConfigure().GetConfiguration()
			if got["request_id"] != "r1" || got["claims"] != "{}" || got["raw_claims"] != c.rawClaims || got["seconds"] != "9" {
				t.Errorf("got %v", got)
			}
			env := strings.Split(got["env"], "\n")
			if !slices.Contains(env, "SITE=lon1") || slices.Contains(env, "SITE_SECRET=s3cret") != c.inherits || !slices.Contains(env, "PATH="+os.Getenv("PATH")) {
				t.Errorf("environment %v", env)
			}
			if string(req.Node.RawClaimsJson) != `{"token":"t"}` {
				t.Error("the caller's request was changed")
			}
		})
	}
}

// Calls beyond the limit wait for a place, not against their deadline.
func TestMaxInFlight(t *testing.T) {
	cfg := newRecorder().config()
	cfg.MaxInFlight, cfg.Timeout = 1, 500*time.Millisecond
	s := start(t, cfg)
	if s.Info().MaxInFlight != 1 {
		t.Fatalf("limit %d", s.Info().MaxInFlight)
	}

	began := time.Now()
	var calls sync.WaitGroup
	for range 3 {
		calls.Go(func() {
			if _, err := s.ConfigureNode(t.Context(), node("hang")); status.Code(err) != codes.DeadlineExceeded {
				t.Errorf("got %v", err)
			}
		})
	}
	calls.Wait()
	if took := time.Since(began); took < 3*cfg.Timeout {
		t.Errorf("three calls one at a time took %v", took)
	}
}

// Lines keep their level and fields, and neither long nor malformed ones harm.
func TestOutput(t *testing.T) {
	r := newRecorder()
	s := start(t, r.config())
	for _, identity := range []string{"log", "flood"} {
		if _, err := s.ConfigureNode(t.Context(), node(identity)); err != nil {
			t.Fatal(err)
		}
	}
	answers(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	for _, want := range []string{
		`"identity":"log","level":"debug","msg":"at debug","request_id":"r1"`,
		`"ca":"local","component":"helper","helper":"plugin","identity":"log","level":"warning","msg":"at warn"`,
		`"level":"error","msg":"at error"`,
		`"level":"info","msg":"on stdout","stream":"stdout"`,
		`"level":"info","msg":"on stderr","stream":"stderr"`,
		`x (cut: the line is longer than 65536 bytes)"`,
		`"msg":"{\"@message\":1,\"@level\":[],\"@timestamp\":{}}"`,
		`"msg":"served"`,
	} {
		if !strings.Contains(r.logged(), want) {
			t.Errorf("%s is not in the log", want)
		}
	}
}

func TestRestart(t *testing.T) {
	cases := []struct {
		why  string
		fail func(t *testing.T, s *supervisor.Supervisor)
	}{
		{"killed", func(t *testing.T, s *supervisor.Supervisor) {
			if err := syscall.Kill(s.Info().PID, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}},
		{"it ends in a call, which fails as unavailable", func(t *testing.T, s *supervisor.Supervisor) {
			if _, err := s.ConfigureNode(t.Context(), node("exit")); status.Code(err) != codes.Unavailable {
				t.Errorf("got %v", err)
			}
		}},
		{"it hangs", func(t *testing.T, s *supervisor.Supervisor) {
			if err := syscall.Kill(s.Info().PID, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
		}},
	}

	for _, c := range cases {
		t.Run(c.why, func(t *testing.T) {
			r := newRecorder()
			cfg := r.config()
			cfg.Health = supervisor.Health{Interval: 50 * time.Millisecond, Timeout: 200 * time.Millisecond, Failures: 2}
			s := start(t, cfg)
			pid := s.Info().PID
			began := time.Now()
			c.fail(t, s)
			r.await(t, supervisor.Restarting)
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("noticed after %v", took)
			}
			r.await(t, supervisor.Running)
			gone(t, pid)
			answers(t, s)
			if s.Info().PID == pid || r.restarted != 1 || s.Failure() == nil {
				t.Errorf("pid %d, %d restarts, failure %v", s.Info().PID, r.restarted, s.Failure())
			}
		})
	}
}

// In a crash loop the state is visible, calls fail at once, and a helper that
// can start again is used again.
func TestCrashLoop(t *testing.T) {
	dir := t.TempDir()
	flaky := filepath.Join(dir, "flaky")
	if err := os.Symlink(program, flaky); err != nil {
		t.Fatal(err)
	}
	r := newRecorder()
	cfg := r.config()
	cfg.Path = flaky
	cfg.Restart = supervisor.Restart{Min: time.Millisecond, Max: 2 * time.Millisecond, Limit: 3, Window: time.Minute, Pause: 300 * time.Millisecond}
	s := start(t, cfg)

	if err := os.Rename(flaky, flaky+".away"); err != nil {
		t.Fatal(err)
	}
	_ = syscall.Kill(s.Info().PID, syscall.SIGKILL)
	r.await(t, supervisor.CrashLoop)
	began := time.Now()
	_, err := s.ConfigureNode(t.Context(), node("ok"))
	if !errors.Is(err, supervisor.ErrUnavailable) || status.Code(err) != codes.Unavailable {
		t.Errorf("got %v", err)
	}
	if took := time.Since(began); took > 100*time.Millisecond {
		t.Errorf("it took %v to say so", took)
	}
	if s.Healthy() {
		t.Error("healthy in a crash loop")
	}
	if !strings.Contains(r.logged(), "it failed 3 times within 1m0s, next start in 300ms") {
		t.Errorf("the log does not say so: %s", r.logged())
	}

	if err := os.Rename(flaky+".away", flaky); err != nil {
		t.Fatal(err)
	}
	r.await(t, supervisor.Running)
	answers(t, s)
}

// Close ends the helper, its children and what they hold, within its bound.
func TestClose(t *testing.T) {
	cases := []struct {
		why  string
		args []string
		stop bool
	}{
		{"a helper that listens", nil, false},
		{"one that hangs", nil, true},
		{"one with a child in a process group of its own", []string{"child"}, false},
		{"one that hangs with a child", []string{"child"}, true},
	}

	for _, c := range cases {
		t.Run(c.why, func(t *testing.T) {
			shortTemp(t)
			pidFile := filepath.Join(t.TempDir(), "pid")
			for n := range c.args {
				c.args[n] += "=" + pidFile
			}
			r := newRecorder()
			s := start(t, r.config(c.args...))
			pid := s.Info().PID
			if c.stop {
				if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
					t.Fatal(err)
				}
			}
			hanging := make(chan error, 1)
			go func() {
				_, err := s.ConfigureNode(context.Background(), node("hang"))
				hanging <- err
			}()

			began := time.Now()
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			if took := time.Since(began); took > 1500*time.Millisecond {
				t.Errorf("it took %v", took)
			}
			if code := status.Code(<-hanging); code != codes.Unavailable && code != codes.Canceled {
				t.Errorf("the call in flight ended with %v", code)
			}
			gone(t, pid)
			if b, err := os.ReadFile(pidFile); err == nil {
				child, err := strconv.Atoi(strings.TrimSpace(string(b)))
				if err != nil {
					t.Fatal(err)
				}
				gone(t, child)
			} else if len(c.args) > 0 {
				t.Fatal(err)
			}
			if left := sockets(t); len(left) > 0 {
				t.Errorf("files are left: %v", left)
			}
			if _, err := s.ConfigureNode(t.Context(), node("ok")); !errors.Is(err, supervisor.ErrUnavailable) {
				t.Errorf("a call afterwards: %v", err)
			}
			if err := s.Close(); err != nil || s.State() != supervisor.Closed {
				t.Errorf("second Close: %v, state %v", err, s.State())
			}
		})
	}
}
