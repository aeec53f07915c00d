package fleet

import (
	"encoding/json"
	"testing"

	"github.com/choria-io/go-choria/lifecycle"
)

func startupEvent(t *testing.T, cloud bool, opts ...lifecycle.Option) []byte {
	t.Helper()
	event, err := lifecycle.New(lifecycle.Startup, opts...)
	if err != nil {
		t.Fatal(err)
	}
	var data []byte
	if cloud {
		data, err = lifecycle.ToCloudEventV1(event).MarshalJSON()
	} else {
		data, err = json.Marshal(event)
	}
	if err != nil {
		t.Fatal(err)
	}

	return data
}

func TestReadStartup(t *testing.T) {
	const component = "provision_mode_server"
	full := []lifecycle.Option{lifecycle.Component(component), lifecycle.Identity("n1"), lifecycle.Version("1")}
	provisionedEvent, err := lifecycle.New(lifecycle.Provisioned, lifecycle.Component(component), lifecycle.Identity("n1"))
	if err != nil {
		t.Fatal(err)
	}
	other, err := json.Marshal(provisionedEvent)
	if err != nil {
		t.Fatal(err)
	}

	for _, tc := range []struct {
		name string
		data []byte
		want string
	}{
		{"CloudEvent", startupEvent(t, true, full...), "n1"},
		{"older format", startupEvent(t, false, full...), "n1"},
		{"no identity", startupEvent(t, true, lifecycle.Component(component)), ""},
		{"another component", startupEvent(t, true, lifecycle.Component("server"), lifecycle.Identity("n1")), ""},
		{"another type", other, ""},
		{"no JSON", []byte("hello"), ""},
		{"empty", nil, ""},
		{"a list", []byte("[]"), ""},
		{"an identity of another type", []byte(`{"protocol":"io.choria.lifecycle.v1.startup","component":"provision_mode_server","identity":5}`), ""},
		{"a CloudEvent around nothing", []byte(`{"specversion":"1.0","source":"io.choria.lifecycle","id":"1","type":"x"}`), ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := readEvent(tc.data, component, lifecycle.Startup)
			if got.Identity != tc.want || (err == nil) != (tc.want != "") {
				t.Errorf("event %+v, error %v, want that of %q", got, err, tc.want)
			}
		})
	}
}

func TestReadEvent(t *testing.T) {
	for _, kind := range []lifecycle.Type{lifecycle.Startup, lifecycle.Alive, lifecycle.Upgraded} {
		version := lifecycle.Version("1.2")
		if kind == lifecycle.Upgraded {
			version = lifecycle.NewVersion("1.2")
		}
		e, err := lifecycle.New(kind, lifecycle.Component("server"), lifecycle.Identity("n1"), version)
		if err != nil {
			t.Fatal(err)
		}
		data, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		got, err := readEvent(data, "server", kind)
		if want := (Event{Type: kind, Identity: "n1", Version: "1.2"}); got != want || err != nil {
			t.Errorf("read %+v, %v, want %+v", got, err, want)
		}
		if got, err := readEvent(data, "server", lifecycle.Shutdown); err == nil {
			t.Errorf("read %+v of a type that is not listened for", got)
		}
	}
}
