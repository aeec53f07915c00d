package simfleet

import (
	"context"
	"time"
)

// companyFaults are those of two that answer under one name.
func companyFaults() []Fault {
	// delayed is an Apply that lets the other one answer first
	delayed := func(d time.Duration) func(*Broker, *NodeOptions) error {
		return func(_ *Broker, o *NodeOptions) error {
			o.Intercept = func(*Node, Call) Override { return Override{Delay: d} }

			return nil
		}
	}
	// joined starts another node of the same name that answers no discovery
	joined := func(change func(o *NodeOptions)) func(context.Context, *Fleet, *Node) error {
		return func(ctx context.Context, f *Fleet, n *Node) error {
			_, err := f.Add(ctx, n.Identity(), func(o *NodeOptions) {
				o.Quiet, o.Hidden = true, true
				if change != nil {
					change(o)
				}
			})

			return err
		}
	}

	return []Fault{
		{Name: "twin", About: "two machines of one name", Beside: func(ctx context.Context, f *Fleet, n *Node) error {
			_, err := f.Add(ctx, n.Identity(), nil)

			return err
		}},
		{Name: "impostor-before", About: "a waiting node that answers in the name of another, before that one", Apply: delayed(200 * time.Millisecond), Beside: joined(nil)},
		{Name: "impostor-after", About: "a waiting node that answers in the name of another, after that one", Beside: joined(func(o *NodeOptions) {
			_ = delayed(200*time.Millisecond)(nil, o)
		})},
		{Name: "impostor-configure", About: "a waiting node that answers in the name of another when that is configured", Beside: joined(func(o *NodeOptions) {
			o.Intercept = func(_ *Node, c Call) Override { return Override{Ignore: c.Action != actionConfigure} }
		})},
	}
}
