package helper_test

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/choria-provisioner/provisioner/helper"
	"github.com/choria-provisioner/provisioner/helper/helperv1"
)

func TestCheckAnswer(t *testing.T) {
	with := func(change func(*helperv1.Configure)) *helperv1.ConfigureNodeResponse {
		c := &helperv1.Configure{Configuration: map[string]string{"plugin.choria.server.provision": "false", "empty": ""}}
		change(c)
		return helper.ConfigureWith(c)
	}
	set := func(k, v string) *helperv1.ConfigureNodeResponse {
		return with(func(c *helperv1.Configure) { c.Configuration[k] = v })
	}
	cases := []struct {
		why    string
		answer *helperv1.ConfigureNodeResponse
		want   string
	}{
		{"a good one", with(func(*helperv1.Configure) {}), ""},
		{"nothing decided is no decision", &helperv1.ConfigureNodeResponse{}, "it holds no decision"},
		{"nor is no answer", nil, "it holds no decision"},
		{"an empty configuration would leave the node with none", helper.Configure(nil), "configuration: it is empty"},
		{"a key that is not there", set(" ", "x"), "configuration: there is an empty key"},
		{"a value that injects a line", set("site", "a\nb"), `configuration: key "site": a line break would add a line`},
		{"and by a carriage return", set("site", "a\rb"), `configuration: key "site": a line break would add a line`},
		{"a key that injects one", set("a\nb", ""), `configuration: key "a\nb": a line break would add a line`},
		{"a key that is read as a comment", set(" #a", "b"), `configuration: key " #a": the node would read it as a comment`},
		{"a line that a node does not read", set("a", strings.Repeat("x", 64<<10)), `configuration: key "a": its line would have 65538 bytes`},
		{"a key that is read as another", set("a=b", ""), `configuration: key "a=b": a key cannot hold an equals sign`},
		{"the node would refuse to restart", set("plugin.choria.server.provision", " Yes"), `configuration: key "plugin.choria.server.provision": " Yes" leaves provisioning on`},
		{"the agent aborts after it wrote the configuration", with(func(c *helperv1.Configure) { c.ActionPolicies = map[string]string{"rpcutil": ""} }), `action_policies: "rpcutil" must end in .policy`},
		{"of both kinds", with(func(c *helperv1.Configure) { c.OpaPolicies = map[string]string{".rego": ""} }), `opa_policies: ".rego" must end in .rego`},
		{"a way out of the folder", with(func(c *helperv1.Configure) { c.OpaPolicies = map[string]string{"../a.rego": ""} }), `opa_policies: "../a.rego" must be a file name`},
		{"a permission is a boolean", with(func(c *helperv1.Configure) {
			c.ServerClaims = &helperv1.ServerClaims{PermissionsJson: []byte(`["streams"]`)}
		}), "server_claims: permissions_json is no JSON object of booleans"},
		{"a time long gone", with(func(c *helperv1.Configure) { c.ServerClaims = &helperv1.ServerClaims{ExpiresAt: -1} }), "server_claims: expires_at is -1"},
		{"all that is wrong is said", with(func(c *helperv1.Configure) {
			c.Configuration, c.ActionPolicies = nil, map[string]string{"a": ""}
		}), "configuration: it is empty\naction_policies: \"a\" must end in .policy"},
		{"deferred", helper.Defer("", 0), ""},
		{"deferred to the past", &helperv1.ConfigureNodeResponse{Decision: &helperv1.ConfigureNodeResponse_Defer{Defer: &helperv1.Defer{RetryAfter: durationpb.New(-1)}}}, "defer: retry_after is"},
		{"shut down", helper.Shutdown(""), ""},
	}

	for _, c := range cases {
		t.Run(c.why, func(t *testing.T) {
			err := helper.CheckAnswer(c.answer)
			if (err == nil) != (c.want == "") || err != nil && !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
