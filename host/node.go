package host

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/choria-provisioner/provisioner/helper/helperv1"
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

	csr *helperv1.CSR
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

// fetchKey makes the node generate its ed25519 key and prove that it holds the
// seed.
func (h *Host) fetchKey(ctx context.Context, n *node) error {
	random := make([]byte, nonceSize)
	if _, err := rand.Read(random); err != nil {
		return fmt.Errorf("could not make a nonce: %w", err)
	}
	nonce := hex.EncodeToString(random)

	return h.call(ctx, Request{Action: ActionGen25519, Nonce: nonce}, func(r Reply) error {
		var reply struct {
			PublicKey string `json:"public_key"`
			Directory string `json:"directory"`
			Signature string `json:"signature"`
		}
		if err := json.Unmarshal(r.Data, &reply); err != nil {
			return fmt.Errorf("invalid reply: %w", err)
		}

		key, err := decodeHex("public key", reply.PublicKey, ed25519.PublicKeySize)
		if err != nil {
			return err
		}
		signature, err := decodeHex("signature of the nonce", reply.Signature, ed25519.SignatureSize)
		if err != nil {
			return err
		}
		if !ed25519.Verify(key, []byte(nonce), signature) {
			return fmt.Errorf("the signature of the nonce is not that of the public key %s", reply.PublicKey)
		}
		if reply.Directory == "" {
			return fmt.Errorf("the reply names no directory for the key")
		}

		n.publicKey, n.signature, n.directory = key, signature, reply.Directory
		return nil
	})
}

// fetchInventory fetches facts and version.
func (h *Host) fetchInventory(ctx context.Context, n *node) error {
	return h.call(ctx, Request{Action: ActionInventory}, func(r Reply) error {
		var reply struct {
			Facts      json.RawMessage `json:"facts"`
			Version    string          `json:"version"`
			Upgradable bool            `json:"upgradable"`
		}
		if err := json.Unmarshal(r.Data, &reply); err != nil {
			return fmt.Errorf("invalid inventory: %w", err)
		}

		n.inventory, n.version, n.upgradable = r.Data, reply.Version, reply.Upgradable
		if n.facts = reply.Facts; string(n.facts) == "null" {
			n.facts = nil
		}
		return nil
	})
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
