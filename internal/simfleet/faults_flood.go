package simfleet

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// The sizes of the floods among the faults.
const (
	inventedNames = 100_000
	startingNodes = 5_000
	replayedTimes = 1_000
)

// floodFaults are those of many messages.
func floodFaults() []Fault {
	return []Fault{
		{Name: "invented", About: "a waiting node that announces 100,000 names that do not exist", Beside: func(ctx context.Context, f *Fleet, _ *Node) error {
			return f.Invent(ctx, inventedNames)
		}},
		{Name: "events-5000", About: "5,000 more nodes that start in a second", Beside: func(ctx context.Context, f *Fleet, _ *Node) error {
			return f.AddMany(ctx, startingNodes)
		}},
		{Name: "replay", About: "a startup event that comes 1,000 times", Beside: func(ctx context.Context, f *Fleet, n *Node) error {
			names := make([]string, replayedTimes)
			for i := range names {
				names[i] = n.Identity()
			}

			return f.Announce(ctx, names...)
		}},
	}
}

// Invent announces so many nodes that do not exist.
func (f *Fleet) Invent(ctx context.Context, count int) error {
	names := make([]string, count)
	for i := range names {
		names[i] = fmt.Sprintf("invented-%06d.example.net", i)
	}

	return f.Announce(ctx, names...)
}

// AddMany starts so many more nodes and then announces them all at once.
func (f *Fleet) AddMany(ctx context.Context, count int) error {
	nodes := make([]*Node, count)
	for i := range nodes {
		o := f.common
		o.Identity = fmt.Sprintf("starting-%05d.example.net", i)

		var err error
		if nodes[i], err = f.join(o); err != nil {
			return err
		}
	}

	return f.announce(ctx, nodes...)
}

// Announce publishes startup events under any names, as whoever waits can do,
// and returns when the broker has them.
func (f *Fleet) Announce(ctx context.Context, identities ...string) error {
	return f.forge(ctx, "startup", waitingComponent, map[string]any{"version": DefaultVersion}, identities)
}

// forge publishes lifecycle events under any names, which go-choria's would
// refuse to make.
func (f *Fleet) forge(ctx context.Context, kind, component string, event map[string]any, identities []string) error {
	event["protocol"] = "io.choria.lifecycle.v1." + kind
	event["id"] = uuid.NewString()
	event["component"] = component
	event["timestamp"] = time.Now().Unix()

	for _, identity := range identities {
		event["identity"] = identity
		body, err := json.Marshal(event)
		if err != nil {
			return err
		}
		if err = f.conns[0].nc.Publish("choria.lifecycle.event."+kind+"."+component, body); err != nil {
			return err
		}
	}

	return f.flush(ctx)
}
