package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/sirupsen/logrus"

	"github.com/choria-provisioner/provisioner/deploy/versions"
)

func startServer(t *testing.T) *server.Server {
	t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(20 * time.Second) {
		t.Fatal("the server is not ready")
	}

	return s
}

func connect(t *testing.T, s *server.Server) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(s.ClientURL(), nats.MaxReconnects(0))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)

	return nc
}

func quietLog() *logrus.Entry {
	logger := logrus.New()
	logger.SetOutput(io.Discard)

	return logrus.NewEntry(logger)
}

func sample(instance string) Status {
	return Status{
		Instance: instance, Place: "p-" + instance, Identity: "provisioner.example.net", Site: "lon", Build: "1.2.3", Digest: "abc",
		Gate: Gate{Open: true}, Helper: Helper{Name: "localca", Build: "1", State: "running"}, Ledger: "off",
	}
}

// instance runs the service of an instance on connections that the test hands
// to it one after the other.
type instance struct {
	mu      sync.Mutex
	nc      *nats.Conn
	session context.Context
	end     context.CancelFunc
}

func (i *instance) use(nc *nats.Conn) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.end != nil {
		i.end()
	}
	i.nc = nc
	i.session, i.end = context.WithCancel(context.Background())
}

func (i *instance) connect(ctx context.Context) (*nats.Conn, context.Context, error) {
	i.mu.Lock()
	defer i.mu.Unlock()

	return i.nc, i.session, ctx.Err()
}

func run(t *testing.T, nc *nats.Conn, now func() Status) *instance {
	t.Helper()
	i := &instance{}
	i.use(nc)
	service := &Service{Connect: i.connect, Status: now, Log: quietLog()}
	ctx, stop := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { service.Run(ctx) })
	t.Cleanup(func() {
		stop()
		done.Wait()
	})

	return i
}

func eventually(t *testing.T, what string, ok func() error) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		err := ok()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: %v", what, err)
		}
	}
}

// answers is an error unless exactly these instances answer.
func answers(nc *nats.Conn, want ...string) error {
	list, err := Ask(context.Background(), nc)
	if err != nil {
		return err
	}
	var got []string
	for _, s := range list {
		got = append(got, s.Instance)
	}
	if !slices.Equal(got, want) {
		return fmt.Errorf("%v answer, not %v", got, want)
	}

	return nil
}

// Replicas that share an identity are told apart, each can be asked alone, and
// the tools for micro services see them.
func TestService(t *testing.T) {
	s := startServer(t)
	for _, id := range []string{"b", "a"} {
		run(t, connect(t, s), func() Status { return sample(id) })
	}
	nc := connect(t, s)
	eventually(t, "both answer", func() error { return answers(nc, "a", "b") })

	one, err := AskInstance(t.Context(), nc, "b")
	if err != nil || one.Instance != "b" || one.Helper.Name != "localca" {
		t.Errorf("asked alone: %+v, %v", one, err)
	}
	if _, err := AskInstance(t.Context(), nc, "c"); !errors.Is(err, nats.ErrNoResponders) {
		t.Errorf("asked one that is not there: %v", err)
	}

	for verb, want := range map[micro.Verb]string{
		micro.PingVerb: micro.PingResponseType, micro.InfoVerb: micro.InfoResponseType, micro.StatsVerb: micro.StatsResponseType,
	} {
		subject, err := micro.ControlSubject(verb, ServiceName, "")
		if err != nil {
			t.Fatal(err)
		}
		reply, err := nc.Request(subject, nil, 10*time.Second)
		if err != nil {
			t.Fatalf("%s: %v", subject, err)
		}
		var answer struct {
			Type     string            `json:"type"`
			Name     string            `json:"name"`
			Version  string            `json:"version"`
			Metadata map[string]string `json:"metadata"`
		}
		if err := json.Unmarshal(reply.Data, &answer); err != nil {
			t.Fatal(err)
		}
		if answer.Type != want || answer.Name != "choria_provisioner" || answer.Version != "1.2.3" || answer.Metadata["build"] != "1.2.3" {
			t.Errorf("%s: %s", subject, reply.Data)
		}
	}
}

// The service follows the daemon to its next connection.
func TestService_connectionReplaced(t *testing.T) {
	s := startServer(t)
	first, second := connect(t, s), connect(t, s)
	i := run(t, first, func() Status { return sample("a") })
	nc := connect(t, s)
	eventually(t, "it answers", func() error { return answers(nc, "a") })

	first.Close()
	i.use(second)
	eventually(t, "it answers over the second connection", func() error { return answers(nc, "a") })

	i.use(connect(t, s))
	eventually(t, "it answers over the third, and leaves the second alone", func() error {
		if n := second.NumSubscriptions(); n != 0 {
			return fmt.Errorf("%d subscriptions are left", n)
		}
		return answers(nc, "a")
	})
}

