package simfleet

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/choria-io/go-choria/choria"
	"github.com/choria-io/go-choria/lifecycle"
	"github.com/choria-io/go-choria/providers/agent/mcorpc"
	"github.com/choria-io/go-choria/providers/agent/mcorpc/golang/provision"
)

// Configuration is what choria_provision#configure left on a node.
type Configuration struct {
	// Config is the configuration as it was sent.
	Config map[string]string

	// File is the text of the configuration file, without its comment. A value
	// with a newline makes more lines of it than Config has keys.
	File string

	// ServerJWT is what server.jwt holds. May be empty.
	ServerJWT string

	// Certificate, CA and Key are what the files in SSLDir hold; Key is
	// decrypted, and only there when one was sent. All are empty unless a
	// certificate, a CA and a directory were sent.
	Certificate, CA, Key, SSLDir string

	// ActionPolicies and OPAPolicies are by file name.
	ActionPolicies, OPAPolicies map[string]string
}

// provisioning says whether a node with this configuration would enter
// provisioning mode: the last line that sets it counts.
func (c *Configuration) provisioning() bool {
	on := false
	for line := range strings.Lines(c.File) {
		key, value, _ := strings.Cut(line, "=")
		if strings.TrimSpace(key) == "plugin.choria.server.provision" {
			on = isTrue(strings.TrimSpace(value))
		}
	}

	return on
}

// isTrue reads booleans as go-choria's configuration does.
func isTrue(value string) bool {
	switch strings.ToLower(value) {
	case "1", "yes", "true", "y", "t":
		return true
	}

	return false
}

// parse reads a call's input and checks the token in it.
func (n *Node) parse(c *Call, reply *mcorpc.Reply, input any, token *string) bool {
	err := json.Unmarshal(c.Data, input)
	if err != nil {
		reply.Statuscode = mcorpc.InvalidData
		reply.Statusmsg = fmt.Sprintf("Could not parse request data for %s: %s", c.Action, err)

		return false
	}

	if n.opts.Token != "" && *token != n.opts.Token {
		abort(reply, "Incorrect provision token supplied")

		return false
	}

	return true
}

func (n *Node) provisioningJWT(c *Call, reply *mcorpc.Reply) func() {
	var in provision.JWTRequest
	if !n.parse(c, reply, &in, &in.Token) {
		return nil
	}

	private, public, err := choria.ECDHKeyPair()
	if err != nil {
		abort(reply, "Could not calculate EDCH keys: %s", err)

		return nil
	}

	n.mu.Lock()
	n.ecdh = private
	n.mu.Unlock()

	reply.Data = provision.JWTReply{JWT: n.opts.JWT, ECDHPublic: hex.EncodeToString(public)}

	return nil
}

func (n *Node) generateEd25519(c *Call, reply *mcorpc.Reply) func() {
	var in provision.ED25519Request
	if !n.parse(c, reply, &in, &in.Token) {
		return nil
	}

	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		abort(reply, "Could not create keypair: %s", err)

		return nil
	}

	encoded := hex.EncodeToString(public)
	n.mu.Lock()
	n.publicKey = encoded
	n.mu.Unlock()

	reply.Data = provision.ED25519Reply{
		PublicKey: encoded,
		Directory: n.opts.Directory,
		Signature: hex.EncodeToString(ed25519.Sign(private, []byte(in.Nonce))),
	}

	return nil
}

func (n *Node) generateCSR(c *Call, reply *mcorpc.Reply) func() {
	var in provision.CSRRequest
	if !n.parse(c, reply, &in, &in.Token) {
		return nil
	}

	key, err := n.fleet.rsaKey()
	if err != nil {
		abort(reply, "Could not create private key: %s", err)

		return nil
	}

	if in.CN == "" {
		in.CN = n.Identity()
	}
	optional := func(value string) []string {
		if value == "" {
			return nil
		}

		return []string{value}
	}

	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{
			CommonName:         in.CN,
			Country:            optional(in.C),
			Locality:           optional(in.L),
			Organization:       optional(in.O),
			OrganizationalUnit: optional(in.OU),
		},
		SignatureAlgorithm: x509.SHA256WithRSA,
	}, key)
	if err != nil {
		abort(reply, "Could not create CSR bytes: %s", err)

		return nil
	}

	reply.Data = provision.CSRReply{
		CSR: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csr})),
		// PKCS#1 under the name of PKIX, as real nodes send it
		PublicKey: string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: x509.MarshalPKCS1PublicKey(&key.PublicKey)})),
		SSLDir:    path.Join(n.opts.Directory, "ssl"),
	}

	return nil
}

