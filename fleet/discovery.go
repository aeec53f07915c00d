package fleet

import (
	"context"
	"time"

	"github.com/choria-io/go-choria/protocol"
	"github.com/choria-io/go-choria/providers/discovery/broadcast"

	"github.com/choria-provisioner/provisioner/host"
)

// discoveryTimeout is how long a broadcast may take to bring answers.
const discoveryTimeout = 2 * time.Second

// Broadcast finds the nodes that have the choria_provision agent, by a broadcast
// over the network's connection, for which it waits. A name that two nodes share
// is returned twice.
func Broadcast(network *host.Network) func(ctx context.Context) ([]string, error) {
	return func(ctx context.Context) ([]string, error) {
		session, err := network.Session(ctx)
		if err != nil {
			return nil, err
		}
		// The sliding window leaves a goroutine behind until its context ends.
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		stop := context.AfterFunc(session.Context(), func() { cancel(host.ErrDisconnected) })
		defer stop()

		filter := protocol.NewFilter()
		filter.AddAgentFilter("choria_provision")

		nodes, err := broadcast.New(network.Framework()).Discover(ctx, broadcast.Filter(filter), broadcast.Timeout(discoveryTimeout), broadcast.SlidingWindow(), broadcast.Name("discovery"))
		if cause := context.Cause(ctx); cause != nil {
			return nil, cause
		}

		return nodes, err
	}
}
