package host

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/choria-io/go-choria/choria"
	"github.com/choria-io/go-choria/inter"
	"github.com/choria-io/go-choria/protocol"
	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"
	"golang.org/x/time/rate"
)

const (
	// lateReplies is how long a subject is remembered after its call ended, to
	// see a second machine answer. A node answers within 20 s or never
	// (go-choria, provision agent, metadata Timeout).
	lateReplies = 30 * time.Second
	// junkPause lies between two warnings about what is no reply, or one too many.
	junkPause = 10 * time.Second
	// maxReplies is how many replies to one call are looked at: from the second on
	// it has failed, and its receiver holds any number of any size.
	maxReplies = 16
	// pendingBytes limits what may wait to be routed; discovery of 100,000
	// nodes brings about 80 MiB at once.
	pendingBytes = 256 << 20
)

// exchange is one call: it counts what comes back, also what arrives after the
// generated client has stopped listening at the first reply.
type exchange struct {
	identity string
	action   string
	replies  atomic.Int32
}

type exchangeKey struct{}

func withExchange(ctx context.Context, e *exchange) context.Context {
	return context.WithValue(ctx, exchangeKey{}, e)
}

func exchangeFrom(ctx context.Context) *exchange {
	e, _ := ctx.Value(exchangeKey{}).(*exchange)
	return e
}

// replyRouter hands the replies that arrive on one connection to the calls they
// belong to, by subject. One wildcard subscription serves all calls: a
// subscription a call would cost the broker two more messages each.
type replyRouter struct {
	nc    *nats.Conn
	extra func(identity, action string)
	log   *logrus.Entry

	// junk and full pace what is said of messages that anybody can send.
	junk rate.Sometimes
	full rate.Sometimes

	mu       sync.Mutex
	prefixes map[string]bool
	routes   map[string]*route
}

// route is where the messages of one subject go.
type route struct {
	exchange *exchange
	// outputs by queue group: each group gets one copy of a message.
	outputs map[string][]chan inter.ConnectorMessage
	open    int
}

func newReplyRouter(nc *nats.Conn, extra func(identity, action string), log *logrus.Entry) *replyRouter {
	return &replyRouter{
		nc: nc, extra: extra, log: log,
		junk: rate.Sometimes{Interval: junkPause}, full: rate.Sometimes{Interval: junkPause},
		prefixes: map[string]bool{}, routes: map[string]*route{},
	}
}

// add routes subject to output until ctx ends. Receivers of one subject in one
// named group share one copy, as a queue group does.
func (r *replyRouter) add(ctx context.Context, subject, group string, output chan inter.ConnectorMessage, e *exchange) error {
	end := strings.LastIndexByte(subject, '.')
	if end < 0 {
		return fmt.Errorf("subject %q is none for replies", subject)
	}

	prefix := subject[:end]

	r.mu.Lock()
	defer r.mu.Unlock()

	if !r.prefixes[prefix] {
		sub, err := r.nc.Subscribe(prefix+".>", r.route)
		if err != nil {
			return fmt.Errorf("could not subscribe to replies: %w", err)
		}
		if err := sub.SetPendingLimits(-1, pendingBytes); err != nil {
			return fmt.Errorf("could not subscribe to replies: %w", err)
		}
		r.prefixes[prefix] = true
	}

	to := r.routes[subject]
	if to == nil {
		to = &route{exchange: e, outputs: map[string][]chan inter.ConnectorMessage{}}
		r.routes[subject] = to
	}
	if group == "" || len(to.outputs[group]) == 0 {
		to.outputs[group] = append(to.outputs[group], output)
	}
	to.open++
	context.AfterFunc(ctx, func() { r.release(subject) })

	return nil
}

// release ends one receiver of subject; the last one takes the route along,
// for a call only after late replies can no longer come.
func (r *replyRouter) release(subject string) {
	r.mu.Lock()
	defer r.mu.Unlock()

	to := r.routes[subject]
	to.open--
	switch {
	case to.open > 0:
	case to.exchange == nil:
		delete(r.routes, subject)
	default:
		to.outputs = nil
		time.AfterFunc(lateReplies, func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			delete(r.routes, subject)
		})
	}
}

// route is called by the connection for every message, one after the other.
func (r *replyRouter) route(m *nats.Msg) {
	r.mu.Lock()
	defer r.mu.Unlock()

	to := r.routes[m.Subject]
	if to == nil || to.exchange != nil && to.exchange.replies.Load() >= maxReplies {
		return
	}
	if !isReply(m.Data) {
		// go-choria would log it whole.
		r.junk.Do(func() {
			r.log.Warnf("A reply on %s is none of the protocol and is ignored, as are others for %v; any waiting node can send them", m.Subject, junkPause)
		})
		return
	}

	if e := to.exchange; e != nil && e.replies.Add(1) > 1 {
		go r.extra(e.identity, e.action)
	}

	msg := choria.NewConnectorMessage(m.Subject, m.Reply, m.Data, m)
	for _, outputs := range to.outputs {
		for _, out := range outputs {
			select {
			case out <- msg:
			default:
				r.full.Do(func() {
					r.log.Warnf("Dropped a reply on %s, as are others for %v: its receiver is full", m.Subject, junkPause)
				})
			}
		}
	}
}

// isReply tells whether data looks like a message of the protocol: what does not
// must not make twins. Reading it whole would cost more than all else here.
func isReply(data []byte) bool {
	switch protocol.VersionFromJSON(data) {
	case protocol.TransportV1, protocol.TransportV2:
		return true
	default:
		return false
	}
}
