package host

import (
	"context"

	"github.com/choria-io/go-choria/inter"
)

// freshCaller is the Caller of the older provisioner: the generated clients as
// they are, which open two connections for every call.
type freshCaller struct {
	fw inter.Framework
}

// NewCaller returns a Caller that connects as network would, but for every call.
func NewCaller(network *Network) Caller { return &freshCaller{fw: network.fw} }

func (c *freshCaller) Call(ctx context.Context, identity string, req Request) ([]Reply, error) {
	return (&clients{fw: c.fw}).send(ctx, identity, req)
}
