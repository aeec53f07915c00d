//go:build unix

package socket

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/choria-provisioner/provisioner/version/ledger"
	"github.com/choria-provisioner/provisioner/version/ledger/book"
)

// longestBody is more than any order needs, in bytes: a record has at most
// ledger.EvidenceLimit short entries.
const longestBody = 1 << 20

// farewell is how long requests have to end once the server has to.
const farewell = time.Second

// Server serves a book.
type Server struct {
	book     book.Book
	log      *logrus.Entry
	place    *place
	listener net.Listener
	// close is leave, once.
	close func() error
}

// Listen makes the socket in a state directory, which has to be there. It
// replaces one that a dead process left; ErrInUse while a process serves it.
func Listen(ctx context.Context, dir string, b book.Book, log *logrus.Entry) (*Server, error) {
	path := Path(dir)
	p, err := take(path)
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	l, err := p.listen(ctx)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("socket %s: %w", path, err), p.lock.Close())
	}

	s := &Server{book: b, log: log, place: p, listener: l}
	s.close = sync.OnceValue(s.leave)

	return s, nil
}

// Serve answers until ctx ends, and removes the socket.
func (s *Server) Serve(ctx context.Context) error {
	srv := &http.Server{
		Handler:           s.handler(),
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       time.Minute,
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(s.listener) }()

	var err error
	select {
	case err = <-ended:
	case <-ctx.Done():
		bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
		defer cancel()
		if srv.Shutdown(bye) != nil {
			// Somebody reads a list slowly.
			_ = srv.Close()
		}
	}
	if err != nil {
		err = fmt.Errorf("socket %s: %w", s.place.path, err)
	}

	return errors.Join(err, s.Close())
}

// Close removes the socket of a server that does not serve, or not any more.
func (s *Server) Close() error { return s.close() }

func (s *Server) leave() error {
	// Serve may have closed it.
	_ = s.listener.Close()
	if err := s.place.leave(); err != nil {
		return fmt.Errorf("socket %s: %w", s.place.path, err)
	}

	return nil
}

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/standing", func(w http.ResponseWriter, r *http.Request) {
		standing, err := s.book.Standing(r.Context())
		answer(w, standing, err)
	})
	mux.HandleFunc("GET /v1/record", func(w http.ResponseWriter, r *http.Request) {
		rec, err := s.book.Get(r.Context(), r.URL.Query().Get("identity"))
		answer(w, rec, err)
	})
	mux.HandleFunc("GET /v1/set-aside", func(w http.ResponseWriter, r *http.Request) {
		aside, err := s.book.SetAside(r.Context())
		answer(w, aside, err)
	})
	mux.HandleFunc("POST /v1/list", s.list)
	mux.HandleFunc("POST /v1/order", s.order)
	mux.HandleFunc("POST /v1/forget", s.forget)

	return mux
}

// list streams records as they are read.
func (s *Server) list(w http.ResponseWriter, r *http.Request) {
	var q book.Query
	if !read(w, r, &q) {
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	out := json.NewEncoder(w)
	for rec, err := range s.book.List(r.Context(), q) {
		line := item{Record: &rec}
		if err != nil {
			line = item{Identity: rec.Identity, Error: newFailure(err)}
		}
		if out.Encode(line) != nil {
			// Nobody reads it any more.
			return
		}
		if err != nil && !errors.Is(err, ledger.ErrCorrupt) {
			return
		}
	}
	_ = out.Encode(item{End: true})
}

func (s *Server) order(w http.ResponseWriter, r *http.Request) {
	var o order
	if !read(w, r, &o) {
		return
	}
	rec, err := s.book.Apply(r.Context(), o.decode())
	s.say(string(o.Kind), o.Identity, o.Version, o.Why, err)
	answer(w, rec, err)
}

func (s *Server) forget(w http.ResponseWriter, r *http.Request) {
	var f forgetting
	if !read(w, r, &f) {
		return
	}
	err := s.book.Forget(r.Context(), f.Identity, f.Force)
	s.say("forget", f.Identity, "", "", err)
	answer(w, struct{}{}, err)
}

// say logs what a person did.
func (s *Server) say(what, identity, version, why string, err error) {
	log := s.log.WithField("identity", identity)
	if err != nil {
		log.Warnf("Refused %s %s of an operator: %v", what, version, err)
		return
	}
	log.Warnf("An operator's %s %s (%s)", what, version, why)
}

// read reads a body, or answers that it cannot be.
func read(w http.ResponseWriter, r *http.Request, into any) bool {
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, longestBody))
	// Half an order is worse than none: a newer client is told.
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		answer(w, nil, fmt.Errorf("the request cannot be read: %w", err))
		return false
	}

	return true
}

func answer(w http.ResponseWriter, v any, err error) {
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		w.WriteHeader(http.StatusUnprocessableEntity)
		v = newFailure(err)
	}
	// An error is that of a client that has gone.
	_ = json.NewEncoder(w).Encode(v)
}
