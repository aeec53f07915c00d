package fleet

import (
	"context"
	"time"

	"github.com/choria-io/go-choria/inter"
	"github.com/choria-io/go-choria/protocol"
	"github.com/choria-io/go-choria/providers/discovery/broadcast"
)

// discoveryTimeout is how long a broadcast may take to bring answers.
const discoveryTimeout = 2 * time.Second

// Broadcast finds the nodes that have the choria_provision agent, by a broadcast
// over the connection of fw. A name that two nodes share is returned twice.
func Broadcast(fw inter.Framework) func(ctx context.Context) ([]string, error) {
	return func(ctx context.Context) ([]string, error) {
		// The sliding window leaves a goroutine behind until its context ends.
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()

		filter := protocol.NewFilter()
		filter.AddAgentFilter("choria_provision")

		return broadcast.New(fw).Discover(ctx, broadcast.Filter(filter), broadcast.Timeout(discoveryTimeout), broadcast.SlidingWindow(), broadcast.Name("discovery"))
	}
}
