package host

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/choria-io/go-choria/choria"
	"github.com/choria-io/tokens"
	"github.com/sirupsen/logrus"

	"github.com/choria-provisioner/provisioner/helper/helperv1"
	"github.com/choria-provisioner/provisioner/metrics"
)

const testIdentity = "n1.example.net"

// fakeCaller is a node: answer makes the replies to each request.
type fakeCaller struct {
	answer func(ctx context.Context, req Request) ([]Reply, error)

	mu    sync.Mutex
	calls []Request
}

func (c *fakeCaller) Call(ctx context.Context, _ string, req Request) ([]Reply, error) {
	c.mu.Lock()
	c.calls = append(c.calls, req)
	c.mu.Unlock()

	return c.answer(ctx, req)
}

func (c *fakeCaller) actions() []string {
	c.mu.Lock()
	defer c.mu.Unlock()

	var actions []string
	for _, call := range c.calls {
		actions = append(actions, call.Action)
	}

	return actions
}

func (c *fakeCaller) last(action string) Request {
	c.mu.Lock()
	defer c.mu.Unlock()

	for _, call := range slices.Backward(c.calls) {
		if call.Action == action {
			return call
		}
	}

	return Request{}
}

// fakeHelper answers with what it is set to.
type fakeHelper struct {
	configure    func(*helperv1.ConfigureNodeRequest) (*helperv1.ConfigureNodeResponse, error)
	decide       func(*helperv1.DecideReleaseRequest) (*helperv1.DecideReleaseResponse, error)
	capabilities []helperv1.Capability

	asked []*helperv1.ConfigureNodeRequest
}

func (h *fakeHelper) ConfigureNode(_ context.Context, req *helperv1.ConfigureNodeRequest) (*helperv1.ConfigureNodeResponse, error) {
	h.asked = append(h.asked, req)
	return h.configure(req)
}

func (h *fakeHelper) DecideRelease(_ context.Context, req *helperv1.DecideReleaseRequest) (*helperv1.DecideReleaseResponse, error) {
	return h.decide(req)
}

func (h *fakeHelper) Has(c helperv1.Capability) bool { return slices.Contains(h.capabilities, c) }

// configureWith is a helper's answer with a good configuration, changed by edit.
func configureWith(edit func(*helperv1.Configure)) func(*helperv1.ConfigureNodeRequest) (*helperv1.ConfigureNodeResponse, error) {
	return func(*helperv1.ConfigureNodeRequest) (*helperv1.ConfigureNodeResponse, error) {
		c := &helperv1.Configure{Configuration: map[string]string{"plugin.choria.server.provision": "0", "registerinterval": "300"}}
		if edit != nil {
			edit(c)
		}
		return &helperv1.ConfigureNodeResponse{Decision: &helperv1.ConfigureNodeResponse_Configure{Configure: c}}, nil
	}
}

type fakeGate struct{ closed atomic.Bool }

func (g *fakeGate) IsOpen() bool { return !g.closed.Load() }

// fakeSlot counts how often it was lent.
type fakeSlot struct{ lent atomic.Int32 }

func (s *fakeSlot) Lend(after time.Duration) func(context.Context) error {
	t := time.AfterFunc(after, func() { s.lent.Add(1) })
	return func(context.Context) error { t.Stop(); return nil }
}

// setup is a good pass over a good node, which a test then spoils.
type setup struct {
	ledger *testLedger
	cfg    Config
	caller *fakeCaller
	helper *fakeHelper
	gate   *fakeGate
	slot   *fakeSlot
	node   *fakeNode
	log    *strings.Builder
}

// fakeNode answers as a real agent does. Its fields can be spoilt.
type fakeNode struct {
	provisioningJWT string
	ecdhPrivate     []byte
	ecdhPublic      []byte
	seed            ed25519.PrivateKey
	csr             string
	csrKey          *rsa.PrivateKey
	inventory       map[string]any
	// replies replaces the answer to an action.
	replies map[string]func(ctx context.Context, n int) ([]Reply, error)
	counts  map[string]int
}

func ok(data any) []Reply {
	b, err := json.Marshal(data)
	if err != nil {
		panic(err)
	}
	return []Reply{{Sender: testIdentity, Data: b}}
}

func refuse(code int, message string) []Reply {
	return []Reply{{Sender: testIdentity, Code: code, Message: message, Data: []byte("{}")}}
}

func (n *fakeNode) answer(ctx context.Context, req Request) ([]Reply, error) {
	n.counts[req.Action]++
	if f := n.replies[req.Action]; f != nil {
		return f(ctx, n.counts[req.Action])
	}

	return n.good(req), nil
}

