package execadapter_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/choria-provisioner/provisioner/helper"
	"github.com/choria-provisioner/provisioner/helper/execadapter"
	"github.com/choria-provisioner/provisioner/helper/helperv1"
	"github.com/choria-provisioner/provisioner/helper/supervisor"
)

// The test's own binary is the adapter too, as the daemon's is.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "exec-helper" {
		timeout, err := time.ParseDuration(os.Args[2])
		if err == nil {
			err = execadapter.Serve(execadapter.Config{Command: os.Args[3:], Timeout: timeout})
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// script writes a shell script and returns its path.
func script(t *testing.T, body string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "helper.sh")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+body), 0o755); err != nil {
		t.Fatal(err)
	}

	return path
}

// start runs a command as an exec helper, behind the real supervisor.
func start(t *testing.T, timeout time.Duration, command ...string) (*supervisor.Supervisor, *logBuffer) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	out := &logBuffer{}
	log := logrus.New()
	log.SetOutput(out)
	log.SetFormatter(&logrus.JSONFormatter{})
	s, err := supervisor.New(supervisor.Config{
		Path:           self,
		Args:           append([]string{"exec-helper", timeout.String()}, command...),
		InheritEnv:     true,
		AllowRawClaims: true,
		Timeout:        timeout + 5*time.Second,
		Log:            log.WithField("component", "helper"),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })

	return s, out
}

type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func node(identity string) *helperv1.ConfigureNodeRequest {
	return &helperv1.ConfigureNodeRequest{RequestId: "r1", Node: &helperv1.Node{Identity: identity}}
}

// TestObservedReplies runs every reply whose outcome with the older provisioner
// was observed.
func TestObservedReplies(t *testing.T) {
	text, err := os.ReadFile("testdata/helper-output.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Cases []struct {
			Name, Stdout, Stderr, Upstream, Behaviour string
			Exit                                      int
		}
	}
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}

	// What our errors say, where the older one's were less clear.
	says := map[string]string{
		"config-number":   `the value of "registerinterval" in configuration is of type number, not string`,
		"config-bool":     `the value of "rpcauthorization" in configuration is of type bool, not string`,
		"defer-string":    "defer in its output is of type string, not bool",
		"log-line-before": `its output is not one JSON document: invalid character 's' looking for beginning of value at byte 1: "starting helper\n{`,
		"two-docs":        "its output is not one JSON document: invalid character '{' after top-level value",
		"empty":           "wrote nothing to standard output",
		"exit1-with-json": "failed: exit status 1",
		"sleep-15-exec":   "timed out after 1s",
	}

	for _, c := range file.Cases {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for name, text := range map[string]string{"out": c.Stdout, "err": c.Stderr} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			body := fmt.Sprintf("cat %s/err >&2\ncat %s/out\nexit %d\n", dir, dir, c.Exit)
			if c.Name != "never-reads-stdin" {
				body = "cat >/dev/null\n" + body
			}
			timeout := 30 * time.Second
			if c.Behaviour != "" {
				body, timeout = c.Behaviour+"\n", time.Second
			}

			s, log := start(t, timeout, script(t, body))
			req := node("n1.example.net")
			// More than a pipe holds, for those that do not read it.
			req.Node.InventoryJson = bytes.Repeat([]byte(" "), 200<<10)
			got, err := s.ConfigureNode(t.Context(), req)

			switch c.Upstream {
			case "helper_error":
				want := says[c.Name]
				if err == nil || want == "" || !strings.Contains(err.Error(), want) {
					t.Fatalf("got %v, %v, want %q", got, err, want)
				}
			case "defer":
				if err != nil || !proto.Equal(got, helper.Defer("cfssl integration failed", 0)) {
					t.Fatalf("got %v, %v", got, err)
				}
			case "accept", "accept_then_fail":
				if err != nil || got.GetConfigure() == nil {
					t.Fatalf("got %v, %v", got, err)
				}
				n := len(got.GetConfigure().GetConfiguration())
				if empty := c.Upstream == "accept_then_fail"; (n == 0) != empty {
					t.Errorf("%d configuration entries", n)
				}
			default:
				t.Fatalf("unknown outcome %q", c.Upstream)
			}
			if c.Stderr != "" && !strings.Contains(log.String(), `"identity":"n1.example.net","level":"info","msg":"warning: x"`) {
				t.Errorf("standard error is lost: %s", log)
			}
			if c.Name == "config-null-value" {
				want := map[string]string{"machine_room.source.host": "", "a": "b"}
				if !proto.Equal(got, helper.Configure(want)) {
					t.Errorf("got %v", got)
				}
			}
		})
	}
}

