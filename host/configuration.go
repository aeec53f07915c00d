package host

import (
	"crypto/rand"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"

	"github.com/choria-io/go-choria/choria"

	"github.com/choria-provisioner/provisioner/helper"
	"github.com/choria-provisioner/provisioner/helper/helperv1"
)

// identityKey is the setting that names a server. With another name than that in
// its token it waits in provisioning mode unless told not to (go-choria, choria,
// ProvisionMode), and the broker lets it subscribe to the other name's requests.
const identityKey = "identity"

// configureRequest turns the helper's answer, which was checked, into what is
// sent to the node.
func (h *Host) configureRequest(c *helperv1.Configure, n *node) (*ConfigureRequest, error) {
	// A server passes over a line without a value (go-choria, config, parseConfigContents).
	if strings.TrimSpace(c.Configuration[helper.ProvisionKey]) == "" && n.provisionsByDefault() {
		return nil, fmt.Errorf("the helper's answer is refused: configuration: key %q is missing or empty: the node's provisioning JWT turns provisioning on where the configuration does not turn it off, it would be back at once", helper.ProvisionKey)
	}
	if identity := strings.TrimSpace(c.Configuration[identityKey]); h.cfg.Features.ED25519 && identity != "" && identity != h.identity {
		return nil, fmt.Errorf("the helper's answer is refused: configuration: key %q: %q is not the name in the node's server token, the node would go back to provisioning or be out of reach", identityKey, identity)
	}

	configuration, err := json.Marshal(c.Configuration)
	if err != nil {
		return nil, fmt.Errorf("could not encode the configuration: %w", err)
	}
	req := &ConfigureRequest{
		Configuration:  string(configuration),
		Certificate:    c.CertificatePem,
		CA:             c.CaPem,
		SSLDir:         c.Ssldir,
		ActionPolicies: c.ActionPolicies,
		OPAPolicies:    c.OpaPolicies,
	}
	n.certificateSerial = certificateSerial(c.CertificatePem)
	if n.csr != nil && n.csr.Ssldir != "" {
		req.SSLDir = n.csr.Ssldir
	}
	if req.Certificate != "" && (req.CA == "" || req.SSLDir == "") {
		// The agent says nothing and goes on without (go-choria, provision agent).
		h.log.Warnf("The helper gave a certificate without a CA, or there is no ssldir: the node will write neither certificate nor key")
	}

	if c.PrivateKeyPem != "" {
		if req.Key, req.ECDHPublic, err = encryptKey(c.PrivateKeyPem, n.ecdhPublic); err != nil {
			return nil, fmt.Errorf("the helper's private key cannot be sent: %w", err)
		}
	}
	if h.cfg.Features.ED25519 {
		if req.ServerJWT, err = h.serverJWT(c, n); err != nil {
			return nil, fmt.Errorf("could not sign the server JWT: %w", err)
		}
	}

	return req, nil
}

// encryptKey encrypts an RSA private key for the node whose ECDH public key is
// given. It returns the PEM and the hex of our ECDH public key. The agent writes
// what it decrypts as an RSA PRIVATE KEY, so other encodings are turned into
// that one.
func encryptKey(keyPEM string, nodePublic []byte) (encrypted, public string, err error) {
	if len(nodePublic) == 0 {
		return "", "", errors.New("the node's ECDH key is not known, the jwt feature must be on")
	}
	block, rest := pem.Decode([]byte(keyPEM))
	if block == nil || len(strings.TrimSpace(string(rest))) > 0 {
		return "", "", errors.New("it is not one PEM block")
	}

	var der []byte
	if _, err := x509.ParsePKCS1PrivateKey(block.Bytes); err == nil {
		der = block.Bytes
	} else {
		key, err := parseRSA(block.Bytes)
		if err != nil {
			return "", "", err
		}
		der = x509.MarshalPKCS1PrivateKey(key)
	}

	private, pub, err := choria.ECDHKeyPair()
	if err != nil {
		return "", "", fmt.Errorf("could not make an ECDH key: %w", err)
	}
	secret, err := choria.ECDHSharedSecret(private, nodePublic)
	if err != nil {
		return "", "", fmt.Errorf("the node's ECDH key is refused: %w", err)
	}
	//lint:ignore SA1019 the agent decrypts nothing else
	out, err := x509.EncryptPEMBlock(rand.Reader, "RSA PRIVATE KEY", der, secret, x509.PEMCipherAES256)
	if err != nil {
		return "", "", fmt.Errorf("could not encrypt it: %w", err)
	}

	return string(pem.EncodeToMemory(out)), hex.EncodeToString(pub), nil
}
