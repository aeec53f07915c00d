package suite

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/choria-io/go-choria/choria"
	"github.com/choria-io/go-choria/client/choria_provisionclient"
	"github.com/choria-io/go-choria/client/rpcutilclient"
	"github.com/choria-io/go-choria/lifecycle"
	"github.com/choria-io/go-choria/protocol"
	"github.com/choria-io/go-choria/providers/agent/mcorpc"
	rpcclient "github.com/choria-io/go-choria/providers/agent/mcorpc/client"
	"github.com/choria-io/go-choria/providers/discovery/broadcast"
	"github.com/choria-io/tokens"
	"github.com/nats-io/nats.go"

	"github.com/choria-provisioner/provisioner/internal/simfleet"
)

// TestFleet tests nodes, all on one network.
func TestFleet(t *testing.T, mode simfleet.Mode) {
	b := Broker(t, mode)

	t.Run("discovery", func(t *testing.T) { testDiscovery(t, b) })
	t.Run("events", func(t *testing.T) { testEvents(t, b) })
	t.Run("whole pass", func(t *testing.T) { testPass(t, b) })
	t.Run("refusals", func(t *testing.T) { testRefusals(t, b) })
	t.Run("private key", func(t *testing.T) { testPrivateKey(t, b) })
	t.Run("lock", func(t *testing.T) { testLock(t, b) })
	t.Run("overrides", func(t *testing.T) { testOverrides(t, b) })
	t.Run("splay", func(t *testing.T) { testSplay(t, b) })
	t.Run("updates", func(t *testing.T) { testUpdates(t, b) })
	t.Run("update and lock", func(t *testing.T) { testUpdateLock(t, b) })
	t.Run("faults of updates", func(t *testing.T) { testUpdateFaults(t, b) })
	t.Run("life in the fleet", func(t *testing.T) { testFleetLife(t, b) })
	t.Run("return", func(t *testing.T) { testReturn(t, b) })
	t.Run("twins", func(t *testing.T) { testTwins(t, b) })
	t.Run("broker restart", func(t *testing.T) { testFleetOverRestart(t, b) })
	t.Run("many", func(t *testing.T) { testMany(t, b) })
}

// start starts a fleet that ends with the test.
func start(t *testing.T, b *simfleet.Broker, opts simfleet.FleetOptions) *simfleet.Fleet {
	t.Helper()

	opts.Broker = b
	opts.Log = logger(t)
	f, err := simfleet.StartFleet(t.Context(), opts)
	if err != nil {
		t.Fatalf("start fleet: %v", err)
	}
	t.Cleanup(f.Close)

	return f
}

func provisioner(t *testing.T, b *simfleet.Broker) *Client {
	t.Helper()

	return Framework(t, b, "prov.example.net", b.Password())
}

// discover finds nodes as the provisioner does; filter may be nil. On a machine
// with much to do answers come late, so it is tried again until want nodes are
// found.
func discover(t *testing.T, fw *Client, want int, filter func(*protocol.Filter)) []string {
	t.Helper()

	f := protocol.NewFilter()
	f.AddAgentFilter("choria_provision")
	if filter != nil {
		filter(f)
	}

	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()

	for {
		nodes, err := broadcast.New(fw).Discover(ctx, broadcast.Filter(f), broadcast.Timeout(10*time.Second), broadcast.SlidingWindow())
		if err != nil {
			t.Fatalf("discover: %v", err)
		}
		if len(nodes) == want {
			slices.Sort(nodes)

			return nodes
		}
		if ctx.Err() != nil {
			t.Fatalf("found %d nodes, want %d: %q", len(nodes), want, nodes)
		}
	}
}

