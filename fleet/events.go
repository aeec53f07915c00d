package fleet

import (
	"context"
	"fmt"

	"github.com/choria-io/go-choria/lifecycle"
	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"

	"github.com/choria-provisioner/provisioner/host"
)

// eventBytes limits the events that wait to be read; one has about 500 bytes.
const eventBytes = 64 << 20

// Listen calls announced for each node whose startup event is published for
// component, over whichever connection the network has, until ctx ends. Events
// can be forged by any waiting node: they start a look, nothing more. What is
// no such event is ignored.
func Listen(ctx context.Context, network *host.Network, component string, announced func(identity string), log *logrus.Entry) {
	for {
		session, err := network.Session(ctx)
		if err != nil {
			return
		}
		if err := subscribe(session, component, announced, log); err != nil {
			log.Errorf("Could not listen for nodes that start, discovery still finds them: %v", err)
		}

		select {
		case <-ctx.Done():
			return
		case <-session.Context().Done():
		}
	}
}

func subscribe(session *host.Session, component string, announced func(string), log *logrus.Entry) error {
	subject := fmt.Sprintf("choria.lifecycle.event.startup.%s", component)
	sub, err := session.Connector.Nats().Subscribe(subject, func(m *nats.Msg) {
		identity, err := startupIdentity(m.Data, component)
		if err != nil {
			log.Debugf("Ignored a message on %s: %v", subject, err)
			return
		}
		announced(identity)
	})
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
