package execadapter

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/choria-provisioner/provisioner/helper"
	"github.com/choria-provisioner/provisioner/helper/helperv1"
)

// output is what the older helpers write. All keys are optional, null is
// absent, and keys that are not here are ignored.
type output struct {
	Defer          bool                       `json:"defer"`
	Shutdown       bool                       `json:"shutdown"`
	Msg            string                     `json:"msg"`
	Key            string                     `json:"key"`
	Certificate    string                     `json:"certificate"`
	CA             string                     `json:"ca"`
	SSLDir         string                     `json:"ssldir"`
	ServerClaims   *serverClaims              `json:"server_claims"`
	Configuration  map[string]json.RawMessage `json:"configuration"`
	ActionPolicies map[string]json.RawMessage `json:"action_policies"`
	OPAPolicies    map[string]json.RawMessage `json:"opa_policies"`
	Upgrade        string                     `json:"upgrade"`
}

// serverClaims are the claims of tokens.ServerClaims that a helper may set.
type serverClaims struct {
	// Exp is a NumericDate (RFC 7519), a number or a number in quotes.
	Exp         json.Number     `json:"exp"`
	Permissions json.RawMessage `json:"permissions"`
	OU          string          `json:"ou"`
	Collectives []string        `json:"collectives"`
	PubSubjects []string        `json:"pub_subjects"`
}

// decodeReply reads what a program wrote: one JSON object and nothing else.
func decodeReply(b []byte) (*helperv1.ConfigureNodeResponse, error) {
	var out output
	if err := json.Unmarshal(b, &out); err != nil {
		return nil, describe(b, err)
	}

	switch {
	case out.Defer:
		return helper.Defer(out.Msg, 0), nil
	case out.Shutdown:
		return helper.Shutdown(out.Msg), nil
	}

	c := &helperv1.Configure{
		CertificatePem: out.Certificate,
		CaPem:          out.CA,
		PrivateKeyPem:  out.Key,
		Ssldir:         out.SSLDir,
		Version:        out.Upgrade,
		Reason:         out.Msg,
	}

	var errs [4]error
	c.Configuration, errs[0] = texts("configuration", out.Configuration)
	c.ActionPolicies, errs[1] = texts("action_policies", out.ActionPolicies)
	c.OpaPolicies, errs[2] = texts("opa_policies", out.OPAPolicies)
	c.ServerClaims, errs[3] = out.ServerClaims.claims()
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}

	return helper.ConfigureWith(c), nil
}

// describe says what is wrong with a document in the words of its author.
func describe(b []byte, err error) error {
	var wrong *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &wrong) && wrong.Field == "":
		return fmt.Errorf("its output is of type %s, not object", wrong.Value)
	case errors.As(err, &wrong):
		return fmt.Errorf("%s in its output is of type %s, not %s", wrong.Field, wrong.Value, jsonType(wrong.Type))
	case errors.As(err, &syntax):
		rest := b[min(max(int(syntax.Offset)-1, 0), len(b)):]
		const enough = 32
		if len(rest) > enough {
			rest = rest[:enough]
		}
		return fmt.Errorf("its output is not one JSON document: %w at byte %d: %q", err, syntax.Offset, rest)
	}

	return err
}

// jsonType names a Go type as JSON does.
func jsonType(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Slice:
		return "array"
	case reflect.Map, reflect.Struct, reflect.Pointer:
		return "object"
	}

	return t.Kind().String()
}

// texts reads a map of strings. A null is the empty string, as it always was;
// anything else that is no string is refused with its key.
func texts(field string, in map[string]json.RawMessage) (map[string]string, error) {
	var errs []error
	out := make(map[string]string, len(in))
	for _, k := range slices.Sorted(maps.Keys(in)) {
		var s string
		if err := json.Unmarshal(in[k], &s); err != nil {
			errs = append(errs, fmt.Errorf("the value of %q in %s is of type %s, not string: put it in quotes", k, field, kind(in[k])))
		}
		out[k] = s
	}

	return out, errors.Join(errs...)
}

// kind names the type of a JSON value.
func kind(raw json.RawMessage) string {
	switch raw[0] {
	case '{':
		return "object"
	case '[':
		return "array"
	case 't', 'f':
		return "bool"
	}

	return "number"
}

func (c *serverClaims) claims() (*helperv1.ServerClaims, error) {
	if c == nil {
		return nil, nil
	}

	out := &helperv1.ServerClaims{Ou: c.OU, Collectives: c.Collectives, PubSubjects: c.PubSubjects}
	if c.Exp != "" {
		seconds, err := c.Exp.Float64()
		if err != nil || seconds < 0 || seconds > float64(time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC).Unix()) {
			return nil, fmt.Errorf("server_claims.exp is %s, not seconds since 1970", c.Exp)
		}
		out.ExpiresAt = int64(seconds)
	}
	if p := bytes.TrimSpace(c.Permissions); len(p) > 0 && string(p) != "null" {
		if p[0] != '{' {
			return nil, fmt.Errorf("server_claims.permissions is of type %s, not object", kind(p))
		}
		out.PermissionsJson = p
	}

	return out, nil
}