func testDiscovery(t *testing.T, b *simfleet.Broker) {
	f := start(t, b, simfleet.FleetOptions{
		Count: 50,
		Each: func(i int, o *simfleet.NodeOptions) {
			o.Facts = map[string]any{"rack": fmt.Sprint(i % 5)}
			o.Classes = []string{fmt.Sprintf("role::%d", i%2)}
		},
	})
	fw := provisioner(t, b)

	var all []string
	for _, n := range f.Nodes() {
		all = append(all, n.Identity())
	}
	slices.Sort(all)
	if found := discover(t, fw, len(all), nil); !slices.Equal(found, all) {
		t.Fatalf("found %q", found)
	}
	if c := f.Counts(); c.Pings%len(all) != 0 || len(c.Calls) != 0 {
		t.Errorf("counted %+v", c)
	}

	for _, c := range []struct {
		name   string
		filter func(*protocol.Filter)
		want   int
	}{
		{"an agent that a waiting node does not have", func(f *protocol.Filter) { f.AddAgentFilter("puppet") }, 0},
		{"a fact", func(f *protocol.Filter) { _ = f.AddFactFilter("rack", "==", "3") }, 10},
		{"a class", func(f *protocol.Filter) { f.AddClassFilter("role::1") }, 25},
		{"identities", func(f *protocol.Filter) { f.AddIdentityFilter("/node-0000[0-4]/") }, 5},
	} {
		t.Run(c.name, func(t *testing.T) { discover(t, fw, c.want, c.filter) })
	}
}

func testEvents(t *testing.T, b *simfleet.Broker) {
	conn := Connect(t, provisioner(t, b), "listener")
	messages := make(chan *nats.Msg, 100)
	if _, err := conn.Nats().ChanSubscribe("choria.lifecycle.event.startup.provision_mode_server", messages); err != nil {
		t.Fatal(err)
	}
	if err := conn.Nats().Flush(); err != nil {
		t.Fatal(err)
	}

	start(t, b, simfleet.FleetOptions{
		Count: 3,
		Node:  simfleet.NodeOptions{Version: "1.2.3"},
		Each: func(i int, o *simfleet.NodeOptions) {
			o.LegacyEvents = i == 1
			o.Quiet = i == 2
		},
	})

	formats := map[string]lifecycle.Format{}
	for range 2 {
		select {
		case m := <-messages:
			e, err := lifecycle.NewFromJSON(m.Data)
			if err != nil {
				t.Fatalf("event: %v", err)
			}
			startup, ok := e.(*lifecycle.StartupEvent)
			if !ok || startup.Version != "1.2.3" {
				t.Errorf("event is %v", e)
			}
			formats[e.Identity()] = e.Format()
		case <-time.After(10 * time.Second):
			t.Fatal("no event")
		}
	}
	if formats["node-00000.example.net"] != lifecycle.CloudEventV1Format || formats["node-00001.example.net"] != lifecycle.ChoriaFormat {
		t.Errorf("events are %v", formats)
	}
}

