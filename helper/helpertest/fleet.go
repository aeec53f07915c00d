package helpertest

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"strings"
	"sync/atomic"

	"google.golang.org/protobuf/proto"

	"github.com/choria-provisioner/provisioner/helper/helperv1"
)

// subject makes nodes of one kind, each with an identity of its own.
type subject struct {
	name string
	make func() *helperv1.Node
	// own is set for the site's own nodes, which are always the same.
	own bool
}

// fleet makes nodes as the host sees them.
type fleet struct {
	// key is RSA, as nodes make theirs; one will do for all of them.
	key       *rsa.PrivateKey
	publicPEM string
	domain    string
	made      atomic.Int64
}

func newFleet() (*fleet, error) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, err
	}

	return &fleet{
		key: key,
		// PKCS #1 in a block of this type, as nodes send it.
		publicPEM: string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: x509.MarshalPKCS1PublicKey(&key.PublicKey)})),
		domain:    strings.ToLower(rand.Text()[:8]) + ".example.net",
	}, nil
}

// subjects are the kinds of nodes: each set of features, and what is rare.
func (f *fleet) subjects() []subject {
	return []subject{
		{name: "no features", make: f.node},
		{name: "jwt", make: f.withClaims},
		{name: "ed25519", make: f.withKey},
		{name: "pki", make: f.withCSR},
		{name: "no facts", make: func() *helperv1.Node {
			n := f.node()
			n.FactsJson, n.InventoryJson, n.Version = nil, []byte(`{"facts":null}`), ""
			return n
		}},
		{name: "odd facts", make: func() *helperv1.Node {
			return f.withFacts(`{"ünïcode":"…","null":null,"number":12345678901234567890,"deep":` + strings.Repeat(`[`, 50) + strings.Repeat(`]`, 50) + `,"":"","line":"a\nb"}`)
		}},
	}
}

func ownSubjects(nodes []*helperv1.Node) (own []subject) {
	for _, n := range nodes {
		own = append(own, subject{name: n.GetIdentity(), own: true, make: func() *helperv1.Node { return proto.CloneOf(n) }})
	}

	return own
}

func (f *fleet) withFacts(facts string) *helperv1.Node {
	return &helperv1.Node{
		Identity:      fmt.Sprintf("n%d.%s", f.made.Add(1), f.domain),
		Version:       "0.30.2",
		Upgradable:    true,
		InventoryJson: []byte(`{"agents":["choria_provision","rpcutil"],"facts":` + facts + `,"version":"0.30.2","collectives":["provisioning"]}`),
		FactsJson:     []byte(facts),
	}
}

func (f *fleet) node() *helperv1.Node {
	return f.withFacts(`{"site":"lon1","os":{"family":"debian","release":"12"},"processors":8,"virtual":true,"groups":["web","edge"]}`)
}

func (f *fleet) withClaims() *helperv1.Node {
	n := f.node()
	claims := map[string]any{
		"purpose": "choria_provisioning", "iat": 1700000000, "exp": 4000000000,
		"chs": true, "chu": "broker.example.net:4222", "extensions": map[string]any{"team": "web"},
	}
	n.ProvisioningClaimsJson, _ = json.Marshal(claims)
	claims["cht"], claims["chusr"], claims["chpwd"] = "token", "provisioner", "password"
	// Only the exec adapter is given these.
	n.RawClaimsJson, _ = json.Marshal(claims)

	return n
}

func (f *fleet) withKey() *helperv1.Node {
	n := f.withClaims()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		panic(err) // of a key that is random there is none
	}
	n.Ed25519 = &helperv1.Ed25519Key{
		PublicKey: hex.EncodeToString(public),
		Directory: "/etc/choria",
		Signature: hex.EncodeToString(ed25519.Sign(private, []byte(rand.Text()))),
	}

	return n
}

func (f *fleet) withCSR() *helperv1.Node {
	n := f.withClaims()
	// The host lets no other names through than this one.
	template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: n.Identity}}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, f.key)
	if err != nil {
		panic(err) // the system has no randomness
	}
	n.Csr = &helperv1.CSR{
		CsrPem:       string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})),
		PublicKeyPem: f.publicPEM,
		Ssldir:       "/etc/choria/ssl",
	}

	return n
}

// large is a node whose inventory has about so many bytes.
func (f *fleet) large(n *helperv1.Node, size int) *helperv1.Node {
	n = proto.CloneOf(n)
	n.InventoryJson = []byte(`{"agents":[],"facts":{},"data":"` + strings.Repeat("x", size) + `"}`)

	return n
}
