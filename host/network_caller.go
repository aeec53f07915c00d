package host

import "context"

// networkCaller is the Caller over the one connection of a network. It stands
// alone in this file: the benchmark builds the daemon with another one in its
// place.
type networkCaller struct {
	network *Network
	clients *clients
}

// NewCaller returns a Caller over the network's connection, for any number of
// nodes at once.
func NewCaller(network *Network) Caller {
	return &networkCaller{network: network, clients: &clients{fw: network.Framework()}}
}

func (c *networkCaller) Call(ctx context.Context, identity string, req Request) ([]Reply, error) {
	session := c.network.current()
	if session == nil {
		return nil, ErrDisconnected
	}

	e := &exchange{identity: identity, action: req.Action}
	ctx, cancel := context.WithCancelCause(withExchange(ctx, e))
	defer cancel(nil)
	stop := context.AfterFunc(session.Context(), func() { cancel(ErrDisconnected) })
	defer stop()

	replies, err := c.clients.send(ctx, identity, req)
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, err
	}

	if len(replies) == 0 && e.replies.Load() == 1 {
		return nil, refusal{ErrUnreadable}
	}
	// The generated client stops listening at the first reply of its target. Two
	// tell as much as any number.
	for range min(int(e.replies.Load())-len(replies), 2) {
		replies = append(replies, Reply{})
	}

	return replies, nil
}
