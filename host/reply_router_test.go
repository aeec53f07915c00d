package host

import (
	"io"
	"strings"
	"testing"

	"github.com/choria-io/go-choria/inter"
	"github.com/nats-io/nats.go"
	"github.com/sirupsen/logrus"
)

// Whoever answers a call without end fills neither memory nor processor.
func TestRepliesToOneCallAreBounded(t *testing.T) {
	const subject = "provisioning.reply.a.b"
	log := logrus.New()
	log.SetOutput(io.Discard)
	told := make(chan string, 10*maxReplies)
	r := newReplyRouter(nil, func(identity, action string) { told <- identity }, log.WithField("component", "network"))
	e := &exchange{identity: testIdentity, action: ActionInventory}
	out := make(chan inter.ConnectorMessage, 100*maxReplies)
	r.routes[subject] = &route{exchange: e, outputs: map[string][]chan inter.ConnectorMessage{"": {out}}, open: 1}

	for range 10 * maxReplies {
		r.route(&nats.Msg{Subject: subject, Data: []byte(`{"protocol":"choria:transport:1"}`)})
	}
	if len(out) != maxReplies {
		t.Errorf("%d messages wait, want %d", len(out), maxReplies)
	}
	if identity := <-told; identity != testIdentity {
		t.Errorf("told of %q", identity)
	}
}

// go-choria logs a line for each answer to discovery that it cannot read, and
// there may be any number of these.
func TestForeignLinesAreBounded(t *testing.T) {
	written := &strings.Builder{}
	log := logrus.New()
	log.SetOutput(written)
	quiet := withoutDebug(log)
	for range 100 * foreignBurst {
		quiet.Errorf("Could not process a reply: %s", strings.Repeat("x", 2*maxShown))
	}
	if n := strings.Count(written.String(), "\n"); n < foreignBurst || n > 2*foreignBurst {
		t.Errorf("%d lines, want about %d", n, foreignBurst)
	}
}