// testPass takes 50 nodes through every action with the clients go-choria
// generates.
func testPass(t *testing.T, b *simfleet.Broker) {
	f := start(t, b, simfleet.FleetOptions{
		Count: 50,
		Node:  simfleet.NodeOptions{Version: "1.2.3", Facts: map[string]any{"rack": "7"}},
	})
	fw := provisioner(t, b)

	var targets []string
	for _, n := range f.Nodes() {
		targets = append(targets, n.Identity())
	}
	client, err := choria_provisionclient.New(fw)
	if err != nil {
		t.Fatal(err)
	}
	client.OptionTargets(targets)

	issuer, err := hex.DecodeString(b.VerifyCert())
	if err != nil {
		t.Fatal(err)
	}
	jwts, err := client.Jwt(Token).Do(t.Context())
	if err != nil || jwts.Stats().OKCount() != 50 {
		t.Fatalf("jwt: %v: %v", jwts, err)
	}
	jwts.EachOutput(func(r *choria_provisionclient.JwtOutput) {
		claims, err := tokens.ParseProvisioningToken(r.Jwt(), ed25519.PublicKey(issuer))
		if err != nil || claims.Token != Token || claims.URLs != b.URL() || !claims.ProvDefault || claims.ProtoV2 != (b.Mode() == simfleet.Issuer) {
			t.Errorf("claims of %s are %+v: %v", r.ResultDetails().Sender(), claims, err)
		}
		if len(r.EcdhPublic()) != 64 {
			t.Errorf("ECDH key of %s is %q", r.ResultDetails().Sender(), r.EcdhPublic())
		}
	})

	keys, err := client.Gen25519("a nonce", Token).Do(t.Context())
	if err != nil || keys.Stats().OKCount() != 50 {
		t.Fatalf("gen25519: %v: %v", keys, err)
	}
	seen := map[string]bool{}
	keys.EachOutput(func(r *choria_provisionclient.Gen25519Output) {
		public, _ := hex.DecodeString(r.PublicKey())
		signature, _ := hex.DecodeString(r.Signature())
		if len(public) != ed25519.PublicKeySize || !ed25519.Verify(public, []byte("a nonce"), signature) {
			t.Errorf("signature of %s does not verify", r.ResultDetails().Sender())
		}
		if seen[r.PublicKey()] || r.PublicKey() != f.Node(r.ResultDetails().Sender()).PublicKey() || r.Directory() != "/etc/choria" {
			t.Errorf("key %s in %s", r.PublicKey(), r.Directory())
		}
		seen[r.PublicKey()] = true
	})

	utilities, err := rpcutilclient.New(fw)
	if err != nil {
		t.Fatal(err)
	}
	utilities.OptionTargets(targets)
	inventories, err := utilities.Inventory().Do(t.Context())
	if err != nil || inventories.Stats().OKCount() != 50 {
		t.Fatalf("inventory: %v: %v", inventories, err)
	}
	inventories.EachOutput(func(r *rpcutilclient.InventoryOutput) {
		if r.Version() != "1.2.3" || !r.Upgradable() || r.MainCollective() != "provisioning" || r.Facts()["rack"] != "7" {
			t.Errorf("inventory of %s is %v", r.ResultDetails().Sender(), r.HashMap())
		}
	})

	csrs, err := client.Gencsr(Token).Do(t.Context())
	if err != nil || csrs.Stats().OKCount() != 50 {
		t.Fatalf("gencsr: %v: %v", csrs, err)
	}
	csrs.EachOutput(func(r *choria_provisionclient.GencsrOutput) {
		block, _ := pem.Decode([]byte(r.Csr()))
		if block == nil {
			t.Errorf("CSR of %s is no PEM", r.ResultDetails().Sender())
			return
		}
		csr, err := x509.ParseCertificateRequest(block.Bytes)
		if err != nil || csr.CheckSignature() != nil || csr.Subject.CommonName != r.ResultDetails().Sender() || r.Ssldir() != "/etc/choria/ssl" {
			t.Errorf("CSR of %s: %v", r.ResultDetails().Sender(), err)
		}
	})

	configured, err := client.Configure(`{"plugin.choria.server.provision":"false","identity":"x"}`).
		Token(Token).ServerJwt("a server token").Ca("ca").Certificate("certificate").Ssldir("/ssl").
		ActionPolicies(map[string]any{"rpcutil.policy": "allow"}).OpaPolicies(map[string]any{"rpcutil.rego": "package x"}).
		Do(t.Context())
	if err != nil || configured.Stats().OKCount() != 50 {
		t.Fatalf("configure: %v: %v", configured, err)
	}
	if c := f.Counts(); c.Configured != 50 || c.Waiting != 0 {
		t.Errorf("counted %+v", c)
	}

	restarted, err := client.Restart(Token).Splay(1).Do(t.Context())
	if err != nil || restarted.Stats().OKCount() != 50 {
		t.Fatalf("restart: %v: %v", restarted, err)
	}

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err = f.WaitProvisioned(ctx, 50); err != nil {
		t.Fatal(err)
	}
	discover(t, fw, 0, nil)

	want := "choria_provision#jwt choria_provision#gen25519 rpcutil#inventory choria_provision#gencsr choria_provision#configure choria_provision#restart"
	for _, n := range f.Nodes() {
		var got []string
		for _, c := range n.Calls() {
			got = append(got, c.Action)
			if c.Attempt != 1 || c.Sender != "prov.example.net" {
				t.Errorf("call %+v", c)
			}
		}
		if s := strings.Join(got, " "); s != want {
			t.Errorf("calls of %s are %s", n.Identity(), s)
		}
		if n.State() != simfleet.Restarted {
			t.Errorf("state of %s is %v", n.Identity(), n.State())
		}
		c := n.Configured()
		if c.Config["identity"] != "x" || c.ServerJWT != "a server token" || c.CA != "ca" || c.Certificate != "certificate" || c.SSLDir != "/ssl" ||
			c.ActionPolicies["rpcutil.policy"] != "allow" || c.OPAPolicies["rpcutil.rego"] != "package x" {
			t.Errorf("configuration of %s is %+v", n.Identity(), c)
		}
	}
	counts := f.Counts()
	if counts.Restarted != 50 || counts.Calls["choria_provision#configure"] != 50 || len(counts.Errors) != 0 {
		t.Errorf("counted %+v", counts)
	}
}

