package simfleet

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/choria-io/go-choria/providers/agent/mcorpc"
)

// The actions that faults are about.
const (
	actionJWT           = provisionAgent + "#jwt"
	actionGen25519      = provisionAgent + "#gen25519"
	actionGenCSR        = provisionAgent + "#gencsr"
	actionReleaseUpdate = provisionAgent + "#release_update"
	actionConfigure     = provisionAgent + "#configure"
	actionRestart       = provisionAgent + "#restart"
	actionInventory     = rpcutilAgent + "#inventory"
)

// Fault is one way in which a node, or somebody beside it, misbehaves.
type Fault struct {
	// Name is what it is chosen by.
	Name string

	// About says in a few words what is wrong.
	About string

	// Feature of the provisioner under which it shows: pki, jwt, ed25519 or
	// upgrades. Empty when it always does.
	Feature string

	// Apply makes the node misbehave. May be nil.
	Apply func(b *Broker, o *NodeOptions) error

	// Beside starts what else there is of the fault once the node waits: a twin,
	// an impostor, a flood. May be nil.
	Beside func(ctx context.Context, f *Fleet, n *Node) error
}

// Faults are all faults there are.
func Faults() []Fault {
	return slices.Concat(
		csrFaults(),
		keyFaults(),
		jwtFaults(),
		inventoryFaults(),
		replyFaults(),
		timeFaults(),
		identityFaults(),
		companyFaults(),
		floodFaults(),
		updateFaults(),
	)
}

// FaultNamed finds a fault. Its error lists all there are.
func FaultNamed(name string) (Fault, error) {
	var names []string
	for _, fault := range Faults() {
		if fault.Name == name {
			return fault, nil
		}
		names = append(names, fault.Name)
	}

	return Fault{}, fmt.Errorf("there is no fault %q, there are %s", name, strings.Join(names, ", "))
}

// AddFaulty starts one more node, with a fault, and what belongs to the fault.
// The fault may give it another identity.
func (f *Fleet) AddFaulty(ctx context.Context, identity string, fault Fault) (*Node, error) {
	var failed error
	n, err := f.Add(ctx, identity, func(o *NodeOptions) {
		if fault.Apply != nil {
			failed = fault.Apply(f.broker, o)
		}
	})
	if failed != nil {
		err = failed
	}
	if err == nil && fault.Beside != nil {
		err = fault.Beside(ctx, f, n)
	}
	if err != nil {
		return nil, fmt.Errorf("fault %s: %w", fault.Name, err)
	}

	return n, nil
}

// always is an Apply that changes what comes of every call of an action.
func always(action string, override Override) func(*Broker, *NodeOptions) error {
	return onCall(action, func(*Node, Call) (Override, error) { return override, nil })
}

// onCall is an Apply that changes what comes of each call of an action. An
// error is what the node answers.
func onCall(action string, override func(n *Node, c Call) (Override, error)) func(*Broker, *NodeOptions) error {
	return func(_ *Broker, o *NodeOptions) error {
		o.Intercept = func(n *Node, c Call) Override {
			if c.Action != action {
				return Override{}
			}
			changed, err := override(n, c)
			if err != nil {
				return Override{Status: mcorpc.Aborted, Message: "the simulated fault failed: " + err.Error()}
			}

			return changed
		}

		return nil
	}
}