// Nobody there is an answer; a broker that is gone is none.
func TestAsk_nobody(t *testing.T) {
	s := startServer(t)
	nc := connect(t, s)
	began := time.Now()
	if err := answers(nc); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took >= patience {
		t.Errorf("took %v, although the broker knows that nobody listens", took)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Ask(ctx, nc); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
	nc.Close()
	if _, err := Ask(t.Context(), nc); err == nil {
		t.Error("no error without a connection")
	}
}

// What others answer in our name is passed over, and does not hold up for ever.
func TestAsk_junk(t *testing.T) {
	s := startServer(t)
	junk := connect(t, s)
	if _, err := junk.Subscribe(subject, func(m *nats.Msg) {
		for _, text := range []string{"", "{", "[]", `{"instance":""}`, strings.Repeat("x", 100_000)} {
			_ = m.Respond([]byte(text))
		}
	}); err != nil {
		t.Fatal(err)
	}
	run(t, connect(t, s), func() Status { return sample("a") })
	nc := connect(t, s)
	eventually(t, "one answers", func() error { return answers(nc, "a") })

	endless := connect(t, s)
	if _, err := endless.Subscribe(subject, func(m *nats.Msg) {
		for {
			if m.Respond([]byte("{}")) != nil {
				return
			}
			time.Sleep(time.Millisecond)
		}
	}); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if _, err := Ask(t.Context(), nc); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 10*patience {
		t.Errorf("took %v", took)
	}
}

// No more is kept of an answer than an instance would say.
func TestAsk_huge(t *testing.T) {
	s := startServer(t)
	nc := connect(t, s)
	if _, err := connect(t, s).Subscribe(subject, func(m *nats.Msg) {
		long := strings.Repeat("x", 100_000)
		for _, text := range []string{
			`{"instance":"a","identity":"` + long + `","helper":{"name":"` + long + `"},"version":{"running":"` + long + `","verdicts":[` + strings.Repeat("{},", 20_000) + `{}]}}`,
			`{"instance":"b","version":{"verdicts":[` + strings.Repeat("{},", 300_000) + `{}]}}`,
		} {
			_ = m.Respond([]byte(text))
		}
	}); err != nil {
		t.Fatal(err)
	}
	var list []Status
	eventually(t, "one answers", func() (err error) {
		list, err = Ask(t.Context(), nc)
		if err == nil && len(list) != 1 {
			err = fmt.Errorf("%d answer", len(list))
		}
		return err
	})
	one := list[0]
	if n := len(one.Identity) + len(one.Helper.Name) + len(one.Version.Running); one.Instance != "a" || n > 1000 {
		t.Errorf("%.20s said %d bytes", one.Instance, n)
	}
	if n := cap(one.Version.Verdicts); n > mostVerdicts {
		t.Errorf("%d verdicts are kept", n)
	}
}

// A status fits into one message, whatever a full disk left in the files.
func TestBounded(t *testing.T) {
	s := startServer(t)
	now := sample("a")
	now.Gate = Gate{Why: strings.Repeat("w", 1<<20)}
	now.Version = &Version{Running: "v1", Waits: strings.Repeat("\xff", 1<<20)}
	for i := range 1000 {
		now.Version.Verdicts = append(now.Version.Verdicts, versions.Verdict{From: fmt.Sprint(i), Why: strings.Repeat("y", 10_000)})
	}
	run(t, connect(t, s), func() Status { return now })
	nc := connect(t, s)
	eventually(t, "it answers", func() error { return answers(nc, "a") })
	got, err := AskInstance(t.Context(), nc, "a")
	if err != nil {
		t.Fatal(err)
	}
	if n := len(got.Version.Verdicts); n != mostVerdicts || got.Version.Verdicts[n-1].From != "999" {
		t.Errorf("%d verdicts", n)
	}
	if len(now.Version.Verdicts) != 1000 {
		t.Error("the caller's own was changed")
	}
}

// Builds that are no semantic versions must not keep the service from being added.
func TestSemantic(t *testing.T) {
	for build, want := range map[string]string{
		"1.2.3": "1.2.3", "0.0.0-development": "0.0.0-development", "": "0.0.0-other", "v1.2.3": "0.0.0-other",
		"1.2": "0.0.0-other", "1.2.3-1.el9": "0.0.0-other", "1.2.3-": "0.0.0-other", "1.2.3-01": "0.0.0-other",
	} {
		if got := semantic(build); got != want {
			t.Errorf("%q became %q, not %q", build, got, want)
		}
		if _, err := micro.AddService(connect(t, startServer(t)), micro.Config{Name: ServiceName, Version: semantic(build)}); err != nil {
			t.Errorf("%q: %v", build, err)
		}
	}
}

// The library stops a service of which a message was lost; it is added again.
func TestService_stopsByItself(t *testing.T) {
	s := startServer(t)
	own := connect(t, s)
	run(t, own, func() Status { return sample("a") })
	nc := connect(t, s)
	eventually(t, "it answers", func() error { return answers(nc, "a") })
	own.ErrorHandler()(own, &nats.Subscription{Subject: subject}, nats.ErrSlowConsumer)
	eventually(t, "it is gone", func() error {
		if n := own.NumSubscriptions(); n != 0 {
			return fmt.Errorf("%d subscriptions are left", n)
		}
		return nil
	})
	eventually(t, "it answers again", func() error { return answers(nc, "a") })
}