// rpc calls one action of one node and returns all the replies that came.
func rpc(t *testing.T, fw *Client, node, agent, action string, input map[string]any, wait time.Duration) []*rpcclient.RPCReply {
	t.Helper()

	client, err := rpcclient.New(fw, agent)
	if err != nil {
		t.Fatal(err)
	}

	var mu sync.Mutex
	var replies []*rpcclient.RPCReply
	_, err = client.Do(t.Context(), action, input,
		rpcclient.Targets([]string{node}), rpcclient.Workers(1), rpcclient.Timeout(wait),
		rpcclient.ReplyHandler(func(_ protocol.Reply, r *rpcclient.RPCReply) {
			mu.Lock()
			defer mu.Unlock()
			replies = append(replies, r)
		}))
	if err != nil {
		t.Fatalf("%s#%s: %v", agent, action, err)
	}

	mu.Lock()
	defer mu.Unlock()

	return replies
}

// one calls an action of choria_provision that is answered once.
func one(t *testing.T, fw *Client, node, action string, input map[string]any) *rpcclient.RPCReply {
	t.Helper()

	if input["token"] == nil {
		input["token"] = Token
	}
	replies := rpc(t, fw, node, "choria_provision", action, input, 10*time.Second)
	if len(replies) != 1 {
		t.Fatalf("%s was answered %d times", action, len(replies))
	}

	return replies[0]
}

