package metrics

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/sirupsen/logrus"
)

// shutdownTimeout bounds the wait for scrapes under way when the server stops;
// the daemon has 2 s in all.
const shutdownTimeout = 500 * time.Millisecond

// ServerConfig says what a Server shows, and where.
type ServerConfig struct {
	// Address to listen on, all interfaces when empty.
	Address string
	// Port to listen on; 0 is any free one.
	Port int
	// Metrics are shown together with those of the default registry: Go's, the
	// process's and go-choria's own.
	Metrics *Metrics
	// Ready says why the daemon is not ready, nil when it is. Without it
	// /readyz always agrees.
	Ready func() error
	// Log is told about metrics that cannot be shown.
	Log *logrus.Entry
}

// Server answers /metrics, /healthz and /readyz.
type Server struct {
	listener net.Listener
	server   *http.Server
}

// Listen opens the port, so that one in use is an error before anything else
// has started. The port is closed by Serve; call it even to stop at once.
func Listen(cfg ServerConfig) (*Server, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(cfg.Address, strconv.Itoa(cfg.Port)))
	if err != nil {
		return nil, fmt.Errorf("monitor_port %d: %w", cfg.Port, err)
	}

	return &Server{
		listener: l,
		server:   &http.Server{Handler: newHandler(cfg, prometheus.DefaultGatherer), ReadHeaderTimeout: 10 * time.Second},
	}, nil
}

// Addr is where the server listens.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Serve answers until ctx ends, then for at most half a second more; requests
// that last longer are cut off.
func (s *Server) Serve(ctx context.Context) error {
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)

		bounded, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
		defer cancel()
		if s.server.Shutdown(bounded) != nil {
			s.server.Close()
		}
	})

	err := s.server.Serve(s.listener)
	if !stop() {
		<-stopped
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}

	return fmt.Errorf("monitor server: %w", err)
}

// newHandler is the server's own mux: the default one carries whatever any
// library put there. others are shown beside our metrics.
func newHandler(cfg ServerConfig, others prometheus.Gatherer) http.Handler {
	mux := http.NewServeMux()
	// A metric that two sources define differently is left out and logged; the
	// rest of the page must not go with it.
	mux.Handle("GET /metrics", promhttp.HandlerFor(
		prometheus.Gatherers{cfg.Metrics.Gatherer(), others},
		promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError, ErrorLog: gatherLog{cfg.Log}},
	))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if cfg.Ready != nil {
			if err := cfg.Ready(); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
		}
		fmt.Fprintln(w, "ok")
	})

	return mux
}

// gatherLog lets promhttp report what is wrong with a metric. A reader who went
// away is none of that, and brings one report for each metric.
type gatherLog struct{ log *logrus.Entry }

func (l gatherLog) Println(v ...any) {
	switch {
	case l.log == nil:
	case strings.HasPrefix(fmt.Sprint(v...), "error encoding and sending"):
		l.log.Debugln(v...)
	default:
		l.log.Warnln(v...)
	}
}
