package fleet

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"time"

	"github.com/choria-io/go-choria/lifecycle"
	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"
	"golang.org/x/time/rate"

	"github.com/choria-provisioner/provisioner/host"
)

const (
	// eventBytes limits the events that wait to be read; one has about 500 bytes.
	eventBytes = 64 << 20
	// eventBurst is how many events are read in one go, and eventRate how many
	// more a second: 5,000 nodes may start at once, and whoever publishes more
	// should not take our processor. Discovery finds those that are passed over.
	eventBurst = 10_000
	eventRate  = 1_000
)

// Event is what a lifecycle event says of a node.
type Event struct {
	Type     lifecycle.Type
	Identity string
	// Version is the one that the node runs, or was upgraded to; it may be empty.
	Version string
	// Digest is the SHA-256 of the message; a Listener sets it.
	Digest [sha256.Size]byte
}

// Listener hears the lifecycle events of nodes.
type Listener struct {
	Network *host.Network
	// Component is that of the events, Types are those that are heard.
	Component string
	Types     []lifecycle.Type
	// Limit bounds what is read; what is more is passed over. It is nil where
	// only those that are trusted can publish.
	Limit *rate.Limiter
	// Handle is told of each event, in order.
	Handle func(Event)
	Log    *logrus.Entry
}

// EventLimit is that for events which any waiting node can publish.
func EventLimit() *rate.Limiter { return rate.NewLimiter(eventRate, eventBurst) }

// Run listens over whichever connection the network has, until ctx ends. What is
// no such event is ignored.
func (l *Listener) Run(ctx context.Context) {
	overrun := &rate.Sometimes{Interval: time.Minute}
	receive := func(m *nats.Msg) {
		if l.Limit != nil && !l.Limit.Allow() {
			overrun.Do(func() {
				l.Log.Warnf("More than %d lifecycle events a second; discovery finds the nodes whose events are passed over", eventRate)
			})
			return
		}
		event, err := readEvent(m.Data, l.Component, l.Types...)
		if err != nil {
			l.Log.Debugf("Ignored a message on %s: %v", m.Subject, err)
			return
		}
		event.Digest = sha256.Sum256(m.Data)
		l.Handle(event)
	}

	for {
		session, err := l.Network.Session(ctx)
		if err != nil {
			return
		}
		if _, err := l.subscribe(session, receive); err != nil {
			l.Log.Errorf("Could not listen to lifecycle events of %s: %v", l.Component, err)
		}

		select {
		case <-ctx.Done():
			return
		case <-session.Context().Done():
		}
	}
}

func (l *Listener) subscribe(session *host.Session, receive nats.MsgHandler) (subs []*nats.Subscription, err error) {
	for _, t := range l.Types {
		sub, err := session.Connector.Nats().Subscribe(fmt.Sprintf("choria.lifecycle.event.%s.%s", typeName(t), l.Component), receive)
		if err != nil {
			return nil, err
		}
		if err := sub.SetPendingLimits(-1, eventBytes); err != nil {
			return nil, err
		}
		subs = append(subs, sub)
	}

	return subs, nil
}

// typeName is a type as it stands in a subject.
func typeName(t lifecycle.Type) string {
	switch t {
	case lifecycle.Startup:
		return "startup"
	case lifecycle.Alive:
		return "alive"
	case lifecycle.Upgraded:
		return "upgraded"
	default:
		return "*"
	}
}

// readEvent reads an event of component and of one of types, as CloudEvent or in
// the older format.
func readEvent(data []byte, component string, types ...lifecycle.Type) (event Event, err error) {
	defer func() {
		if p := recover(); p != nil {
			event, err = Event{}, fmt.Errorf("unreadable event: %v", p)
		}
	}()

	e, err := lifecycle.NewFromJSON(data)
	switch {
	case err != nil:
		return Event{}, err
	case !slices.Contains(types, e.Type()):
		return Event{}, fmt.Errorf("an event of type %q", e.TypeString())
	case e.Component() != component:
		return Event{}, fmt.Errorf("an event of component %q", e.Component())
	case e.Identity() == "":
		return Event{}, fmt.Errorf("an event without an identity")
	}

	event = Event{Type: e.Type(), Identity: e.Identity()}
	switch e := e.(type) {
	case *lifecycle.StartupEvent:
		event.Version = e.Version
	case *lifecycle.AliveEvent:
		event.Version = e.Version
	case *lifecycle.UpgradedEvent:
		event.Version = e.NewVersion
	}

	return event, nil
}
