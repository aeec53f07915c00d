package simfleet

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/choria-io/tokens"
)

const (
	// organization is the unit every token belongs to; the broker finds the
	// issuer by it.
	organization = "choria"

	// validity is how long certificates and tokens last: longer than any test
	// or demonstration.
	validity = 24 * time.Hour
)

// credentials makes every key, certificate and token of one network in a
// directory.
type credentials struct {
	dir    string
	issuer ed25519.PrivateKey
}

func newCredentials(dir string) (*credentials, error) {
	_, issuer, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("issuer key: %w", err)
	}

	return &credentials{dir: dir, issuer: issuer}, nil
}

// issuerPublic is the hex encoded public key of the Organization Issuer.
func (c *credentials) issuerPublic() string {
	return hex.EncodeToString(c.issuer.Public().(ed25519.PublicKey))
}

func (c *credentials) path(name string) string {
	return filepath.Join(c.dir, name)
}

func (c *credentials) write(name string, content []byte) (string, error) {
	path := c.path(name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		return "", err
	}

	return path, nil
}

// keyPair stores a new ed25519 seed the way Choria does: hex encoded.
func (c *credentials) keyPair(name string) (ed25519.PublicKey, string, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, "", fmt.Errorf("%s key: %w", name, err)
	}

	path, err := c.write(name+".seed", []byte(hex.EncodeToString(private.Seed())))

	return public, path, err
}

// client makes a seed and a client token of its key, chained to the issuer so
// that the key may in turn issue server tokens.
func (c *credentials) client(name, caller string, permissions tokens.ClientPermissions) (token, seed string, err error) {
	public, seed, err := c.keyPair(name)
	if err != nil {
		return "", "", err
	}

	claims, err := tokens.NewClientIDClaims(caller, nil, organization, nil, "", "", validity, &permissions, public)
	if err != nil {
		return "", "", fmt.Errorf("%s token: %w", name, err)
	}

	if err = claims.AddOrgIssuerData(c.issuer); err != nil {
		return "", "", fmt.Errorf("%s trust chain: %w", name, err)
	}

	signed, err := tokens.SignToken(claims, c.issuer)
	if err != nil {
		return "", "", fmt.Errorf("%s token: %w", name, err)
	}

	token, err = c.write(name+".jwt", []byte(signed))

	return token, seed, err
}

// server makes a seed and a server token of its key.
func (c *credentials) server(name, identity string) (token, seed string, err error) {
	public, seed, err := c.keyPair(name)
	if err != nil {
		return "", "", err
	}

	claims, err := tokens.NewServerClaims(identity, []string{organization}, organization, nil, nil, public, "", validity)
	if err != nil {
		return "", "", fmt.Errorf("%s token: %w", name, err)
	}

	signed, err := tokens.SignToken(claims, c.issuer)
	if err != nil {
		return "", "", fmt.Errorf("%s token: %w", name, err)
	}

	token, err = c.write(name+".jwt", []byte(signed))

	return token, seed, err
}

// provisioning makes the token a waiting node is built with.
func (c *credentials) provisioning(url, token string, v2 bool, change func(*tokens.ProvisioningClaims)) (string, error) {
	claims, err := tokens.NewProvisioningClaims(false, true, token, "", "", []string{url}, "", "", "", organization, "", validity)
	if err != nil {
		return "", fmt.Errorf("provisioning token: %w", err)
	}
	claims.ProtoV2 = v2
	claims.AllowUpdate = true
	if change != nil {
		change(claims)
	}

	signed, err := tokens.SignToken(claims, c.issuer)
	if err != nil {
		return "", fmt.Errorf("provisioning token: %w", err)
	}

	return signed, nil
}

// tls makes a certificate authority and a certificate for this host's loopback
// addresses. The authority's key is thrown away.
func (c *credentials) tls() (ca, certificate, key string, err error) {
	authority := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "simulated network authority"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(validity),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	authorityKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", "", "", fmt.Errorf("certificate authority: %w", err)
	}
	authorityDER, err := x509.CreateCertificate(rand.Reader, authority, authority, authorityKey.Public(), authorityKey)
	if err != nil {
		return "", "", "", fmt.Errorf("certificate authority: %w", err)
	}

	broker := &x509.Certificate{
		SerialNumber: big.NewInt(2),
		Subject:      pkix.Name{CommonName: brokerIdentity},
		NotBefore:    authority.NotBefore,
		NotAfter:     authority.NotAfter,
		DNSNames:     []string{brokerIdentity},
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	brokerKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", "", "", fmt.Errorf("broker certificate: %w", err)
	}
	brokerDER, err := x509.CreateCertificate(rand.Reader, broker, authority, brokerKey.Public(), authorityKey)
	if err != nil {
		return "", "", "", fmt.Errorf("broker certificate: %w", err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(brokerKey)
	if err != nil {
		return "", "", "", fmt.Errorf("broker certificate: %w", err)
	}

	for _, file := range []struct {
		path  *string
		name  string
		block pem.Block
	}{
		{&ca, "ca.pem", pem.Block{Type: "CERTIFICATE", Bytes: authorityDER}},
		{&certificate, "broker.pem", pem.Block{Type: "CERTIFICATE", Bytes: brokerDER}},
		{&key, "broker-key.pem", pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}},
	} {
		*file.path, err = c.write(file.name, pem.EncodeToMemory(&file.block))
		if err != nil {
			return "", "", "", err
		}
	}

	return ca, certificate, key, nil
}
