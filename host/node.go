package host

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"filippo.io/edwards25519"

	"github.com/choria-provisioner/provisioner/helper/helperv1"
	"github.com/choria-provisioner/provisioner/version/ledger"
)

// nonceSize is the length of the nonce a node signs, in bytes before it is
// written in hex; the published schema allows 64 characters.
const nonceSize = 32

// node is what one pass learned of its node.
type node struct {
	// rawClaims are the claims of the provisioning JWT as the node sent them,
	// claims the same without the provision token; both JSON objects.
	rawClaims  []byte
	claims     []byte
	ecdhPublic []byte

	publicKey ed25519.PublicKey
	directory string
	signature []byte

	inventory  []byte
	facts      []byte
	version    string
	upgradable bool
	// lockFree tells that the node's update lock was free before its inventory.
	lockFree bool
	// record is what the ledger remembers of it.
	record ledger.Record

	csr *helperv1.CSR

	// jwtID and certificateSerial are of what was made for the node.
	jwtID             string
	certificateSerial string
}

// message is the node as a helper sees it. Only a helper that may have them is
// given the raw claims, with the token in them.
func (n *node) message(h *Host) *helperv1.Node {
	m := &helperv1.Node{
		Identity:               h.identity,
		Version:                n.version,
		Upgradable:             n.upgradable,
		InventoryJson:          n.inventory,
		FactsJson:              n.facts,
		Csr:                    n.csr,
		ProvisioningClaimsJson: n.claims,
	}
	if n.publicKey != nil {
		m.Ed25519 = &helperv1.Ed25519Key{
			PublicKey: hex.EncodeToString(n.publicKey),
			Directory: n.directory,
			Signature: hex.EncodeToString(n.signature),
		}
	}
	if h.cfg.Helper.Has(helperv1.Capability_CAPABILITY_RAW_CLAIMS) {
		m.RawClaimsJson = n.rawClaims
	}

	return m
}

// provisionsByDefault tells whether the node's provisioning JWT makes it wait in
// provisioning mode unless its configuration says otherwise (go-choria, choria,
// ProvisionMode). Without the feature jwt that is not known.
func (n *node) provisionsByDefault() bool {
	var claims struct {
		Default bool `json:"chpd"`
	}

	return json.Unmarshal(n.rawClaims, &claims) == nil && claims.Default
}

// fetchKey makes the node generate its ed25519 key and prove that it holds the
// seed.
func (h *Host) fetchKey(ctx context.Context, n *node) error {
	random := make([]byte, nonceSize)
	if _, err := rand.Read(random); err != nil {
		return fmt.Errorf("could not make a nonce: %w", err)
	}
	nonce := hex.EncodeToString(random)

	return h.call(ctx, Request{Action: ActionGen25519, Nonce: nonce}, func(r Reply) (err error) {
		n.publicKey, n.signature, n.directory, err = readKey(r.Data, nonce)
		return err
	})
}

// readKey reads the reply to gen25519 and checks that the key signed the nonce.
func readKey(data []byte, nonce string) (key ed25519.PublicKey, signature []byte, directory string, err error) {
	var reply struct {
		PublicKey string `json:"public_key"`
		Directory string `json:"directory"`
		Signature string `json:"signature"`
	}
	if err := json.Unmarshal(data, &reply); err != nil {
		return nil, nil, "", fmt.Errorf("invalid reply: %w", err)
	}

	key, err = decodeHex("public key", reply.PublicKey, ed25519.PublicKeySize)
	if err != nil {
		return nil, nil, "", err
	}
	signature, err = decodeHex("signature of the nonce", reply.Signature, ed25519.SignatureSize)
	if err != nil {
		return nil, nil, "", err
	}
	if !ed25519.Verify(key, []byte(nonce), signature) {
		return nil, nil, "", fmt.Errorf("the signature of the nonce is not that of the public key %x", key)
	}
	if isWeak(key) {
		return nil, nil, "", fmt.Errorf("the public key %x is weak: anybody could sign for it", key)
	}
	if reply.Directory == "" {
		return nil, nil, "", errors.New("the reply names no directory for the key")
	}
	if err := checkDirectory(reply.Directory); err != nil {
		return nil, nil, "", fmt.Errorf("directory: %w", err)
	}

	return key, signature, reply.Directory, nil
}

// isWeak tells whether key is one of the few of a small order, for which a
// signature fits many messages and proves nothing (RFC 8032, 8.9).
func isWeak(key ed25519.PublicKey) bool {
	point, err := new(edwards25519.Point).SetBytes(key)

	return err != nil || new(edwards25519.Point).MultByCofactor(point).Equal(edwards25519.NewIdentityPoint()) == 1
}

// fetchInventory fetches facts and version.
func (h *Host) fetchInventory(ctx context.Context, n *node) error {
	return h.call(ctx, Request{Action: ActionInventory}, func(r Reply) (err error) {
		n.facts, n.version, n.upgradable, err = readInventory(r.Data)
		n.inventory = r.Data
		return err
	})
}

// readInventory reads the reply to inventory. The facts are a JSON object, or
// nil where there are none.
func readInventory(data []byte) (facts []byte, version string, upgradable bool, err error) {
	var reply struct {
		Facts      json.RawMessage `json:"facts"`
		Version    string          `json:"version"`
		Upgradable bool            `json:"upgradable"`
	}
	if err := json.Unmarshal(data, &reply); err != nil {
		return nil, "", false, fmt.Errorf("invalid inventory: %w", err)
	}

	switch {
	case len(reply.Facts) == 0, string(reply.Facts) == "null":
	case reply.Facts[0] == '{':
		facts = reply.Facts
	default:
		return nil, "", false, errors.New("invalid inventory: its facts are no JSON object")
	}

	return facts, reply.Version, reply.Upgradable, nil
}

// decodeHex reads the hex of exactly size bytes.
func decodeHex(what, s string, size int) ([]byte, error) {
	if len(s) != 2*size {
		return nil, fmt.Errorf("the %s has %d characters, not the %d of %d bytes in hex", what, len(s), 2*size, size)
	}
	b, err := hex.DecodeString(s)
	if err != nil {
		return nil, fmt.Errorf("the %s is no hex: %w", what, err)
	}

	return b, nil
}
