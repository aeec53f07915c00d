package metrics

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
)

func nullLog() (*logrus.Entry, *logtest.Hook) {
	logger, hook := logtest.NewNullLogger()

	return logrus.NewEntry(logger), hook
}

// serve runs a server until the test ends.
func serve(t *testing.T, cfg ServerConfig) string {
	t.Helper()

	cfg.Address = "127.0.0.1"
	s, err := Listen(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})

	return "http://" + s.Addr().String()
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()

	res, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}

	return res.StatusCode, string(body)
}

func TestServer_metrics(t *testing.T) {
	log, _ := nullLog()
	code, page := get(t, serve(t, ServerConfig{Metrics: New("lon"), Log: log})+"/metrics")
	if code != http.StatusOK {
		t.Fatalf("status %d: %s", code, page)
	}

	for why, line := range map[string]string{
		"ours":          "\n# TYPE choria_provisioner_provisioned counter\n",
		"Go's once":     "\n# TYPE go_goroutines gauge\n",
		"process, once": "\n# TYPE process_open_fds gauge\n",
	} {
		if n := strings.Count(page, line); n != 1 {
			t.Errorf("%s: %d times %q", why, n, line)
		}
	}
}

// Whatever a library puts on the default registry must not cost the page.
func TestServer_conflictKeepsThePage(t *testing.T) {
	others := prometheus.NewRegistry()
	others.MustRegister(
		collectors.NewGoCollector(),
		prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: namespace, Name: "provisioned", Help: "not ours", ConstLabels: prometheus.Labels{"site": "lon"},
		}),
	)
	log, hook := nullLog()
	srv := httptest.NewServer(newHandler(ServerConfig{Metrics: New("lon"), Log: log}, others))
	defer srv.Close()

	code, page := get(t, srv.URL+"/metrics")
	if code != http.StatusOK {
		t.Fatalf("status %d: %s", code, page)
	}
	for _, line := range []string{"\n# TYPE choria_provisioner_provisioned counter\n", "\n# TYPE go_goroutines gauge\n"} {
		if !strings.Contains(page, line) {
			t.Errorf("no %q", line)
		}
	}
	if e := hook.LastEntry(); e == nil || e.Level != logrus.WarnLevel || !strings.Contains(e.Message, "choria_provisioner_provisioned") {
		t.Errorf("the conflict was not said: %v", e)
	}
}

func TestServer_health(t *testing.T) {
	var notReady atomic.Bool
	log, _ := nullLog()
	base := serve(t, ServerConfig{Metrics: New(""), Log: log, Ready: func() error {
		if notReady.Load() {
			return errors.New("the helper is broken")
		}

		return nil
	}})

	for _, tc := range []struct {
		why, path string
		notReady  bool
		code      int
		body      string
	}{
		{why: "alive", path: "/healthz", code: http.StatusOK, body: "ok\n"},
		{why: "alive, though not ready", path: "/healthz", notReady: true, code: http.StatusOK, body: "ok\n"},
		{why: "ready", path: "/readyz", code: http.StatusOK, body: "ok\n"},
		{why: "the reason is said", path: "/readyz", notReady: true, code: http.StatusServiceUnavailable, body: "the helper is broken\n"},
		{why: "the default mux is not ours", path: "/debug/pprof/", code: http.StatusNotFound, body: "404 page not found\n"},
	} {
		t.Run(tc.why, func(t *testing.T) {
			notReady.Store(tc.notReady)
			code, body := get(t, base+tc.path)
			if code != tc.code || body != tc.body {
				t.Errorf("%d %q, want %d %q", code, body, tc.code, tc.body)
			}
		})
	}
}

func TestListen_busyPort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()

	_, err = Listen(ServerConfig{Address: "127.0.0.1", Port: l.Addr().(*net.TCPAddr).Port, Metrics: New("")})
	if err == nil || !strings.Contains(err.Error(), "monitor_port") || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("error %v does not name the key and the cause", err)
	}
}

// A scrape that does not end must not hold up the daemon's exit.
func TestServer_stopIsBounded(t *testing.T) {
	log, _ := nullLog()
	scraping, ended := make(chan struct{}), make(chan struct{})
	s, err := Listen(ServerConfig{Address: "127.0.0.1", Metrics: New(""), Log: log, Ready: func() error {
		close(scraping)
		<-ended
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx) }()
	go http.Get("http://" + s.Addr().String() + "/readyz")
	<-scraping
	defer close(ended)

	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * shutdownTimeout):
		t.Fatal("still serving")
	}
}