// testRefusals compares with what go-choria's own agent says.
func testRefusals(t *testing.T, b *simfleet.Broker) {
	const (
		off = `{"plugin.choria.server.provision":"0"}`
		on  = `{"plugin.choria.server.provision":"yes"}`
		// a newline in a value is a line of its own in the file
		hidden = `{"plugin.choria.server.provision":"0\nplugin.choria.server.provision=1"}`
	)

	f := start(t, b, simfleet.FleetOptions{})
	fw := provisioner(t, b)

	for i, c := range []struct {
		name   string
		before map[string]any
		action string
		input  map[string]any
		status mcorpc.StatusCode
		want   string
	}{
		{"a wrong token", nil, "jwt", map[string]any{"token": "wrong"}, mcorpc.Aborted, "Incorrect provision token supplied"},
		{"input of a wrong type", nil, "jwt", map[string]any{"token": 1}, mcorpc.InvalidData, "Could not parse request data for choria_provision#jwt: "},
		{"no configuration", nil, "configure", map[string]any{"config": ""}, mcorpc.Aborted, "Did not receive any configuration"},
		{"a configuration that is no JSON", nil, "configure", map[string]any{"config": "x"}, mcorpc.Aborted, "Could not decode configuration data: "},
		{"a key without a public one", nil, "configure", map[string]any{"config": off, "key": "x"}, mcorpc.Aborted, "EDCH Public Key not supplied"},
		{"a key and no certificate is left aside", nil, "configure", map[string]any{"config": off, "key": "x", "ecdh_public": "x"}, mcorpc.OK, "OK"},
		{"a key that is not encrypted", nil, "configure", map[string]any{"config": off, "key": "x", "ecdh_public": "00", "certificate": "x", "ca": "x", "ssldir": "x"}, mcorpc.Aborted, "TLS Setup Failed: could not decrypt private key: "},
		{"a policy without its suffix", nil, "configure", map[string]any{"config": off, "action_policies": map[string]string{"x": "x"}}, mcorpc.Aborted, `Could not save Action Policies: expected "x" to have .policy extension`},
		{"a rego policy without its suffix", nil, "configure", map[string]any{"config": off, "opa_policies": map[string]string{"x": "x"}}, mcorpc.Aborted, `Could not save Open Policy Agent Policies: expected "x" to have .rego extension`},
		{"restart before a configuration", nil, "restart", map[string]any{}, mcorpc.Aborted, "Configuration /etc/choria/server.conf enables provisioning"},
		{"restart with provisioning on", map[string]any{"config": on}, "restart", map[string]any{}, mcorpc.Aborted, "Configuration /etc/choria/server.conf enables provisioning"},
		{"restart with provisioning hidden in a value", map[string]any{"config": hidden}, "restart", map[string]any{}, mcorpc.Aborted, "Configuration /etc/choria/server.conf enables provisioning"},
		{"restart with provisioning off", map[string]any{"config": off}, "restart", map[string]any{}, mcorpc.OK, "OK"},
		{"restart after a refused policy, since the configuration was written before", map[string]any{"config": off, "opa_policies": map[string]string{"x": "x"}}, "restart", map[string]any{}, mcorpc.OK, "OK"},
		{"an update of a node that allows none", nil, "release_update", map[string]any{"version": "2"}, mcorpc.Aborted, "Version updates is not enabled in the configuration"},
		{"shutdown", nil, "shutdown", map[string]any{}, mcorpc.OK, "OK"},
		{"an unknown action", nil, "reprovision", map[string]any{}, mcorpc.UnknownAction, "Unknown action"},
	} {
		t.Run(c.name, func(t *testing.T) {
			node, err := f.Add(t.Context(), fmt.Sprintf("refusal-%d", i), func(o *simfleet.NodeOptions) { o.NotUpgradable = true })
			if err != nil {
				t.Fatal(err)
			}
			if c.before != nil {
				one(t, fw, node.Identity(), "configure", c.before)
			}

			errors := f.Counts().Errors["choria_provision#"+c.action]
			r := one(t, fw, node.Identity(), c.action, c.input)
			if r.Statuscode != c.status || !strings.HasPrefix(r.Statusmsg, c.want) {
				t.Errorf("answered %d: %s", r.Statuscode, r.Statusmsg)
			}
			if counted := f.Counts().Errors["choria_provision#"+c.action] - errors; (counted == 1) != (c.status != mcorpc.OK) {
				t.Errorf("counted %d errors", counted)
			}
		})
	}
}

