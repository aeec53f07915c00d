package host

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/choria-io/tokens"
	"github.com/golang-jwt/jwt/v5"
)

// tokenClaim is the claim of a provisioning JWT that holds the provision token
// (github.com/choria-io/tokens, ProvisioningClaims); userClaim and passwordClaim
// are broker credentials.
const (
	tokenClaim    = "cht"
	userClaim     = "chusr"
	passwordClaim = "chpwd"
)

// fetchJWT fetches the node's provisioning JWT, verifies it, and keeps its ECDH
// public key.
func (h *Host) fetchJWT(ctx context.Context, n *node) error {
	// Read for each node, so that a rotation needs no restart; and before the
	// call, for a key of ours that cannot be read is no fault of the node.
	key, err := readVerifyKey(h.cfg.JWTVerifyCert)
	if err != nil {
		return fmt.Errorf("jwt_verify_cert: %w", err)
	}

	return h.call(ctx, Request{Action: ActionJWT}, func(r Reply) (err error) {
		n.rawClaims, n.claims, n.ecdhPublic, err = readJWT(r.Data, key)
		return err
	})
}

// readJWT reads the reply to jwt: the claims of the verified provisioning JWT,
// the same without secrets, and the node's ECDH public key.
func readJWT(data []byte, key any) (raw, claims, ecdh []byte, err error) {
	var reply struct {
		JWT        string `json:"jwt"`
		ECDHPublic string `json:"ecdh_public"`
	}
	if err := json.Unmarshal(data, &reply); err != nil {
		return nil, nil, nil, fmt.Errorf("invalid reply: %w", err)
	}
	token := strings.TrimSpace(reply.JWT)
	if token == "" {
		return nil, nil, nil, errors.New("the node sent no provisioning JWT")
	}

	if _, err := tokens.ParseProvisioningToken(token, key); err != nil {
		return nil, nil, nil, fmt.Errorf("the node's provisioning JWT is refused: %w", err)
	}
	raw, claims, err = claimsOf(token)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("the node's provisioning JWT is refused: %w", err)
	}
	ecdh, err = decodeHex("ECDH public key", reply.ECDHPublic, 32)
	if err != nil {
		return nil, nil, nil, err
	}

	return raw, claims, ecdh, nil
}

// claimsOf returns the claims of a verified token as they stand in it, and the
// same without its secrets.
func claimsOf(token string) (raw, stripped []byte, err error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return nil, nil, errors.New("not a JWT")
	}
	raw, err = base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return nil, nil, fmt.Errorf("invalid claims: %w", err)
	}
	claims := map[string]json.RawMessage{}
	if err := json.Unmarshal(raw, &claims); err != nil {
		return nil, nil, fmt.Errorf("invalid claims: %w", err)
	}
	for name := range claims {
		switch strings.ToLower(name) {
		case tokenClaim, userClaim, passwordClaim:
			delete(claims, name)
		}
	}
	stripped, err = json.Marshal(claims)

	return raw, stripped, err
}

// readVerifyKey reads the key that provisioning JWTs are verified with: an
// existing file (PEM certificate or RSA public key, or a hex ed25519 public
// key) wins, else s is itself a hex ed25519 public key.
func readVerifyKey(s string) (any, error) {
	data, err := os.ReadFile(s)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrInvalid) {
		if key, herr := hex.DecodeString(s); herr == nil && len(key) == ed25519.PublicKeySize {
			return ed25519.PublicKey(key), nil
		}
	}
	if err != nil {
		return nil, err
	}

	data = bytes.TrimSpace(data)
	if bytes.HasPrefix(data, []byte("-----BEGIN")) {
		key, err := jwt.ParseRSAPublicKeyFromPEM(data)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s, err)
		}
		return key, nil
	}
	key, err := decodeHex("ed25519 public key", string(data), ed25519.PublicKeySize)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s, err)
	}

	return ed25519.PublicKey(key), nil
}
