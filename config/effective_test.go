package config

import (
	"encoding/json"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// full sets every key, in words that show where each goes.
const full = `
workers: 5
interval: 1d
logfile: stdout
loglevel: debug
helper:
  plugin: /p
  args: [--site, a]
  sha256: 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
  env: {API_KEY: s3cret-env}
  timeout: 20s
  start_timeout: 5s
  max_in_flight: 3
  mtls: "off"
  config: {password: s3cret-config, nested: {a: [s3cret-nested]}}
token: s3cret-token
lifecycle_component: acme
choria_insecure: true
site: a
monitor_port: 8080
monitor_address: 127.0.0.1
broker_provisioning_password: s3cret-password
cert_deny_list: ['\.choria$', //slashes//]
jwt_verify_cert: /cert
jwt_signing_key: /key
jwt_signing_token: /token
server_jwt_validity: 1M
leader_election: true
upgrades_repository: https://u:s3cret-url@repo.example.net/x@y
upgrades_optional: true
features: {ed25519: true, upgrades: true}
state_dir: /state
state:
  nats:
    servers: ['nats://s3cret-nats@a.example.net:4222', b.example.net]
    token_file: /t
    seed_file: /s
    bucket: B
    replicas: 3
versions: {trial: 2d, release_timeout: 1w, max_in_trial: 1, max_dark: 2, quarantine_after: 3}
`

func mustParse(t *testing.T, file string) *Config {
	t.Helper()
	cfg, problems, err := Parse("f", []byte(file))
	if err != nil {
		t.Fatal(err)
	}
	if len(problems) > 0 {
		t.Fatalf("problems: %v", problems)
	}
	return cfg
}

// TestEffective loads what was printed: the same names and, but for the
// secrets, the same values.
func TestEffective(t *testing.T) {
	for name, file := range map[string]string{
		"defaults":    "helper: /h 'a b'",
		"every key":   full,
		"other files": "helper: /h\ntoken_file: /t\nbroker_provisioning_password_file: /p\nfeatures: {pki: true}",
	} {
		t.Run(name, func(t *testing.T) {
			cfg := mustParse(t, file)
			printed, err := json.MarshalIndent(cfg, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(printed), "s3cret") {
				t.Errorf("a secret shows:\n%s", printed)
			}

			again, err := json.MarshalIndent(mustParse(t, string(printed)), "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			if string(again) != string(printed) {
				t.Errorf("loaded again\n%s\nwant\n%s", again, printed)
			}
		})
	}
}

// TestEffectiveIsWhole finds a key of the loader that is not printed.
func TestEffectiveIsWhole(t *testing.T) {
	printed, err := json.Marshal(mustParse(t, full))
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(printed, &got); err != nil {
		t.Fatal(err)
	}

	stale := regexp.MustCompile(`^(leader_election_name|broker_port|rego_policy)$`)
	for _, key := range knownKeys() {
		if stale.MatchString(key) {
			continue
		}
		var v any = got
		for _, part := range strings.Split(key, ".") {
			m, _ := v.(map[string]any)
			v = m[part]
		}
		if v == nil {
			t.Errorf("%s is not printed", key)
		}
	}

	if got["token"] != "***" || got["upgrades_repository"] != "https://***@repo.example.net/x@y" {
		t.Errorf("masked %v and %v", got["token"], got["upgrades_repository"])
	}
	want := map[string]any{"nested": "***", "password": "***"}
	if plugin := got["helper"].(map[string]any); !reflect.DeepEqual(plugin["config"], want) {
		t.Errorf("the plugin's configuration is %v", plugin["config"])
	}
}

func TestMaskUserinfo(t *testing.T) {
	for in, want := range map[string]string{
		"nats://broker:4222":             "nats://broker:4222",
		"nats://u:s3cret@broker:4222":    "nats://***@broker:4222",
		"u:s3cret@broker":                "***@broker",
		"nats://u:s3/cr?et#@broker:4222": "nats://***@broker:4222",
		"https://repo.example.net/x@y":   "https://repo.example.net/x@y",
	} {
		if got := maskUserinfo(in); got != want {
			t.Errorf("%s is shown as %s, want %s", in, got, want)
		}
	}
}

// TestSecretsStayOutOfProblems gives each secret in a way that is refused.
func TestSecretsStayOutOfProblems(t *testing.T) {
	for _, file := range []string{
		"token: [s3cret]",
		"token: {s3cret: x}",
		"broker_provisioning_password: [s3cret]",
		"token: s3cret\ntoken_file: /t",
		"token: !!float s3cret",
		"token: *s3cret",
		"token: {{ s3cret }}",
		"token: \"s3cret\\q\"",
		"helper: {plugin: /p, env: {A: [s3cret]}, config: s3cret}",
		"upgrades_repository: ftp://s3cret@a",
		"state: {nats: {servers: [{s3cret: 1}]}}",
		"helper: /h --password 's3cret",
	} {
		_, problems, _ := Parse("f", []byte(file))
		if len(problems) == 0 {
			t.Errorf("%q has no problem", file)
		}
		for _, p := range problems {
			if strings.Contains(p.String(), "s3cret") {
				t.Errorf("%q: %s", file, p)
			}
		}
	}
}

// knownKeys are the full names of every key that takes a value.
func knownKeys() []string {
	var keys []string
	var walk func(parent string, fields []field)
	walk = func(parent string, fields []field) {
		for _, f := range fields {
			key := join(parent, f.key)
			if len(f.fields) == 0 || key == "helper" {
				keys = append(keys, key)
			}
			walk(key, f.fields)
		}
	}
	walk("", defaults().fields())
	return keys
}
