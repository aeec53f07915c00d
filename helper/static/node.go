package static

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/choria-provisioner/provisioner/helper/helperv1"
)

// node is what rules and templates see of a node, by the names they use. What
// is not known is absent, so that a template that needs it fails.
type node map[string]any

// fields are the names in a node. Those with a list hold these and no others,
// those with an empty one whatever the node sent.
func fields() map[string][]string {
	return map[string][]string{
		"identity":   nil,
		"version":    nil,
		"site":       nil,
		"facts":      {},
		"claims":     {},
		"extensions": {},
		"csr":        {"ssldir"},
		"ed25519":    {"directory", "public_key"},
	}
}

func readNode(req *helperv1.ConfigureNodeRequest) (node, error) {
	in := req.GetNode()
	facts, err := readObject("facts", in.GetFactsJson())
	if err != nil {
		return nil, err
	}
	claims, err := readObject("claims", in.GetProvisioningClaimsJson())
	if err != nil {
		return nil, err
	}
	extensions, _ := claims["extensions"].(map[string]any)
	if extensions == nil {
		extensions = map[string]any{}
	}

	n := node{
		"identity":   in.GetIdentity(),
		"version":    in.GetVersion(),
		"site":       req.GetContext().GetSite(),
		"facts":      facts,
		"claims":     claims,
		"extensions": extensions,
	}
	if c := in.GetCsr(); c != nil {
		n["csr"] = map[string]any{"ssldir": c.GetSsldir()}
	}
	if k := in.GetEd25519(); k != nil {
		n["ed25519"] = map[string]any{"directory": k.GetDirectory(), "public_key": k.GetPublicKey()}
	}

	return n, nil
}

// readObject reads a JSON object, keeping numbers as they were written.
func readObject(what string, text []byte) (map[string]any, error) {
	object := map[string]any{}
	if len(text) == 0 {
		return object, nil
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&object); err != nil {
		return nil, fmt.Errorf("the node's %s are no JSON object: %w", what, err)
	}
	dropNulls(object)

	return object, nil
}

// dropNulls makes what is null absent: a template would print it as "<no value>".
func dropNulls(v any) {
	switch v := v.(type) {
	case map[string]any:
		for k, child := range v {
			if child == nil {
				delete(v, k)
			}
			dropNulls(child)
		}
	case []any:
		for i, child := range v {
			if child == nil {
				v[i] = ""
			}
			dropNulls(child)
		}
	}
}
