package fleet

import (
	"context"
	"fmt"
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

// Listen calls announced for each node whose startup event is published for
// component, over whichever connection the network has, until ctx ends. Events
// can be forged by any waiting node: they start a look, nothing more. What is
// no such event is ignored.
func Listen(ctx context.Context, network *host.Network, component string, announced func(identity string), log *logrus.Entry) {
	limit := rate.NewLimiter(eventRate, eventBurst)
	overrun := &rate.Sometimes{Interval: time.Minute}
	announce := func(m *nats.Msg) {
		if !limit.Allow() {
			overrun.Do(func() {
				log.Warnf("More than %d nodes a second announce that they start; discovery finds those whose events are passed over", eventRate)
			})
			return
		}
		identity, err := startupIdentity(m.Data, component)
		if err != nil {
			log.Debugf("Ignored a message on %s: %v", m.Subject, err)
			return
		}
		announced(identity)
	}

	for {
		session, err := network.Session(ctx)
		if err != nil {
			return
		}
		if err := subscribe(session, component, announce); err != nil {
			log.Errorf("Could not listen for nodes that start, discovery still finds them: %v", err)
		}

		select {
		case <-ctx.Done():
			return
		case <-session.Context().Done():
		}
	}
}

func subscribe(session *host.Session, component string, announce nats.MsgHandler) error {
	sub, err := session.Connector.Nats().Subscribe("choria.lifecycle.event.startup."+component, announce)
	if err != nil {
		return err
	}

	return sub.SetPendingLimits(-1, eventBytes)
}

// startupIdentity reads a startup event of component, as CloudEvent or in the
// older format, and returns whose it is.
func startupIdentity(data []byte, component string) (identity string, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("unreadable event: %v", p)
		}
	}()

	event, err := lifecycle.NewFromJSON(data)
	switch {
	case err != nil:
		return "", err
	case event.Type() != lifecycle.Startup:
		return "", fmt.Errorf("an event of type %q", event.TypeString())
	case event.Component() != component:
		return "", fmt.Errorf("an event of component %q", event.Component())
	case event.Identity() == "":
		return "", fmt.Errorf("an event without an identity")
	}

	return event.Identity(), nil
}
