package helper_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

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

// caller is a helper as the suite sees it.
type caller interface {
	ConfigureNode(context.Context, *helperv1.ConfigureNodeRequest) (*helperv1.ConfigureNodeResponse, error)
	DecideRelease(context.Context, *helperv1.DecideReleaseRequest) (*helperv1.DecideReleaseResponse, error)
	ReportOutcome(context.Context, *helperv1.ReportOutcomeRequest) error
}

// builtIn calls a plugin that is served in this process.
type builtIn struct {
	configurer helperv1.NodeConfigurerClient
	decider    helperv1.ReleaseDeciderClient
}

func (b *builtIn) ConfigureNode(ctx context.Context, r *helperv1.ConfigureNodeRequest) (*helperv1.ConfigureNodeResponse, error) {
	return b.configurer.ConfigureNode(ctx, r)
}

func (b *builtIn) DecideRelease(ctx context.Context, r *helperv1.DecideReleaseRequest) (*helperv1.DecideReleaseResponse, error) {
	return b.decider.DecideRelease(ctx, r)
}

func (b *builtIn) ReportOutcome(ctx context.Context, r *helperv1.ReportOutcomeRequest) error {
	_, err := b.decider.ReportOutcome(ctx, r)
	return err
}

func dial(t *testing.T, p *helper.Plugin, log *syncBuffer) *grpc.ClientConn {
	t.Helper()
	s := helper.NewServer(p, log)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		s.Stop()
		<-served
	})

	return conn
}

func TestSuite(t *testing.T) {
	t.Run("built-in", func(t *testing.T) {
		conn := dial(t, testplugin.New(), &syncBuffer{})
		suite(t, &builtIn{helperv1.NewNodeConfigurerClient(conn), helperv1.NewReleaseDeciderClient(conn)})
	})

	for _, mtls := range []string{supervisor.MTLSAuto, supervisor.MTLSOff} {
		t.Run("external, mtls "+mtls, func(t *testing.T) {
			s, err := supervisor.New(supervisor.Config{Path: program, MTLS: mtls})
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			suite(t, s)
		})
	}
}

func suite(t *testing.T, h caller) {
	cases := []struct {
		identity string
		why      string
		want     *helperv1.ConfigureNodeResponse
		code     codes.Code
		text     string
	}{
		{identity: "ok", why: "a configuration arrives as it was given", want: helper.Configure(map[string]string{"identity": "ok"})},
		{identity: "defer", why: "with the time to wait", want: helper.Defer("not yet", time.Minute)},
		{identity: "shutdown", why: "with its reason", want: helper.Shutdown("not wanted")},
		{identity: "busy", why: "a status keeps its code", code: codes.Unavailable, text: "the CA is down"},
		{identity: "plain", why: "another error is the helper's fault", code: codes.Unknown, text: "plain error"},
		{identity: "panic", why: "one node must not end the helper", code: codes.Internal, text: "panic: no such site"},
		{identity: "big", why: "a too large answer is no passing fault", code: codes.Internal, text: "more than the limit of 4194304"},
		{identity: "ok again", why: "it still answers after all that", want: helper.Configure(map[string]string{"identity": "ok again"})},
	}

	for _, c := range cases {
		t.Run(c.identity, func(t *testing.T) {
			got, err := h.ConfigureNode(t.Context(), &helperv1.ConfigureNodeRequest{Node: &helperv1.Node{Identity: c.identity}})
			if status.Code(err) != c.code || (err != nil && !strings.Contains(err.Error(), c.text)) {
				t.Fatalf("%s: got %v, want %v %q", c.why, err, c.code, c.text)
			}
			if err == nil && !proto.Equal(got, c.want) {
				t.Errorf("%s: got %v, want %v", c.why, got, c.want)
			}
		})
	}

	t.Run("many at once", func(t *testing.T) {
		var calls sync.WaitGroup
		for n := range 100 {
			calls.Go(func() {
				identity := fmt.Sprintf("ok %d", n)
				got, err := h.ConfigureNode(t.Context(), &helperv1.ConfigureNodeRequest{Node: &helperv1.Node{Identity: identity}})
				if err != nil || got.GetConfigure().GetConfiguration()["identity"] != identity {
					t.Errorf("%s: got %v, %v", identity, got, err)
				}
			})
		}
		calls.Wait()
	})

	t.Run("release", func(t *testing.T) {
		got, err := h.DecideRelease(t.Context(), &helperv1.DecideReleaseRequest{Node: &helperv1.Node{Version: "1.0"}})
		if err != nil || !proto.Equal(got, helper.Upgrade("2.0.0", "newer than 1.0")) {
			t.Errorf("got %v, %v", got, err)
		}
		err = h.ReportOutcome(t.Context(), &helperv1.ReportOutcomeRequest{Outcome: "proved"})
		if status.Code(err) != codes.NotFound {
			t.Errorf("got %v", err)
		}
	})
}

// A panic is on standard error with its stack and the node, for the author.
func TestPanicIsLogged(t *testing.T) {
	log := &syncBuffer{}
	conn := dial(t, testplugin.New(), log)
	_, err := helperv1.NewNodeConfigurerClient(conn).ConfigureNode(t.Context(), &helperv1.ConfigureNodeRequest{RequestId: "r1", Node: &helperv1.Node{Identity: "panic"}})
	if status.Code(err) != codes.Internal {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{`"@level":"error"`, `"identity":"panic"`, `"request_id":"r1"`, "testplugin/plugin.go"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("%s is not in %s", want, log)
		}
	}
}

// A helper without the optional parts says so by the codes of the contract.
func TestOptionalParts(t *testing.T) {
	p := testplugin.New()
	p.DecideRelease, p.ReportOutcome, p.Configure, p.Validate = nil, nil, nil, nil
	conn := dial(t, p, &syncBuffer{})

	info, err := helperv1.NewHelperInfoClient(conn).GetInfo(t.Context(), &helperv1.GetInfoRequest{})
	if err != nil || len(info.GetCapabilities()) != 0 {
		t.Errorf("got %v, %v", info, err)
	}
	_, err = helperv1.NewHelperInfoClient(conn).Configure(t.Context(), &helperv1.ConfigureRequest{})
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("Configure: %v", err)
	}
	_, err = helperv1.NewHelperInfoClient(conn).Validate(t.Context(), &helperv1.ValidateRequest{})
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("Validate: %v", err)
	}
	_, err = helperv1.NewReleaseDeciderClient(conn).DecideRelease(t.Context(), &helperv1.DecideReleaseRequest{})
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("DecideRelease: %v", err)
	}
}

// syncBuffer is a buffer for loggers.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