// testPrivateKey sends a key as a helper with a CA of its own does.
func testPrivateKey(t *testing.T, b *simfleet.Broker) {
	f := start(t, b, simfleet.FleetOptions{Count: 1})
	fw := provisioner(t, b)
	node := f.Nodes()[0]

	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	var jwt struct {
		ECDHPublic string `json:"ecdh_public"`
	}
	if err = json.Unmarshal(one(t, fw, node.Identity(), "jwt", map[string]any{}).Data, &jwt); err != nil {
		t.Fatal(err)
	}

	private, public, err := choria.ECDHKeyPair()
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := hex.DecodeString(jwt.ECDHPublic)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := choria.ECDHSharedSecret(private, theirs)
	if err != nil {
		t.Fatal(err)
	}
	//lint:ignore SA1019 the protocol has nothing else
	block, err := x509.EncryptPEMBlock(rand.Reader, "RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(key), secret, x509.PEMCipherAES256)
	if err != nil {
		t.Fatal(err)
	}

	r := one(t, fw, node.Identity(), "configure", map[string]any{
		"config": "{}", "certificate": "x", "ca": "x", "ssldir": "x",
		"key": string(pem.EncodeToMemory(block)), "ecdh_public": hex.EncodeToString(public),
	})
	if r.Statuscode != mcorpc.OK {
		t.Fatalf("answered %s", r.Statusmsg)
	}
	got, _ := pem.Decode([]byte(node.Configured().Key))
	if got == nil || string(got.Bytes) != string(x509.MarshalPKCS1PrivateKey(key)) {
		t.Error("the node holds another key")
	}
}

func testLock(t *testing.T, b *simfleet.Broker) {
	node := start(t, b, simfleet.FleetOptions{Count: 1}).Nodes()[0]
	first := provisioner(t, b)
	second := Framework(t, b, "second.example.net", b.Password())

	for _, c := range []struct {
		who    *Client
		action string
		want   string
	}{
		{first, "jwt", "OK"},
		{second, "jwt", "Could not obtain provisioning lock"},
		{first, "gen25519", "OK"},
		// takes no lock, so it says what is wrong with the configuration
		{second, "restart", "Configuration /etc/choria/server.conf enables provisioning, restart cannot continue"},
	} {
		if r := one(t, c.who, node.Identity(), c.action, map[string]any{"nonce": "x"}); r.Statusmsg != c.want {
			t.Errorf("%s as %s was answered with %s", c.action, c.who.Configuration().Identity, r.Statusmsg)
		}
	}
}

func testOverrides(t *testing.T, b *simfleet.Broker) {
	f := start(t, b, simfleet.FleetOptions{})
	fw := provisioner(t, b)

	for i, c := range []struct {
		name     string
		override simfleet.Override
		replies  int
		want     string
		acted    bool
	}{
		{"nothing", simfleet.Override{}, 1, "OK", true},
		{"ignored", simfleet.Override{Ignore: true}, 0, "", false},
		{"locked", simfleet.Override{Locked: true}, 1, "Could not obtain provisioning lock", false},
		{"refused", simfleet.Override{Status: mcorpc.UnknownError, Message: "no"}, 1, "no", false},
		{"lost", simfleet.Override{Lose: true}, 0, "", true},
		{"delayed", simfleet.Override{Delay: 100 * time.Millisecond}, 1, "OK", true},
		{"raw", simfleet.Override{Raw: []byte("junk")}, 0, "", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			node, err := f.Add(t.Context(), fmt.Sprintf("override-%d", i), func(o *simfleet.NodeOptions) {
				o.Intercept = func(_ *simfleet.Node, call simfleet.Call) simfleet.Override {
					if call.Attempt == 1 {
						return c.override
					}
					return simfleet.Override{}
				}
			})
			if err != nil {
				t.Fatal(err)
			}

			input := map[string]any{"token": Token, "config": `{"plugin.choria.server.provision":"0"}`}
			// with every reply in, the call ends at once
			wait := 10 * time.Second
			if c.replies == 0 {
				wait = time.Second
			}
			begin := time.Now()
			replies := rpc(t, fw, node.Identity(), "choria_provision", "configure", input, wait)
			if len(replies) != c.replies || c.replies > 0 && replies[0].Statusmsg != c.want {
				t.Fatalf("answered %d times: %+v", len(replies), replies)
			}
			if time.Since(begin) < c.override.Delay {
				t.Error("answered before its time")
			}
			if acted := node.Configured() != nil; acted != c.acted {
				t.Errorf("acted: %v", acted)
			}

			if r := one(t, fw, node.Identity(), "configure", input); r.Statusmsg != "OK" {
				t.Errorf("second attempt was answered with %s", r.Statusmsg)
			}
		})
	}

	t.Run("extra answers", func(t *testing.T) {
		// go-choria's client stops early, so this looks at the wire
		node, err := f.Add(t.Context(), "extra", func(o *simfleet.NodeOptions) {
			o.Intercept = func(*simfleet.Node, simfleet.Call) simfleet.Override { return simfleet.Override{Extra: 2} }
		})
		if err != nil {
			t.Fatal(err)
		}
		conn := Connect(t, fw, "wire")
		answers, err := conn.Nats().SubscribeSync("provisioning.reply.>")
		if err != nil {
			t.Fatal(err)
		}
		if err = conn.Nats().Flush(); err != nil {
			t.Fatal(err)
		}

		rpc(t, fw, node.Identity(), "choria_provision", "jwt", map[string]any{"token": Token}, 10*time.Second)
		for range 3 {
			if _, err = answers.NextMsg(5 * time.Second); err != nil {
				t.Fatalf("fewer than three answers: %v", err)
			}
		}
	})
}