// configure checks in the order in which the real agent does, which writes as
// it goes: what it refuses late has left a part of the configuration behind.
func (n *Node) configure(c *Call, reply *mcorpc.Reply) func() {
	var in provision.ConfigureRequest
	if !n.parse(c, reply, &in, &in.Token) {
		return nil
	}
	if in.Configuration == "" {
		abort(reply, "Did not receive any configuration to write, cannot write a empty configuration file")

		return nil
	}
	if in.Key != "" && in.ECDHPublic == "" {
		abort(reply, "EDCH Public Key not supplied while providing a private key")

		return nil
	}

	cfg := &Configuration{ServerJWT: in.ServerJWT}
	if err := json.Unmarshal([]byte(in.Configuration), &cfg.Config); err != nil {
		abort(reply, "Could not decode configuration data: %s", err)

		return nil
	}

	if in.Certificate != "" && in.SSLDir != "" && in.CA != "" {
		cfg.Certificate, cfg.CA, cfg.SSLDir = in.Certificate, in.CA, in.SSLDir
		if in.Key != "" {
			key, err := n.decrypt(in.Key, in.ECDHPublic)
			if err != nil {
				abort(reply, "TLS Setup Failed: could not decrypt private key: %s", err)

				return nil
			}
			cfg.Key = key
		}
	}

	for _, key := range slices.Sorted(maps.Keys(cfg.Config)) {
		cfg.File += fmt.Sprintf("%s=%s\n", key, cfg.Config[key])
	}
	err := cfg.addPolicies(&in)
	n.store(cfg)
	if err != nil {
		abort(reply, "Could not %s", err)

		return nil
	}

	n.event(lifecycle.Provisioned)
	reply.Data = provision.Reply{Message: fmt.Sprintf("Wrote %d lines to %s", len(cfg.Config)+1, n.configFile())}

	return nil
}

// addPolicies takes over the policies that were sent, up to the first kind with
// a name the node does not like.
func (c *Configuration) addPolicies(in *provision.ConfigureRequest) error {
	for name := range in.ActionPolicies {
		if !strings.HasSuffix(name, ".policy") {
			return fmt.Errorf("save Action Policies: expected %q to have .policy extension", name)
		}
	}
	c.ActionPolicies = in.ActionPolicies

	for name := range in.OPAPolicies {
		if !strings.HasSuffix(name, ".rego") {
			return fmt.Errorf("save Open Policy Agent Policies: expected %q to have .rego extension", name)
		}
	}
	c.OPAPolicies = in.OPAPolicies

	return nil
}

// store keeps a configuration and the state it puts the node in.
func (n *Node) store(cfg *Configuration) {
	n.mu.Lock()
	n.configured = cfg
	from := n.state
	n.state = Configured
	n.mu.Unlock()

	n.fleet.moved(from, Configured)
}

func (n *Node) configFile() string {
	return path.Join(n.opts.Directory, "server.conf")
}

// decrypt opens a private key that was encrypted for this node.
func (n *Node) decrypt(key, provisioner string) (string, error) {
	public, err := hex.DecodeString(provisioner)
	if err != nil {
		return "", err
	}

	n.mu.Lock()
	private := n.ecdh
	n.mu.Unlock()
	if private == nil {
		return "", errors.New("private key not set")
	}

	secret, err := choria.ECDHSharedSecret(private, public)
	if err != nil {
		return "", err
	}

	block, _ := pem.Decode([]byte(key))
	if block == nil {
		return "", errors.New("bad key received")
	}
	//lint:ignore SA1019 the protocol has nothing else
	if !x509.IsEncryptedPEMBlock(block) {
		return "", errors.New("key is not encrypted")
	}
	//lint:ignore SA1019 the protocol has nothing else
	plain, err := x509.DecryptPEMBlock(block, secret)
	if err != nil {
		return "", err
	}

	var out bytes.Buffer
	err = pem.Encode(&out, &pem.Block{Type: "RSA PRIVATE KEY", Bytes: plain})

	return out.String(), err
}

func (n *Node) restart(c *Call, reply *mcorpc.Reply) func() {
	var in provision.RestartRequest
	if !n.parse(c, reply, &in, &in.Token) {
		return nil
	}

	// without a configuration the node is in provisioning mode by default
	cfg := n.Configured()
	if cfg == nil || cfg.provisioning() {
		abort(reply, "Configuration %s enables provisioning, restart cannot continue", n.configFile())

		return nil
	}

	reply.Data = provision.Reply{Message: fmt.Sprintf("Restarting Choria Server after %v", n.opts.Splay)}

	return func() { n.depart(Restarted, n.opts.Splay) }
}

func (n *Node) shutdown(c *Call, reply *mcorpc.Reply) func() {
	var in provision.ShutdownRequest
	if !n.parse(c, reply, &in, &in.Token) {
		return nil
	}

	reply.Data = provision.Reply{Message: fmt.Sprintf("Shutting Choria Server down after %v", n.opts.Splay)}

	return func() { n.depart(Shutdown, n.opts.Splay) }
}
