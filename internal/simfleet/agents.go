package simfleet

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/choria-io/go-choria/providers/agent/mcorpc"
	"github.com/choria-io/go-choria/providers/agent/mcorpc/golang/provision"
	"github.com/choria-io/go-choria/providers/agent/mcorpc/golang/rpcutil"
)

const (
	provisionAgent = "choria_provision"
	rpcutilAgent   = "rpcutil"
)

// agents are those of a real node in provisioning mode.
var agents = []string{provisionAgent, "choria_util", "discovery", rpcutilAgent}

// action is what a node does on a call. It changes the reply, and may return
// what is to happen once that was sent.
type action struct {
	run func(n *Node, c *Call, reply *mcorpc.Reply) (after func())
	// locked actions need the node's provisioning lock.
	locked bool
}

var actions = map[string]action{
	provisionAgent + "#configure":      {(*Node).configure, true},
	provisionAgent + "#gen25519":       {(*Node).generateEd25519, true},
	provisionAgent + "#gencsr":         {(*Node).generateCSR, true},
	provisionAgent + "#jwt":            {(*Node).provisioningJWT, true},
	provisionAgent + "#release_update": {(*Node).releaseUpdate, true},
	provisionAgent + "#restart":        {(*Node).restart, false},
	provisionAgent + "#shutdown":       {(*Node).shutdown, false},
	rpcutilAgent + "#inventory":        {(*Node).inventory, false},
	rpcutilAgent + "#ping":             {(*Node).ping, false},
}

// agentTimeout is after how long a node gives up on its own agent: what it says
// later is not sent.
func agentTimeout(agent string) time.Duration {
	if agent == provisionAgent {
		return 20 * time.Second
	}

	return 2 * time.Second
}

// serve answers one RPC request.
func (n *Node) serve(req *request) {
	reply := &mcorpc.Reply{Statuscode: mcorpc.OK, Statusmsg: "OK", Data: json.RawMessage(`{}`)}

	var rpc mcorpc.Request
	if err := json.Unmarshal(req.payload, &rpc); err != nil {
		reply.Statuscode = mcorpc.InvalidData
		reply.Statusmsg = fmt.Sprintf("Could not process request: could not parse incoming message as a MCollective SimpleRPC Request: %s", err)
		n.answer(req, reply, Override{})

		return
	}
	reply.Action = rpc.Action
	if rpc.Data == nil {
		rpc.Data = json.RawMessage(`{}`)
	}

	call, process := n.record(Call{
		Action:    req.Agent() + "#" + rpc.Action,
		At:        time.Now(),
		Data:      rpc.Data,
		RequestID: req.RequestID(),
		Sender:    req.SenderID(),
		Caller:    req.CallerID(),
	})

	var override Override
	if n.opts.Intercept != nil {
		override = n.opts.Intercept(n, call)
	}
	if override.Ignore {
		return
	}

	after, ok := n.perform(&call, reply, override, process)
	if reply.Statuscode != mcorpc.OK {
		n.fleet.count(func(counts *Counts) { counts.Errors[call.Action]++ })
	}
	if ok && !override.Lose && time.Since(call.At) < agentTimeout(req.Agent()) {
		n.answer(req, reply, override)
	}
	if override.Die {
		n.vanish(n.State())
	}
	if after != nil {
		n.fleet.background(after)
	}
}

// record keeps a call, counts which of its kind it is, and says which process it
// reached.
func (n *Node) record(c Call) (Call, int) {
	n.mu.Lock()
	process := n.process
	c.Attempt = 1
	for _, earlier := range n.calls {
		if earlier.Action == c.Action {
			c.Attempt++
		}
	}
	n.calls = append(n.calls, c)
	n.mu.Unlock()

	n.fleet.count(func(counts *Counts) { counts.Calls[c.Action]++ })

	return c, process
}

// perform acts on a call. It returns false when the process that it reached had
// ended before it came to act.
func (n *Node) perform(c *Call, reply *mcorpc.Reply, override Override, process int) (after func(), ok bool) {
	act, known := actions[c.Action]

	if override.Locked || act.locked && !n.lockFor(c.Sender, c.Caller) {
		abort(reply, "%s", provision.LockedError)

		return nil, true
	}

	if strings.HasPrefix(c.Action, provisionAgent+"#") {
		n.agent.Lock()
		defer n.agent.Unlock()
	}
	if !n.sleep(override.Delay) || !n.runs(process) {
		return nil, false
	}

	switch {
	case override.Status != mcorpc.OK:
		reply.Statuscode, reply.Statusmsg = override.Status, override.Message
	case !known:
		reply.Statuscode = mcorpc.UnknownAction
		reply.Statusmsg = fmt.Sprintf("Unknown action %s", c.Action)
	default:
		after = act.run(n, c, reply)
	}
	if override.Data != nil {
		reply.Data = override.Data
	}

	return after, true
}

// runs says whether the node is still that process.
func (n *Node) runs(process int) bool {
	n.mu.Lock()
	defer n.mu.Unlock()

	return !n.gone && n.process == process
}

// lockFor takes or extends the node's provisioning lock.
func (n *Node) lockFor(sender, caller string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()

	who := sender + "." + caller
	if time.Now().Before(n.lockedUntil) && n.lockedBy != who {
		return false
	}
	n.lockedBy, n.lockedUntil = who, time.Now().Add(lockWindow)

	return true
}

// answer sends a reply as often as it should be.
func (n *Node) answer(req *request, reply *mcorpc.Reply, override Override) {
	body, sender := override.Body, override.Sender
	if body == nil {
		var err error
		if body, err = json.Marshal(reply); err != nil {
			n.warn(err, "cannot encode its answer")

			return
		}
	}
	if sender == "" {
		sender = n.Identity()
	}

	for range 1 + override.Extra {
		if override.Raw == nil {
			n.publish(req, sender, body)

			continue
		}
		n.warn(n.conn.nc.Publish(req.replyTo, override.Raw), "cannot answer")
	}
}

func abort(reply *mcorpc.Reply, format string, args ...any) {
	reply.Statuscode = mcorpc.Aborted
	reply.Statusmsg = fmt.Sprintf(format, args...)
}

func (n *Node) inventory(_ *Call, reply *mcorpc.Reply) func() {
	reply.Data = rpcutil.InventoryReply{
		Agents:         agents,
		Classes:        append([]string{}, n.opts.Classes...),
		Collectives:    []string{collective},
		DataPlugins:    []string{},
		Facts:          n.facts,
		Machines:       []rpcutil.MachineState{},
		MainCollective: collective,
		Version:        n.Version(),
		Upgradable:     !n.opts.NotUpgradable,
	}

	return nil
}

func (n *Node) ping(_ *Call, reply *mcorpc.Reply) func() {
	reply.Data = rpcutil.PingReply{Pong: time.Now().Unix()}

	return nil
}
