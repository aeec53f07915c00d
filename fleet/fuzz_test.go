package fleet

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/choria-io/go-choria/lifecycle"
	"github.com/nats-io/nats-server/v2/server"
)

// FuzzStartupIdentity: an identity is taken exactly from what, decoded by hand,
// is a startup event of the component.
func FuzzStartupIdentity(f *testing.F) {
	const component = "provision_mode_server"
	type event struct {
		Protocol  string `json:"protocol"`
		Identity  string `json:"identity"`
		Component string `json:"component"`
	}
	oracle := func(data []byte) string {
		var e event
		var cloud struct {
			Version string          `json:"specversion"`
			Source  string          `json:"source"`
			Data    json.RawMessage `json:"data"`
		}
		if json.Unmarshal(data, &cloud) == nil && cloud.Version == "1.0" && cloud.Source == "io.choria.lifecycle" {
			data = cloud.Data
		}
		if json.Unmarshal(data, &e) != nil || e.Component != component ||
			(e.Protocol != "io.choria.lifecycle.v1.startup" && e.Protocol != "choria:lifecycle:startup:1") {
			return ""
		}
		return e.Identity
	}
	for _, opts := range [][]lifecycle.Option{
		{lifecycle.Component(component), lifecycle.Identity("n1"), lifecycle.Version("1")},
		{lifecycle.Component("server"), lifecycle.Identity("n1")},
		{lifecycle.Component(component)},
	} {
		e, err := lifecycle.New(lifecycle.Startup, opts...)
		if err != nil {
			f.Fatal(err)
		}
		cloud, err := lifecycle.ToCloudEventV1(e).MarshalJSON()
		if err != nil {
			f.Fatal(err)
		}
		plain, err := json.Marshal(e)
		if err != nil {
			f.Fatal(err)
		}
		for _, data := range [][]byte{cloud, plain} {
			f.Add(data)
			if got, _ := readEvent(data, component, lifecycle.Startup); got.Identity != oracle(data) {
				f.Fatalf("read %q of %s, the oracle %q", got.Identity, data, oracle(data))
			}
		}
	}
	f.Add([]byte("junk"))
	f.Add([]byte(`{"protocol":"io.choria.lifecycle.v1.startup","component":"provision_mode_server","identity":5}`))
	f.Add([]byte(`{"protocol":"io.choria.lifecycle.v1.shutdown","component":"provision_mode_server","identity":"n1"}`))
	f.Add([]byte(strings.Repeat("[", 20000)))

	f.Fuzz(func(t *testing.T, data []byte) {
		event, err := readEvent(data, component, lifecycle.Startup)
		got := event.Identity
		if (err == nil) != (got != "") {
			t.Fatalf("identity %q with error %v", got, err)
		}
		// The library finds some fields by other means than a whole decoding: it
		// may be stricter than the oracle, never more lenient.
		if got != "" && got != oracle(data) {
			t.Errorf("read %q, the oracle %q", got, oracle(data))
		}
	})
}

// FuzzCheckIdentity: an identity that passes makes one literal subject, by the
// broker's own rules, whose last words are that identity and nothing else.
func FuzzCheckIdentity(f *testing.F) {
	for _, s := range []string{"n1.example.net", "", " ", "*", ">", "a.*", "a.>", ".", "..", "a..b", "a\r\nPUB x 0\r\n", "a\tb", "\x00", "\u00a0", "\u0085", "ü", "%", "-a", strings.Repeat("a", 254)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, identity string) {
		if checkIdentity(identity) != nil {
			return
		}
		subject := "provisioning.node." + identity
		if !server.IsValidLiteralSubject(subject) || strings.ContainsAny(subject, " \t\r\n\x00*>") || len(identity) > maxIdentity {
			t.Errorf("%q passes", identity)
		}
	})
}
