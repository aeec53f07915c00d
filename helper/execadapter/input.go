package execadapter

import (
	"encoding/json"
	"errors"

	"github.com/choria-provisioner/provisioner/helper/helperv1"
)

// input is a node as the older helpers read it. What belongs to a feature that
// is off is null, never absent.
type input struct {
	Identity  string          `json:"identity"`
	CSR       *csr            `json:"csr"`
	ED25519   *ed25519Key     `json:"ed25519_pubkey"`
	Inventory string          `json:"inventory"`
	JWT       json.RawMessage `json:"jwt"`
}

type csr struct {
	CSR       string `json:"csr"`
	PublicKey string `json:"public_key"`
	SSLDir    string `json:"ssldir"`
}

type ed25519Key struct {
	PublicKey string `json:"public_key"`
	Directory string `json:"directory"`
	Signature string `json:"signature"`
}

func encodeNode(n *helperv1.Node) ([]byte, error) {
	in := input{Identity: n.GetIdentity(), Inventory: string(n.GetInventoryJson())}
	if c := n.GetCsr(); c != nil {
		in.CSR = &csr{CSR: c.GetCsrPem(), PublicKey: c.GetPublicKeyPem(), SSLDir: c.GetSsldir()}
	}
	if k := n.GetEd25519(); k != nil {
		in.ED25519 = &ed25519Key{PublicKey: k.GetPublicKey(), Directory: k.GetDirectory(), Signature: k.GetSignature()}
	}
	if claims := n.GetRawClaimsJson(); len(claims) > 0 {
		if !json.Valid(claims) {
			return nil, errors.New("raw_claims_json is no JSON")
		}
		in.JWT = claims
	}

	return json.Marshal(in)
}
