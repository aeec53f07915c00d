package execadapter

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/choria-provisioner/provisioner/helper"
	"github.com/choria-provisioner/provisioner/helper/helperv1"
)

func TestDecodeReply(t *testing.T) {
	cases := []struct {
		why  string
		in   string
		want *helperv1.ConfigureNodeResponse
	}{
		{"every key finds its place",
			`{"msg":"m","key":"K","certificate":"C","ca":"A","ssldir":"/s","upgrade":"1.2","configuration":{"a":"b"},"action_policies":{"x.policy":"p"},"opa_policies":{"x.rego":"r"}}`,
			helper.ConfigureWith(&helperv1.Configure{
				Reason: "m", PrivateKeyPem: "K", CertificatePem: "C", CaPem: "A", Ssldir: "/s", Version: "1.2",
				Configuration: map[string]string{"a": "b"}, ActionPolicies: map[string]string{"x.policy": "p"}, OpaPolicies: map[string]string{"x.rego": "r"},
			})},
		{"server claims as sites send them",
			`{"server_claims":{"exp":1700000000,"permissions":{"streams":true},"ou":"o","collectives":["c"],"pub_subjects":["s"],"purpose":"x"}}`,
			helper.ConfigureWith(&helperv1.Configure{ServerClaims: &helperv1.ServerClaims{
				ExpiresAt: 1700000000, PermissionsJson: []byte(`{"streams":true}`), Ou: "o", Collectives: []string{"c"}, PubSubjects: []string{"s"},
			}})},
		{"a time with a fraction, as Python and Ruby write them", `{"server_claims":{"exp":1700000000.75}}`,
			helper.ConfigureWith(&helperv1.Configure{ServerClaims: &helperv1.ServerClaims{ExpiresAt: 1700000000}})},
		{"a number in quotes is a number to the older one", `{"server_claims":{"exp":"1.7e9","permissions":null}}`,
			helper.ConfigureWith(&helperv1.Configure{ServerClaims: &helperv1.ServerClaims{ExpiresAt: 1700000000}})},
		{"defer wins over shutdown and over what could not be read", `{"defer":true,"shutdown":true,"configuration":{"a":1}}`, helper.Defer("", 0)},
		{"shutdown wins over a configuration", `{"shutdown":true,"msg":"m","configuration":{"a":"b"}}`, helper.Shutdown("m")},
		{"keys match without case, as they always did", `{"Configuration":{"a":"b"}}`, helper.Configure(map[string]string{"a": "b"})},
	}

	for _, c := range cases {
		t.Run(c.why, func(t *testing.T) {
			got, err := decodeReply([]byte(c.in))
			if err != nil || !proto.Equal(got, c.want) {
				t.Errorf("got %v, %v, want %v", got, err, c.want)
			}
		})
	}
}

func TestDecodeReplyRefuses(t *testing.T) {
	cases := []struct{ in, want string }{
		{`[]`, "its output is of type array, not object"},
		{`{"configuration":[]}`, "configuration in its output is of type array, not object"},
		{`{"configuration":{"b":[1],"a":true}}`, "the value of \"a\" in configuration is of type bool, not string: put it in quotes\nthe value of \"b\" in configuration is of type array, not string: put it in quotes"},
		{`{"opa_policies":{"a":{}}}`, `the value of "a" in opa_policies is of type object, not string: put it in quotes`},
		{`{"server_claims":{"exp":-1}}`, "server_claims.exp is -1, not seconds since 1970"},
		{`{"server_claims":{"exp":1e300}}`, "server_claims.exp is 1e300, not seconds since 1970"},
		{`{"server_claims":{"permissions":[]}}`, "server_claims.permissions is of type array, not object"},
		{`{"server_claims":{"collectives":"c"}}`, "server_claims.collectives in its output is of type string, not array"},
		{`{"a":`, `its output is not one JSON document: unexpected end of JSON input at byte 5: ":"`},
	}

	for _, c := range cases {
		t.Run(c.in, func(t *testing.T) {
			got, err := decodeReply([]byte(c.in))
			if err == nil || err.Error() != c.want {
				t.Errorf("got %v, %v, want %q", got, err, c.want)
			}
		})
	}
}

func FuzzDecodeReply(f *testing.F) {
	f.Add([]byte(`{"configuration":{"a":"b"},"server_claims":{"exp":1}}`))
	f.Add([]byte(`{"configuration":{"a": 1 }}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		resp, err := decodeReply(b)
		if (resp == nil) == (err == nil) {
			t.Errorf("got %v, %v", resp, err)
		}
	})
}
