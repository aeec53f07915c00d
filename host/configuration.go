package host

import (
	"bufio"
	"crypto/rand"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/choria-io/go-choria/choria"

	"github.com/choria-provisioner/provisioner/helper/helperv1"
)

// configureRequest turns the helper's answer into what is sent to the node. All
// that the node would refuse is found here, before anything is sent: the agent
// checks some of it only after it has written the configuration.
func (h *Host) configureRequest(c *helperv1.Configure, n *node) (*ConfigureRequest, error) {
	if err := checkConfiguration(c.Configuration); err != nil {
		return nil, fmt.Errorf("the helper's configuration is refused: %w", err)
	}
	if err := errors.Join(
		checkPolicies("action_policies", ".policy", c.ActionPolicies),
		checkPolicies("opa_policies", ".rego", c.OpaPolicies),
	); err != nil {
		return nil, fmt.Errorf("the helper's policies are refused: %w", err)
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

// provisionKey is the setting that keeps a server in provisioning mode.
const provisionKey = "plugin.choria.server.provision"

// checkConfiguration refuses what the node could not read back as it was meant:
// the agent writes a line "key=value" for each entry.
func checkConfiguration(configuration map[string]string) error {
	if len(configuration) == 0 {
		return errors.New("it is empty")
	}

	keys := make([]string, 0, len(configuration))
	for k := range configuration {
		keys = append(keys, k)
	}
	slices.Sort(keys)

	var errs []error
	for _, k := range keys {
		v := configuration[k]
		switch {
		case strings.TrimSpace(k) == "":
			errs = append(errs, errors.New("there is an empty key"))
		case strings.ContainsAny(k, "\r\n\x00"), strings.ContainsAny(v, "\r\n\x00"):
			errs = append(errs, fmt.Errorf("key %q: a line break would add a line to the node's configuration", k))
		case strings.HasPrefix(strings.TrimSpace(k), "#"):
			errs = append(errs, fmt.Errorf("key %q: the node would read it as a comment", k))
		case len(k)+len("=")+len(v) >= bufio.MaxScanTokenSize:
			errs = append(errs, fmt.Errorf("key %q: its line would have %d bytes, and a node reads nothing from a line of %d on", k, len(k)+len("=")+len(v), bufio.MaxScanTokenSize))
		case strings.Contains(k, "="):
			errs = append(errs, fmt.Errorf("key %q: a key cannot hold an equals sign", k))
		case strings.TrimSpace(k) == provisionKey && isTrue(v):
			errs = append(errs, fmt.Errorf("key %q: %q leaves provisioning on, the node would refuse to restart", k, v))
		}
	}

	return errors.Join(errs...)
}

// isTrue reads a boolean as go-choria's configuration does (confkey).
func isTrue(v string) bool {
	switch strings.ToLower(strings.TrimSpace(v)) {
	case "1", "yes", "true", "y", "t":
		return true
	default:
		return false
	}
}

// checkPolicies refuses file names that the agent refuses or that would leave
// its folder.
func checkPolicies(kind, suffix string, policies map[string]string) error {
	names := make([]string, 0, len(policies))
	for name := range policies {
		names = append(names, name)
	}
	slices.Sort(names)

	var errs []error
	for _, name := range names {
		switch {
		case !strings.HasSuffix(name, suffix) || name == suffix:
			errs = append(errs, fmt.Errorf("%s: %q must end in %s", kind, name, suffix))
		case strings.ContainsAny(name, "/\\\x00"):
			errs = append(errs, fmt.Errorf("%s: %q must be a file name without a folder", kind, name))
		}
	}

	return errors.Join(errs...)
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
