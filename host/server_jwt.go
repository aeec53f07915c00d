package host

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/choria-io/tokens"
	"github.com/golang-jwt/jwt/v5"

	"github.com/choria-provisioner/provisioner/helper/helperv1"
)

// serverJWTIssuer names the issuer of server JWTs that have no trust chain.
const serverJWTIssuer = "Choria Provisioner"

// serverJWT signs the token that lets the node into the main account. The
// signing key and token are read for each node, so that a rotation needs no
// restart.
func (h *Host) serverJWT(c *helperv1.Configure, n *node) (string, error) {
	key, err := readSigningKey(h.cfg.JWTSigningKey)
	if err != nil {
		return "", fmt.Errorf("jwt_signing_key: %w", err)
	}

	wish := c.ServerClaims
	if wish == nil {
		wish = &helperv1.ServerClaims{}
	}
	validity := h.cfg.ServerJWTValidity
	if wish.ExpiresAt != 0 {
		if validity = time.Until(time.Unix(wish.ExpiresAt, 0)); validity <= 0 {
			return "", fmt.Errorf("the helper's server claims have expired: exp is %s", time.Unix(wish.ExpiresAt, 0).UTC().Format(time.RFC3339))
		}
	}
	var permissions *tokens.ServerPermissions
	if len(wish.PermissionsJson) > 0 {
		permissions = &tokens.ServerPermissions{}
		if err := json.Unmarshal(wish.PermissionsJson, permissions); err != nil {
			return "", fmt.Errorf("the helper's server permissions cannot be read: %w", err)
		}
	}

	claims, err := tokens.NewServerClaims(h.identity, serverCollectives(wish, c.Configuration), wish.Ou, permissions, wish.PubSubjects, n.publicKey, serverJWTIssuer, validity)
	if err != nil {
		return "", err
	}
	if h.cfg.JWTSigningToken != "" {
		if err := addTrustChain(claims, h.cfg.JWTSigningToken, key); err != nil {
			return "", fmt.Errorf("jwt_signing_token: %w", err)
		}
	}

	n.jwtID = claims.ID

	return tokens.SignToken(claims, key)
}

// serverCollectives are the helper's, else those of the configuration, else the
// one that the node's security provider goes with.
func serverCollectives(wish *helperv1.ServerClaims, configuration map[string]string) []string {
	if len(wish.Collectives) > 0 {
		return wish.Collectives
	}

	var collectives []string
	for c := range strings.SplitSeq(configuration["collectives"], ",") {
		if c = strings.TrimSpace(c); c != "" {
			collectives = append(collectives, c)
		}
	}
	switch {
	case len(collectives) > 0:
		return collectives
	case configuration["plugin.security.provider"] == "choria":
		return []string{"choria"}
	default:
		return []string{"mcollective"}
	}
}

// addTrustChain makes claims verifiable with the organization issuer's key.
func addTrustChain(claims *tokens.ServerClaims, tokenFile string, key any) error {
	private, ok := key.(ed25519.PrivateKey)
	if !ok {
		return errors.New("a trust chain needs an ed25519 jwt_signing_key")
	}
	signer, err := readSigningToken(tokenFile)
	if err != nil {
		return err
	}

	return claims.AddChainIssuerData(signer, private)
}

// CheckSigningToken tells when the token expires that server JWTs are chained to
// the organization issuer with. An error says why none can be: then expires is
// that of the token if it could be read, else zero.
func CheckSigningToken(file string) (expires time.Time, err error) {
	signer, err := readSigningToken(file)
	if signer != nil {
		expires = signer.ExpireTime()
	}

	return expires, err
}

// readSigningToken reads a client token and refuses one that no server JWT can
// be chained with; that one is returned all the same.
func readSigningToken(file string) (*tokens.ClientIDClaims, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	signer, err := tokens.ParseClientIDTokenUnverified(strings.TrimSpace(string(data)))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if signer.TrustChainSignature == "" {
		return signer, fmt.Errorf("%s has no trust chain signature: it was not issued to sign servers", file)
	}
	if signer.IsExpired() {
		return signer, fmt.Errorf("%s expired at %s", file, signer.ExpireTime().UTC().Format(time.RFC3339))
	}

	return signer, nil
}

// readSigningKey reads a hex ed25519 seed or a PEM RSA private key.
func readSigningKey(file string) (any, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}

	data = bytes.TrimSpace(data)
	if bytes.HasPrefix(data, []byte("-----BEGIN")) {
		key, err := jwt.ParseRSAPrivateKeyFromPEM(data)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		return key, nil
	}
	seed, err := decodeHex("ed25519 seed", string(data), ed25519.SeedSize)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}

	return ed25519.NewKeyFromSeed(seed), nil
}

// parseRSA reads a PKCS #8 RSA private key.
func parseRSA(der []byte) (*rsa.PrivateKey, error) {
	parsed, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, errors.New("it is neither a PKCS #1 nor a PKCS #8 private key")
	}
	key, ok := parsed.(*rsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("it is a %T, nodes take RSA keys", parsed)
	}

	return key, nil
}
