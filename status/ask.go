package status

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// quiet is how long after an answer another one is waited for, and patience
	// how long for the first and for all.
	quiet    = 300 * time.Millisecond
	patience = 2 * time.Second
	// mostInstances bounds what is taken from those who answer in other names.
	mostInstances = 1000
)

// Ask returns what all instances answer within about two seconds, ordered by
// identity and instance. No answer at all is no error. A connection that drops
// meanwhile is one.
func Ask(ctx context.Context, nc *nats.Conn) ([]Status, error) {
	inbox := nc.NewInbox()
	answers, err := nc.SubscribeSync(inbox)
	if err != nil {
		return nil, fmt.Errorf("asking for the status: %w", err)
	}
	defer func() { _ = answers.Unsubscribe() }()
	if err := nc.PublishRequest(subject, inbox, nil); err != nil {
		return nil, fmt.Errorf("asking for the status: %w", err)
	}

	all, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var list []Status
	for len(list) < mostInstances {
		next, stop := all, context.CancelFunc(func() {})
		if len(list) > 0 {
			next, stop = context.WithTimeout(all, quiet)
		}
		message, err := answers.NextMsgWithContext(next)
		stop()
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case errors.Is(err, context.DeadlineExceeded):
			sort(list)
			return list, nil
		case errors.Is(err, nats.ErrNoResponders):
			return nil, nil
		case err != nil:
			return nil, fmt.Errorf("asking for the status: %w", err)
		}
		if s, err := parse(message); err == nil && !slices.ContainsFunc(list, func(have Status) bool { return have.Instance == s.Instance }) {
			list = append(list, s)
		}
	}
	sort(list)

	return list, nil
}

// AskInstance asks one instance, through the broker.
func AskInstance(ctx context.Context, nc *nats.Conn, instance string) (Status, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	message, err := nc.RequestWithContext(ctx, instanceSubject(instance), nil)
	if err != nil {
		return Status{}, fmt.Errorf("asking instance %s: %w", instance, err)
	}

	return parse(message)
}

// parse reads an answer, of which no more is kept than an instance would say:
// without TLS any node can answer, and a thousand large ones fill the memory.
func parse(message *nats.Msg) (Status, error) {
	var s Status
	if n := len(message.Data); n > longestAnswer {
		return s, fmt.Errorf("answer to status: it has %d bytes", n)
	}
	if err := json.Unmarshal(message.Data, &s); err != nil {
		return s, fmt.Errorf("answer to status: %w", err)
	}
	if s.Instance == "" {
		return s, errors.New("answer to status: it names no instance")
	}

	return s.bounded(), nil
}

func sort(list []Status) {
	slices.SortFunc(list, func(a, b Status) int {
		return cmp.Or(cmp.Compare(a.Identity, b.Identity), cmp.Compare(a.Instance, b.Instance))
	})
}