// testSplay shows what a node does between its answer to restart and its end.
func testSplay(t *testing.T, b *simfleet.Broker) {
	f := start(t, b, simfleet.FleetOptions{Count: 1, Node: simfleet.NodeOptions{Splay: 4 * time.Second}})
	fw := provisioner(t, b)
	node := f.Nodes()[0]

	one(t, fw, node.Identity(), "configure", map[string]any{"config": `{"plugin.choria.server.provision":"0"}`})
	one(t, fw, node.Identity(), "restart", map[string]any{})
	// it answers discovery, though it is as good as gone
	discover(t, fw, 1, nil)
	if replies := rpc(t, fw, node.Identity(), "choria_provision", "jwt", map[string]any{"token": Token}, time.Second); len(replies) != 0 {
		t.Error("an action is answered during the splay")
	}

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := f.WaitProvisioned(ctx, 1); err != nil {
		t.Fatal(err)
	}

	// the end of the test closes it once more
	f.Close()
	if _, err := f.Add(t.Context(), "late", nil); err == nil {
		t.Error("a closed fleet takes nodes")
	}
}

func testReturn(t *testing.T, b *simfleet.Broker) {
	f := start(t, b, simfleet.FleetOptions{Count: 1})
	fw := provisioner(t, b)
	node := f.Nodes()[0]

	if err := node.Return(t.Context(), ""); err == nil {
		t.Error("a node returned that had not left")
	}

	one(t, fw, node.Identity(), "shutdown", map[string]any{})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := f.Wait(ctx, func(c simfleet.Counts) bool { return c.Shutdown == 1 }); err != nil {
		t.Fatal(err)
	}

	if err := node.Return(t.Context(), "9.9.9"); err != nil {
		t.Fatal(err)
	}
	discover(t, fw, 1, nil)
	if node.Version() != "9.9.9" {
		t.Errorf("returned with version %s", node.Version())
	}
	// the lock died with the process
	second := Framework(t, b, "second.example.net", b.Password())
	if r := one(t, second, node.Identity(), "jwt", map[string]any{}); r.Statuscode != mcorpc.OK {
		t.Errorf("answered %s", r.Statusmsg)
	}
}

func testTwins(t *testing.T, b *simfleet.Broker) {
	// one connection is the harder case: both share it
	f := start(t, b, simfleet.FleetOptions{Count: 1, Connections: 1})
	fw := provisioner(t, b)
	node := f.Nodes()[0]

	twin, err := f.Add(t.Context(), node.Identity(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if found := discover(t, fw, 2, nil); found[0] != found[1] {
		t.Errorf("found %q", found)
	}

	rpc(t, fw, node.Identity(), "choria_provision", "jwt", map[string]any{"token": Token}, 10*time.Second)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := f.Wait(ctx, func(c simfleet.Counts) bool { return c.Calls["choria_provision#jwt"] == 2 }); err != nil {
		t.Fatal(err)
	}
	if len(node.Calls()) != 1 || len(twin.Calls()) != 1 {
		t.Errorf("calls are %v and %v", node.Calls(), twin.Calls())
	}
}

func testFleetOverRestart(t *testing.T, b *simfleet.Broker) {
	start(t, b, simfleet.FleetOptions{Count: 20})
	if err := b.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}

	discover(t, provisioner(t, b), 20, nil)
}

// testMany shows that thousands of nodes answer in one discovery.
func testMany(t *testing.T, b *simfleet.Broker) {
	const many = 2000

	begin := time.Now()
	start(t, b, simfleet.FleetOptions{Count: many})
	t.Logf("started after %v", time.Since(begin))

	found := discover(t, provisioner(t, b), many, nil)
	t.Logf("found after %v", time.Since(begin))
	if len(slices.Compact(found)) != many {
		t.Error("found some twice")
	}
}