// TestInput reads what a script is given.
func TestInput(t *testing.T) {
	full := &helperv1.Node{
		Identity:      "n1.example.net",
		InventoryJson: []byte(`{"facts":{"a":"ü<>"}}`),
		Csr:           &helperv1.CSR{CsrPem: "C", PublicKeyPem: "P", Ssldir: "/s"},
		Ed25519:       &helperv1.Ed25519Key{PublicKey: "p", Directory: "/d", Signature: "s"},
		RawClaimsJson: []byte(`{"cht":"t0ken","exp":12345678901234567890}`),
	}
	cases := []struct {
		why  string
		node *helperv1.Node
		want string
	}{
		{"everything on; the inventory is a string, the claims are as sent", full, `{"identity":"n1.example.net","csr":{"csr":"C","public_key":"P","ssldir":"/s"},"ed25519_pubkey":{"public_key":"p","directory":"/d","signature":"s"},"inventory":"{\"facts\":{\"a\":\"ü<>\"}}","jwt":{"cht":"t0ken","exp":12345678901234567890}}`},
		{"everything off is null, not absent", &helperv1.Node{Identity: "n1"}, `{"identity":"n1","csr":null,"ed25519_pubkey":null,"inventory":"","jwt":null}`},
	}

	for _, c := range cases {
		t.Run(c.why, func(t *testing.T) {
			// The script's answer quotes what it read.
			seen := filepath.Join(t.TempDir(), "seen")
			t.Setenv("SEEN", seen)
			s, _ := start(t, 30*time.Second, script(t, "cat > \"$SEEN\"\necho '{\"configuration\":{\"a\":\"b\"}}'\n"))
			if _, err := s.ConfigureNode(t.Context(), &helperv1.ConfigureNodeRequest{Node: c.node}); err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(seen)
			if err != nil {
				t.Fatal(err)
			}
			got = []byte(strings.NewReplacer(`\u003c`, "<", `\u003e`, ">").Replace(string(got)))
			if string(got) != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestRuns(t *testing.T) {
	cases := []struct {
		why     string
		body    string
		timeout time.Duration
		code    codes.Code
		text    string
	}{
		{"a hanging grandchild is killed with its group", "sleep 600 & echo $! > \"$PIDFILE\"\nwait\n", time.Second, codes.DeadlineExceeded, "helper.sh timed out after 1s"},
		{"one that shields itself from TERM too", "trap '' TERM\nsleep 600 & echo $! > \"$PIDFILE\"\nwait\n", time.Second, codes.DeadlineExceeded, "helper.sh timed out after 1s"},
		{"output is bounded, in one line too", "head -c 100000000 /dev/zero\n", 30 * time.Second, codes.Internal, "helper.sh wrote more than 1048576 bytes to standard output"},
		{"output is bounded", "yes\n", 30 * time.Second, codes.Internal, "helper.sh wrote more than 1048576 bytes to standard output"},
		{"a failure is explained by the last line on standard error", "echo one >&2; echo no CA >&2; exit 3\n", 30 * time.Second, codes.Internal, "helper.sh failed: exit status 3; its last line on standard error: no CA"},
		{"a signal is named", "kill -9 $$\n", 30 * time.Second, codes.Internal, "helper.sh failed: signal: killed"},
		{"silence is explained too", "echo cannot >&2\n", 30 * time.Second, codes.Internal, "helper.sh wrote nothing to standard output; its last line on standard error: cannot"},
	}

	for _, c := range cases {
		t.Run(c.why, func(t *testing.T) {
			pidFile := filepath.Join(t.TempDir(), "pid")
			t.Setenv("PIDFILE", pidFile)
			s, _ := start(t, c.timeout, script(t, c.body))
			began := time.Now()
			_, err := s.ConfigureNode(t.Context(), node("n1"))
			if status.Code(err) != c.code || !strings.Contains(fmt.Sprint(err), c.text) {
				t.Errorf("got %v, want %v %q", err, c.code, c.text)
			}
			if took := time.Since(began); took > c.timeout+3*time.Second {
				t.Errorf("it took %v", took)
			}
			if strings.Contains(c.body, "PIDFILE") {
				gone(t, pidFile)
			}
		})
	}
}

// What a script writes beside its answer is bounded: one line or many, it is
// answered all the same.
func TestTorrentOnStderr(t *testing.T) {
	for why, filter := range map[string]string{"one line": "tr '\\0' x", "lines": "tr '\\0' x | fold -w 65536"} {
		t.Run(why, func(t *testing.T) {
			s, log := start(t, time.Minute, script(t, "head -c 100000000 /dev/zero | "+filter+" >&2\necho '{\"configuration\":{\"a\":\"b\"}}'\n"))
			got, err := s.ConfigureNode(t.Context(), node("n1"))
			if err != nil || !proto.Equal(got, helper.Configure(map[string]string{"a": "b"})) {
				t.Errorf("got %v, %v", got, err)
			}
			// Each line is cut.
			if most := 20_000_000; len(log.String()) > most {
				t.Errorf("%d bytes were logged", len(log.String()))
			}
		})
	}
}

// A child that keeps standard output open blocks nobody, and is not killed:
// the script has ended in order.
func TestChildKeepsOutput(t *testing.T) {
	pidFile := filepath.Join(t.TempDir(), "pid")
	t.Setenv("PIDFILE", pidFile)
	s, _ := start(t, 30*time.Second, script(t, "sleep 600 & echo $! > \"$PIDFILE\"\necho '{\"defer\":true,\"msg\":\"m\"}'\n"))
	began := time.Now()
	got, err := s.ConfigureNode(t.Context(), node("n1"))
	if err != nil || !proto.Equal(got, helper.Defer("m", 0)) {
		t.Fatalf("got %v, %v", got, err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
	if err := syscall.Kill(readPID(t, pidFile), 0); err != nil {
		t.Errorf("the child: %v", err)
	}

	// The end of the adapter is the end of all its children.
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	gone(t, pidFile)
}

// The scripts in flight end with the adapter, however it ends.
func TestAdapterEnds(t *testing.T) {
	for _, how := range []string{"Close", "SIGKILL"} {
		t.Run(how, func(t *testing.T) {
			pidFile := filepath.Join(t.TempDir(), "pid")
			t.Setenv("PIDFILE", pidFile)
			s, _ := start(t, 30*time.Second, script(t, "sleep 600 & echo $! > \"$PIDFILE.new\"\nmv \"$PIDFILE.new\" \"$PIDFILE\"\nwait\n"))
			ended := make(chan error, 1)
			go func() {
				_, err := s.ConfigureNode(t.Context(), node("n1"))
				ended <- err
			}()
			pid := readPID(t, pidFile)

			began := time.Now()
			if how == "Close" {
				if err := s.Close(); err != nil {
					t.Error(err)
				}
				if took := time.Since(began); took > 1500*time.Millisecond {
					t.Errorf("it took %v", took)
				}
			} else if err := syscall.Kill(s.Info().PID, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if err := <-ended; err == nil {
				t.Error("the call succeeded")
			}
			gonePID(t, pid)
		})
	}
}

// Many run at once: nothing in the adapter is shared between them.
func TestManyAtOnce(t *testing.T) {
	s, _ := start(t, 30*time.Second, script(t, `id=$(sed 's/.*"identity":"\([^"]*\)".*/\1/')`+"\nprintf '{\"configuration\":{\"identity\":\"%s\"}}' \"$id\"\n"))
	var calls sync.WaitGroup
	for n := range 50 {
		calls.Go(func() {
			identity := fmt.Sprintf("n%d.example.net", n)
			got, err := s.ConfigureNode(t.Context(), node(identity))
			if err != nil || got.GetConfigure().GetConfiguration()["identity"] != identity {
				t.Errorf("%s: got %v, %v", identity, got, err)
			}
		})
	}
	calls.Wait()
}

// The working directory and the environment are inherited, but for what was
// meant for the adapter; arguments arrive whole.
func TestSurroundings(t *testing.T) {
	t.Setenv("SITE_ENV", "here")
	s, _ := start(t, 30*time.Second, script(t, `printf '{"configuration":{"dir":"%s","env":"%s","arg":"%s","handshake":"%s"}}' "$(pwd)" "$SITE_ENV" "$2" "$`+helper.MagicCookieKey+`$PLUGIN_CLIENT_CERT$PLUGIN_UNIX_SOCKET_DIR"`), "--site", "new york")
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	got, err := s.ConfigureNode(t.Context(), node("n1"))
	if err != nil {
		t.Fatal(err)
	}
	want := helper.Configure(map[string]string{"dir": dir, "env": "here", "arg": "new york", "handshake": ""})
	if !proto.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestMissingCommand(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s, err := supervisor.New(supervisor.Config{Path: self, Args: []string{"exec-helper", "1s", "/nonexistent/helper.rb"}})
	if err != nil {
		t.Fatal(err)
	}
	err = s.Start(t.Context())
	if err == nil || !strings.Contains(err.Error(), "/nonexistent/helper.rb: no such file or directory") {
		t.Errorf("got %v", err)
	}
}

// readPID waits for a file with a process id.
func readPID(t *testing.T, file string) int {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		b, err := os.ReadFile(file)
		if pid, perr := strconv.Atoi(strings.TrimSpace(string(b))); err == nil && perr == nil {
			return pid
		}
	}
	t.Fatal("no process id was written")
	return 0
}

func gone(t *testing.T, pidFile string) {
	t.Helper()
	gonePID(t, readPID(t, pidFile))
}

// gonePID waits for a process to vanish; a zombie waits for whoever adopts
// orphans here.
func gonePID(t *testing.T, pid int) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || bytes.HasPrefix(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" Z")) {
			return
		}
	}
	t.Errorf("process %d is still there", pid)
}
