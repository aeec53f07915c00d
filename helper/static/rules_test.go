package static

import (
	"encoding/json"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/choria-provisioner/provisioner/helper"
	"github.com/choria-provisioner/provisioner/helper/helperv1"
)

func config(t *testing.T, text string) *structpb.Struct {
	t.Helper()
	c := &structpb.Struct{}
	if err := protojson.Unmarshal([]byte(text), c); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}

	return c
}

// ask configures a helper with rules and asks it for a node.
func ask(t *testing.T, rules string, change func(*helperv1.ConfigureNodeRequest)) (*helperv1.ConfigureNodeResponse, error) {
	t.Helper()
	p := Plugin("1")
	c := config(t, rules)
	if _, err := p.Validate(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if err := p.Configure(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	req := &helperv1.ConfigureNodeRequest{
		RequestId: "r1",
		Context:   &helperv1.Context{Site: "emea"},
		Node: &helperv1.Node{
			Identity:               "web1.lon.example.net",
			Version:                "0.30.2",
			FactsJson:              []byte(`{"site":"lon1","os":{"family":"debian","release":"12"},"dotted.key":"d","cores":8,"ratio":1.10,"virtual":true,"groups":["web","edge"],"nothing":null,"list":[null,"a"]}`),
			ProvisioningClaimsJson: []byte(`{"iss":"x","extensions":{"team":"web","tier":1}}`),
			Ed25519:                &helperv1.Ed25519Key{PublicKey: "aabb", Directory: "/etc/choria"},
		},
	}
	if change != nil {
		change(req)
	}

	return p.ConfigureNode(t.Context(), req)
}

func TestMatch(t *testing.T) {
	cases := []struct {
		why   string
		match string
		want  bool
	}{
		{"no condition is every node", `{}`, true},
		{"identity by name", `{"identity":"web1.lon.example.net"}`, true},
		{"names are compared exactly", `{"identity":"WEB1.lon.example.net"}`, false},
		{"a name is no pattern", `{"identity":"web1.lon.example"}`, false},
		{"one of several", `{"identity":["a","web1.lon.example.net"]}`, true},
		{"a pattern", `{"identity":"/^web\\d+\\.lon\\./"}`, true},
		{"a pattern that ends elsewhere", `{"identity":"/^lon/"}`, false},
		{"a path that is no pattern", `{"identity":"/"}`, false},
		{"version", `{"version":"0.30.2"}`, true},
		{"a fact", `{"facts":{"site":"lon1"}}`, true},
		{"an inner fact", `{"facts":{"os.family":["redhat","debian"]}}`, true},
		{"a fact with a dot in its name", `{"facts":{"dotted.key":"d"}}`, true},
		{"a number", `{"facts":{"cores":8}}`, true},
		{"a number as it was written", `{"facts":{"ratio":"1.10"}}`, true},
		{"and not as it counts", `{"facts":{"ratio":"1.1"}}`, false},
		{"a boolean", `{"facts":{"virtual":true}}`, true},
		{"an element of a list", `{"facts":{"groups":"edge"}}`, true},
		{"a fact that is not there is not empty", `{"facts":{"absent":""}}`, false},
		{"nor is one that is null", `{"facts":{"nothing":["","null","/.*/"]}}`, false},
		{"an object is no text", `{"facts":{"os":"/.*/"}}`, false},
		{"through a text there is no way", `{"facts":{"site.a":"/.*/"}}`, false},
		{"an extension", `{"extensions":{"team":"web","tier":1}}`, true},
		{"all conditions must hold", `{"identity":"/web/","extensions":{"team":"db"}}`, false},
	}

	for _, c := range cases {
		t.Run(c.why, func(t *testing.T) {
			got, err := ask(t, `{"rules":[{"name":"it","match":`+c.match+`,"defer":{}}]}`, nil)
			if c.want && !proto.Equal(got, helper.Defer("", 0)) || !c.want && status.Code(err) != codes.NotFound {
				t.Errorf("got %v, %v", got, err)
			}
		})
	}
}

func TestDecisions(t *testing.T) {
	const defaults = `"defaults":{"configuration":{"identity":"{{.identity}}","plugin.choria.server.provision":false,"registerinterval":300,"loglevel":"info"},
		"action_policies":{"a.policy":"below"},"server_claims":{"ou":"choria","collectives":["mcollective","{{.facts.site}}"],"permissions":{"streams":true,"fleet_management":false}}},`
	cases := []struct {
		why   string
		rules string
		want  *helperv1.ConfigureNodeResponse
	}{
		{"the first that matches", `{"rules":[{"name":"a","match":{"facts":{"site":"nyc"}},"defer":{}},{"name":"b","match":{"facts":{"site":"lon1"}},"shutdown":{"reason":"{{.facts.site}} closes"}},{"name":"c","defer":{}}]}`,
			helper.Shutdown("lon1 closes")},
		{"deferred for a time", `{"rules":[{"name":"a","defer":{"reason":"no rack for {{.identity}}","retry_after":"10m"}}]}`,
			helper.Defer("no rack for web1.lon.example.net", 600e9)},
		{"the rule's values over the defaults", `{` + defaults + `"rules":[{"name":"web","configure":{"configuration":{"loglevel":"debug","site":"{{upper .site}}"},"action_policies":{"b.policy":"{{above}}"},"opa_policies":{"c.rego":"package c"},"ssldir":"{{.ed25519.directory}}/ssl"}}]}`,
			helper.ConfigureWith(&helperv1.Configure{
				Configuration: map[string]string{"identity": "web1.lon.example.net", "plugin.choria.server.provision": "false", "registerinterval": "300", "loglevel": "debug", "site": "EMEA"},
				// A policy is no template.
				ActionPolicies: map[string]string{"a.policy": "below", "b.policy": "{{above}}"},
				OpaPolicies:    map[string]string{"c.rego": "package c"},
				Ssldir:         "/etc/choria/ssl",
				ServerClaims:   &helperv1.ServerClaims{Ou: "choria", Collectives: []string{"mcollective", "lon1"}, PermissionsJson: []byte(`{"fleet_management":false,"streams":true}`)},
				Reason:         "rule web",
			})},
	}

	for _, c := range cases {
		t.Run(c.why, func(t *testing.T) {
			got, err := ask(t, c.rules, nil)
			if err != nil || !proto.Equal(got, c.want) {
				t.Errorf("got %v, %v\nwant %v", got, err, c.want)
			}
		})
	}
}

func TestTemplates(t *testing.T) {
	cases := []struct{ why, template, want, err string }{
		{"facts, inner ones too", `{{.facts.site}}-{{.facts.os.family}}`, "lon1-debian", ""},
		{"a number as it was written", `{{.facts.ratio}} {{.facts.cores}}`, "1.10 8", ""},
		{"a token's claims", `{{.extensions.team}} {{.claims.iss}}`, "web x", ""},
		{"a path beside a key", `{{.ed25519.directory}}/server.jwt`, "/etc/choria/server.jwt", ""},
		{"a choice", `{{if eq .facts.os.family "debian"}}apt{{else}}yum{{end}}`, "apt", ""},
		{"a list", `{{join "," .facts.groups}}`, "web,edge", ""},
		{"a list with a hole", `{{join "," .facts.list}}`, ",a", ""},
		{"a part of a name", `{{index (split "." .identity) 1}}`, "lon", ""},
		{"a value for when there is none", `{{get .facts "rack" "none"}} {{get .facts "dotted.key"}} {{get .facts "os.release" ""}}`, "none d 12", ""},
		{"range and with have a dot of their own", `{{range .facts.groups}}{{.}};{{end}}{{with .facts.os}}{{.family}}{{end}}`, "web;edge;debian", ""},
		{"a fact that is not there", `{{.facts.rack}}`, "", `rule "it": configuration "k": 1:8: executing "" at <.facts.rack>: map has no entry for key "rack"`},
		{"one that is null", `{{.facts.nothing}}`, "", `map has no entry for key "nothing"`},
		{"a feature that is off", `{{.csr.ssldir}}`, "", `map has no entry for key "csr"`},
		{"required by name", `{{get .facts "rack"}}`, "", `there is no "rack"`},
		{"taken by its key", `{{index .facts "rack"}}`, "", `there is no "rack"`},
		{"and printed", `{{printf "%s" (index .facts "os" "kernel")}}`, "", `there is no "kernel"`},
		{"beyond the end of a list", `{{index (split "." .identity) 9}}`, "", `there is no 9`},
		{"keys and places that are there", `{{index .facts "os" "family"}} {{index .facts "groups" 1}}`, "debian edge", ""},
		{"a line break out of a node's fact", `{{.facts.evil}}`, "", `rule "it": configuration: key "k": a line break would add a line`},
	}

	for _, c := range cases {
		t.Run(c.why, func(t *testing.T) {
			value, err := json.Marshal(c.template)
			if err != nil {
				t.Fatal(err)
			}
			got, err := ask(t, `{"rules":[{"name":"it","configure":{"configuration":{"k":`+string(value)+`}}}]}`, func(r *helperv1.ConfigureNodeRequest) {
				if strings.Contains(c.template, "evil") {
					r.Node.FactsJson = []byte(`{"evil":"a\nrpcauthorization = 0"}`)
				}
			})
			if c.err == "" && (err != nil || got.GetConfigure().GetConfiguration()["k"] != c.want) {
				t.Errorf("got %v, %v", got, err)
			}
			if c.err != "" && (status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("got %v, %v, want %q", got, err, c.err)
			}
		})
	}
}

// What is wrong with the rules is found before any node, with rule and key.
func TestRefused(t *testing.T) {
	rule := func(rest string) string { return `{"rules":[{"name":"web",` + rest + `}]}` }
	two := func(a, b string) string {
		return `{"rules":[{"name":"a","match":` + a + `,"defer":{}},{"name":"b","match":` + b + `,"defer":{}}]}`
	}
	cases := []struct{ why, config, want string }{
		{"nothing set", `{}`, "rules: there are none, so no node could be configured"},
		{"a misspelt key at the top", `{"rule":[]}`, `config: unknown field "rule"`},
		{"in a rule", rule(`"macth":{},"defer":{}`), `rule 1 "web": unknown key "macth"`},
		{"in a match", rule(`"match":{"fact":{}},"defer":{}`), `rule 1 "web": match: unknown key "fact"`},
		{"in the defaults", `{"defaults":{"config":{}},"rules":[{"name":"a","defer":{}}]}`, `defaults: unknown key "config"`},
		{"a wrong type", rule(`"configure":{"configuration":[]}`), `rule 1 "web": configure.configuration: it is of type array, which does not belong there`},
		{"no name", `{"rules":[{"defer":{}}]}`, "rule 1: name: is not set"},
		{"a name twice", `{"rules":[{"name":"a","match":{"version":"1"},"defer":{}},{"name":"a","defer":{}}]}`, `rule 2 "a": name: another rule has it`},
		{"nothing decided", rule(`"match":{}`), `rule 1 "web": one of configure, defer and shutdown must be set`},
		{"two things decided", rule(`"defer":{},"shutdown":{}`), `rule 1 "web": one of configure, defer and shutdown must be set`},
		{"a match with nothing in it was not finished", rule(`"match":null,"defer":{}`), `rule 1 "web": match: is empty`},
		{"nor was one without its facts", rule(`"match":{"identity":"a","facts":null},"defer":{}`), `rule 1 "web": match: facts: is empty`},
		{"nor without its extensions", rule(`"match":{"extensions":{}},"defer":{}`), `rule 1 "web": match: extensions: is empty`},
		{"facts that are no map", rule(`"match":{"facts":"a"},"defer":{}`), `rule 1 "web": match: facts: it is of type string, not object`},
		{"an empty list", rule(`"match":{"identity":[]},"defer":{}`), `rule 1 "web": match: identity: an empty list matches nothing`},
		{"an empty identity", rule(`"match":{"identity":""},"defer":{}`), `rule 1 "web": match: identity: no node has an empty identity`},
		{"a pattern", rule(`"match":{"facts":{"site":"/(/"}},"defer":{}`), `rule 1 "web": match: facts site: /(/: error parsing regexp`},
		{"null", rule(`"match":{"facts":{"site":null}},"defer":{}`), `rule 1 "web": match: facts site: it is null`},
		{"a fraction has lost its form", rule(`"match":{"facts":{"release":1.10}},"defer":{}`), `rule 1 "web": match: facts release: 1.1 does not keep how it was written`},
		{"after a rule for every node", two(`{}`, `{"identity":"a"}`), `rule 2 "b": match: rule "a" before it matches every node that this one does`},
		{"after the same rule", two(`{"facts":{"a":["x","y"]}}`, `{"facts":{"a":["y","x"]}}`), `rule 2 "b": match: rule "a" before it`},
		{"after a wider one", two(`{"facts":{"a":["x","/^y/"]}}`, `{"facts":{"a":["yes","/^y/"]},"identity":"n"}`), `rule 2 "b": match: rule "a" before it`},
		{"an empty configuration", rule(`"configure":{}`), `rule 1 "web": configuration: it is empty`},
		{"a line break", rule(`"configure":{"configuration":{"a":"b\nc"}}`), `rule 1 "web": configuration: key "a": a line break`},
		{"provisioning left on", rule(`"configure":{"configuration":{"plugin.choria.server.provision":true}}`), `rule 1 "web": configuration: key "plugin.choria.server.provision": "true" leaves provisioning on`},
		{"a policy without its suffix", rule(`"configure":{"configuration":{"a":"b"},"opa_policies":{"a":""}}`), `rule 1 "web": opa_policies: "a" must end in .rego`},
		{"a list as a value", rule(`"configure":{"configuration":{"a":["b"]}}`), `rule 1 "web": configuration "a": [b] is neither text, number nor boolean`},
		{"a template that does not parse", rule(`"configure":{"configuration":{"a":"{{.identity"}}`), `rule 1 "web": configuration "a": 1: unclosed action`},
		{"a function that is not there", rule(`"configure":{"configuration":{"a":"{{exec \"id\"}}"}}`), `rule 1 "web": configuration "a": 1: function "exec" not defined`},
		{"a misspelt name", rule(`"configure":{"configuration":{"a":"{{.fact.site}}"}}`), `rule 1 "web": configuration "a": .fact is nothing that a node has: there are claims, csr,`},
		{"a misspelt name further in", rule(`"configure":{"configuration":{"a":"{{if .facts.x}}{{.csr.dir}}{{end}}"}}`), `rule 1 "web": configuration "a": .csr has no dir, only ssldir`},
		{"in a claim", rule(`"configure":{"configuration":{"a":"b"},"server_claims":{"collectives":["{{.x}}"]}}`), `rule 1 "web": server_claims: collectives: .x is nothing that a node has`},
		{"a time", rule(`"defer":{"retry_after":"soon"}`), `rule 1 "web": defer: retry_after: "soon" is no time from now`},
		{"all of them at once", `{"rules":[{"name":"a","match":{"identity":[]},"shutdown":{"reason":"{{"}},{"defer":{"retry_after":"-1s"}}]}`,
			"rule 1 \"a\": match: identity: an empty list matches nothing\nrule 1 \"a\": shutdown: reason: 1: unclosed action\nrule 2: name: is not set\nrule 2: defer: retry_after: \"-1s\" is no time"},
	}

	for _, c := range cases {
		t.Run(c.why, func(t *testing.T) {
			_, err := Plugin("1").Validate(t.Context(), config(t, c.config))
			if status.Code(err) != codes.InvalidArgument || !strings.HasPrefix(status.Convert(err).Message(), c.want) {
				t.Errorf("got  %v\nwant %s", status.Convert(err).Message(), c.want)
			}
		})
	}
}

// Rules that only look alike stay.
func TestNotRefused(t *testing.T) {
	cases := []struct{ why, a, b string }{
		{"the narrow one first", `{"facts":{"a":"x"}}`, `{}`},
		{"other values", `{"facts":{"a":"x"}}`, `{"facts":{"a":["x","y"]}}`},
		{"other facts", `{"facts":{"a":"x"}}`, `{"facts":{"b":"x"}}`},
		{"other patterns", `{"identity":"/^web/"}`, `{"identity":"/^web1/"}`},
	}
	for _, c := range cases {
		t.Run(c.why, func(t *testing.T) {
			_, err := Plugin("1").Validate(t.Context(), config(t, `{"rules":[{"name":"a","match":`+c.a+`,"defer":{}},{"name":"b","match":`+c.b+`,"defer":{}}]}`))
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// What a node sends never ends in anything but a status.
func FuzzFacts(f *testing.F) {
	f.Add([]byte(`{"site":"lon1","os":{"family":"debian"}}`), []byte(`{"extensions":{"team":1}}`))
	f.Add([]byte(`[]`), []byte(`{"extensions":[]}`))
	f.Add([]byte(`{"site":"a\nb"}`), []byte(`null`))
	p := Plugin("1")
	c := &structpb.Struct{}
	rules := `{"rules":[{"name":"a","match":{"extensions":{"team":"/./"}},"defer":{}},{"name":"b","configure":{"configuration":{"k":"{{.facts.site}}{{get .facts \"os.family\" \"\"}}"}}}]}`
	if err := protojson.Unmarshal([]byte(rules), c); err != nil {
		f.Fatal(err)
	}
	if err := p.Configure(f.Context(), c); err != nil {
		f.Fatal(err)
	}

	f.Fuzz(func(t *testing.T, facts, claims []byte) {
		got, err := p.ConfigureNode(t.Context(), &helperv1.ConfigureNodeRequest{Node: &helperv1.Node{Identity: "n", FactsJson: facts, ProvisioningClaimsJson: claims}})
		switch {
		case err != nil && status.Code(err) != codes.InvalidArgument:
			t.Errorf("got %v", err)
		case err == nil && helper.CheckAnswer(got) != nil:
			t.Errorf("got %v: %v", got, helper.CheckAnswer(got))
		}
	})
}

func TestSchemaIsJSON(t *testing.T) {
	if !json.Valid([]byte(schema)) {
		t.Error("it is not")
	}
}
