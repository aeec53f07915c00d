package host

import (
	"context"
	"fmt"
	"sync"

	"github.com/choria-io/go-choria/client/choria_provisionclient"
	"github.com/choria-io/go-choria/client/rpcutilclient"
	"github.com/choria-io/go-choria/inter"
)

// Actions of the agents on a node, as agent#action. They are the rpc label of
// the metrics.
const (
	ActionJWT       = "choria_provision#jwt"
	ActionGen25519  = "choria_provision#gen25519"
	ActionGenCSR    = "choria_provision#gencsr"
	ActionConfigure = "choria_provision#configure"
	ActionRestart   = "choria_provision#restart"
	ActionShutdown  = "choria_provision#shutdown"
	ActionUpdate    = "choria_provision#release_update"
	ActionInventory = "rpcutil#inventory"
)

// Request is one RPC request: the action and its arguments, of which an action
// uses those that it knows.
type Request struct {
	Action string
	// Token is the provision token.
	Token string
	// Nonce is what the node signs in gen25519.
	Nonce string
	// Splay is the upper bound of the restart's delay, in seconds.
	Splay int
	// Repository is where release_update finds Version.
	Repository string
	Version    string
	// Configure are the arguments of configure.
	Configure *ConfigureRequest
}

// ConfigureRequest is what configure writes on a node
// (go-choria, provision agent, ConfigureRequest).
type ConfigureRequest struct {
	// Configuration is a JSON object of strings.
	Configuration  string
	Certificate    string
	CA             string
	SSLDir         string
	Key            string
	ECDHPublic     string
	ServerJWT      string
	ActionPolicies map[string]string
	OPAPolicies    map[string]string
}

// Reply is one reply to a request.
type Reply struct {
	// Sender is who says to have sent it.
	Sender string
	// Code is the mcorpc status code; 0 is OK.
	Code    int
	Message string
	// Data is a JSON object.
	Data []byte
}

// Caller sends RPC requests to nodes.
type Caller interface {
	// Call sends one request to one node and returns the replies that were seen
	// by the time the first one had come or 22 s had passed. No reply is no
	// error; an error means that the request may never have left.
	Call(ctx context.Context, identity string, req Request) ([]Reply, error)
}

// clients are the generated go-choria clients, which connect as fw does. Each new
// one parses its agent's schema: they are used again. No Logger option is given
// to them, it would set the logger of the whole framework.
type clients struct {
	fw        inter.Framework
	provision sync.Pool
	rpcutil   sync.Pool
}

// client takes a client from pool or makes one.
func client[C any](pool *sync.Pool, make func() (C, error)) (C, error) {
	if c, ok := pool.Get().(C); ok {
		return c, nil
	}

	return make()
}

// send hands req to the client of its action.
func (c *clients) send(ctx context.Context, identity string, req Request) ([]Reply, error) {
	if req.Action == ActionInventory {
		client, err := client(&c.rpcutil, func() (*rpcutilclient.RpcutilClient, error) {
			return rpcutilclient.New(c.fw)
		})
		if err != nil {
			return nil, err
		}
		defer c.rpcutil.Put(client)
		res, err := client.OptionWorkers(1).OptionTargets([]string{identity}).Inventory().Do(ctx)
		if err != nil {
			return nil, err
		}
		return replies(res.AllOutputs(), func(o *rpcutilclient.InventoryOutput) (string, int, string) {
			d := o.ResultDetails()
			return d.Sender(), int(d.StatusCode()), d.StatusMessage()
		})
	}

	client, err := client(&c.provision, func() (*choria_provisionclient.ChoriaProvisionClient, error) {
		return choria_provisionclient.New(c.fw)
	})
	if err != nil {
		return nil, err
	}
	defer c.provision.Put(client)
	client.OptionWorkers(1).OptionTargets([]string{identity})

	switch req.Action {
	case ActionJWT:
		res, err := client.Jwt(req.Token).Do(ctx)
		if err != nil {
			return nil, err
		}
		return provisionReplies(res.AllOutputs())
	case ActionGen25519:
		res, err := client.Gen25519(req.Nonce, req.Token).Do(ctx)
		if err != nil {
			return nil, err
		}
		return provisionReplies(res.AllOutputs())
	case ActionGenCSR:
		res, err := client.Gencsr(req.Token).Cn(identity).Do(ctx)
		if err != nil {
			return nil, err
		}
		return provisionReplies(res.AllOutputs())
	case ActionConfigure:
		r := req.Configure
		res, err := client.Configure(r.Configuration).Token(req.Token).
			Certificate(r.Certificate).Ca(r.CA).Ssldir(r.SSLDir).
			Key(r.Key).EcdhPublic(r.ECDHPublic).ServerJwt(r.ServerJWT).
			ActionPolicies(toAny(r.ActionPolicies)).OpaPolicies(toAny(r.OPAPolicies)).
			Do(ctx)
		if err != nil {
			return nil, err
		}
		return provisionReplies(res.AllOutputs())
	case ActionRestart:
		res, err := client.Restart(req.Token).Splay(float64(req.Splay)).Do(ctx)
		if err != nil {
			return nil, err
		}
		return provisionReplies(res.AllOutputs())
	case ActionUpdate:
		res, err := client.ReleaseUpdate(req.Repository, req.Token, req.Version).Do(ctx)
		if err != nil {
			return nil, err
		}
		return provisionReplies(res.AllOutputs())
	case ActionShutdown:
		res, err := client.Shutdown(req.Token).Do(ctx)
		if err != nil {
			return nil, err
		}
		return provisionReplies(res.AllOutputs())
	default:
		return nil, fmt.Errorf("unknown action %q", req.Action)
	}
}

// output is a reply as the generated clients hand it out. Their accessors
// panic on a value of another type than the schema's: only the raw JSON is safe.
type output interface {
	JSON() ([]byte, error)
}

func replies[O output](outputs []O, details func(O) (sender string, code int, message string)) ([]Reply, error) {
	var all []Reply
	for _, o := range outputs {
		data, err := o.JSON()
		if err != nil {
			return nil, fmt.Errorf("could not read a reply: %w", err)
		}
		r := Reply{Data: data}
		r.Sender, r.Code, r.Message = details(o)
		all = append(all, r)
	}

	return all, nil
}

func provisionReplies[O interface {
	output
	ResultDetails() *choria_provisionclient.ResultDetails
}](outputs []O) ([]Reply, error) {
	return replies(outputs, func(o O) (string, int, string) {
		d := o.ResultDetails()
		return d.Sender(), int(d.StatusCode()), d.StatusMessage()
	})
}

func toAny(m map[string]string) map[string]any {
	if len(m) == 0 {
		return nil
	}
	out := make(map[string]any, len(m))
	for k, v := range m {
		out[k] = v
	}

	return out
}