func (n *fakeNode) good(req Request) []Reply {
	switch req.Action {
	case ActionJWT:
		return ok(map[string]any{"jwt": n.provisioningJWT, "ecdh_public": hex.EncodeToString(n.ecdhPublic)})
	case ActionGen25519:
		return ok(map[string]any{
			"public_key": hex.EncodeToString(n.seed.Public().(ed25519.PublicKey)),
			"signature":  hex.EncodeToString(ed25519.Sign(n.seed, []byte(req.Nonce))),
			"directory":  "/etc/choria",
		})
	case ActionGenCSR:
		return ok(map[string]any{"csr": n.csr, "public_key": "", "ssldir": "/etc/choria/ssl"})
	case ActionInventory:
		return ok(n.inventory)
	default:
		return ok(map[string]any{"message": "done"})
	}
}

// newSetup returns a good pass with the features on.
func newSetup(t *testing.T, features Features) *setup {
	t.Helper()

	dir := t.TempDir()
	issuerPub, issuerKey, err := ed25519.GenerateKey(rand.Reader)
	must(t, err)
	claims, err := tokens.NewProvisioningClaims(true, true, "s3cret", "", "", []string{"nats://broker.example.net:4222"}, "", "", "", "choria", "tests", time.Hour)
	must(t, err)
	token, err := tokens.SignToken(claims, issuerKey)
	must(t, err)
	seedFile := filepath.Join(dir, "signer.seed")
	must(t, os.WriteFile(seedFile, []byte(hex.EncodeToString(issuerKey.Seed())+"\n"), 0o600))

	_, nodeKey, err := ed25519.GenerateKey(rand.Reader)
	must(t, err)
	ecdhPrivate, ecdhPublic, err := choria.ECDHKeyPair()
	must(t, err)
	csrKey := testRSAKey(t)

	s := &setup{
		helper: &fakeHelper{configure: configureWith(nil)},
		gate:   &fakeGate{},
		slot:   &fakeSlot{},
		log:    &strings.Builder{},
		node: &fakeNode{
			provisioningJWT: token,
			ecdhPrivate:     ecdhPrivate,
			ecdhPublic:      ecdhPublic,
			seed:            nodeKey,
			csrKey:          csrKey,
			csr:             makeCSR(t, csrKey, &x509.CertificateRequest{Subject: pkix.Name{CommonName: testIdentity}}),
			inventory:       map[string]any{"version": "0.30.2", "facts": map[string]any{"site": "ldn1"}, "upgradable": true},
			replies:         map[string]func(context.Context, int) ([]Reply, error){},
			counts:          map[string]int{},
		},
	}
	s.caller = &fakeCaller{answer: s.node.answer}
	logger := logrus.New()
	logger.SetOutput(s.log)
	s.cfg = Config{
		Caller:            s.caller,
		Helper:            s.helper,
		Gate:              s.gate,
		Slot:              s.slot,
		Metrics:           metrics.New("test"),
		Doubted:           func() bool { return false },
		Log:               logger.WithField("component", "host"),
		Features:          features,
		Token:             "s3cret",
		CertDenyList:      []*regexp.Regexp{regexp.MustCompile(`(?i)\.mcollective$`)},
		JWTVerifyCert:     hex.EncodeToString(issuerPub),
		JWTSigningKey:     seedFile,
		ServerJWTValidity: time.Hour,
	}
	s.ledger = newTestLedger()
	s.cfg.Ledger = s.ledger
	s.cfg.UpgradesRepository = "https://repo.example.net"

	return s
}

func (s *setup) provision(ctx context.Context) (Outcome, error) {
	return New(testIdentity, s.cfg).Provision(ctx)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var rsaKey = sync.OnceValues(func() (*rsa.PrivateKey, error) { return rsa.GenerateKey(rand.Reader, 2048) })

func testRSAKey(t *testing.T) *rsa.PrivateKey {
	t.Helper()
	key, err := rsaKey()
	must(t, err)
	return key
}

func testOtherRSAKey(t *testing.T) *rsa.PrivateKey {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	must(t, err)
	return key
}

func makeCSR(t *testing.T, key any, template *x509.CertificateRequest) string {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	must(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
}

// sample is the value of a counter, or the number of observations of a
// histogram, with this rpc label.
func sample(t *testing.T, m *metrics.Metrics, name, rpc string) float64 {
	t.Helper()
	families, err := m.Gatherer().Gather()
	must(t, err)
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, metric := range f.GetMetric() {
			for _, l := range metric.GetLabel() {
				if l.GetName() != "rpc" || l.GetValue() != rpc {
					continue
				}
				if h := metric.GetHistogram(); h != nil {
					return float64(h.GetSampleCount())
				}
				return metric.GetCounter().GetValue()
			}
		}
	}
	t.Fatalf("no series %s{rpc=%q}", name, rpc)
	return 0
}
