package config

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/sirupsen/logrus"
)

// TestCases replays what the older provisioner made of real and constructed
// files.
func TestCases(t *testing.T) {
	f, err := os.Open("testdata/config-load.tsv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()

	rows := 0
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		name, rest, _ := strings.Cut(lines.Text(), "\t")
		if name == "file" {
			continue
		}
		outcome, detail, _ := strings.Cut(rest, "\t")
		rows++

		t.Run(name, func(t *testing.T) {
			cfg, problems, err := Load(filepath.Join("testdata/configs", name))
			// A negative number of workers loaded, and then nothing worked.
			if outcome == "REJECT" || name == "65-workers-negative.yaml" {
				if err == nil {
					t.Fatal("loaded, and the older provisioner refused it")
				}
				if cfg != nil || problems.Err() == nil {
					t.Fatal("refused, and yet there is a configuration or no problem")
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			compareWithOlder(t, cfg, detail)
		})
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	if rows < 30 {
		t.Fatalf("only %d rows were read", rows)
	}
}

func compareWithOlder(t *testing.T, cfg *Config, detail string) {
	t.Helper()

	var want struct {
		BP, Comp  string
		Deny      any
		F         Features
		Helper    string
		Insecure  bool
		Interval  string
		JV        string
		LE        bool
		LogFile   string
		LogLevel  string
		MP        int
		Site      string
		Token, Up string
		UpO       bool
		Val       string
		Workers   any
	}
	if err := json.Unmarshal([]byte(detail), &want); err != nil {
		t.Fatal(err)
	}

	// The three values that are ours.
	if want.LogFile == "info" {
		want.LogFile = ""
	}
	if want.LogLevel == "" {
		want.LogLevel = "warning"
	}
	if want.Workers == "NumCPU" {
		want.Workers = float64(defaultWorkers)
	}

	deny := defaultDenyList()
	if list, ok := want.Deny.([]any); ok {
		deny = nil
		for _, pattern := range list {
			deny = append(deny, pattern.(string))
		}
	}
	if got := cfg.denyPatterns(); !slices.Equal(got, deny) {
		t.Errorf("cert_deny_list is %q, want %q", got, deny)
	}

	for _, c := range []struct {
		key       string
		got, want any
	}{
		{"broker_provisioning_password", cfg.BrokerProvisioningPassword, want.BP},
		{"lifecycle_component", cfg.LifecycleComponent, want.Comp},
		{"features", cfg.Features, want.F},
		{"helper", cfg.Helper.CommandLine, want.Helper},
		{"choria_insecure", cfg.Insecure, want.Insecure},
		{"interval", cfg.Interval.String(), want.Interval},
		{"jwt_verify_cert", cfg.JWTVerifyCert, want.JV},
		{"leader_election", cfg.LeaderElection, want.LE},
		{"logfile", cfg.LogFile, want.LogFile},
		{"loglevel", cfg.LogLevel, want.LogLevel},
		{"monitor_port", cfg.MonitorPort, want.MP},
		{"site", cfg.Site, want.Site},
		{"token", cfg.Token, want.Token},
		{"upgrades_repository", cfg.UpgradesRepository, want.Up},
		{"upgrades_optional", cfg.UpgradesOptional, want.UpO},
		{"server_jwt_validity", cfg.ServerJWTValidity.String(), want.Val},
		{"workers", float64(cfg.Workers), want.Workers},
	} {
		if c.got != c.want {
			t.Errorf("%s is %v, want %v", c.key, c.got, c.want)
		}
	}
}

// lines joins the lines of a file.
func lines(s ...string) string { return strings.Join(s, "\n") + "\n" }

func TestProblems(t *testing.T) {
	for _, tt := range []struct {
		name string
		file string
		want []string
	}{
		{
			name: "several errors at once, in the order of the file",
			file: lines("interval: 10s", "workers: -1", "helper: /h 'x", "lifecycle_component: a.b", "features: {pki: true, ed25519: true}"),
			want: []string{
				"error: f:1: interval: 10s is too short: use 1m or more",
				"error: f:2: workers: -1 is negative: use 0 for the default of 32",
				"error: f:3: helper: is not a command line, a quote or backslash is left open: quote it as for a shell",
				`error: f:4: lifecycle_component: "a.b" must be one word without '.', '>' and '*': it is part of a NATS subject`,
				"error: f:5: features.ed25519: cannot be on together with features.pki: turn one of them off",
			},
		},
		{
			name: "so much that twice as long lies in the past, and 8 times as many are less than none",
			file: lines("helper: /h", "interval: 200y", "workers: 2305843009213693952"),
			want: []string{
				"error: f:2: interval: 1752000h0m0s is too long: use 1y or less",
				"error: f:3: workers: 2305843009213693952 are too many: use 10000 or less",
			},
		},
		{
			name: "two wrong types: the first must not hide the second, nor a rule",
			file: lines("helper: /h", "workers: '4'", "token: 12", "site: no", "interval: 5s"),
			want: []string{
				"error: f:2: workers: must be a whole number without quotes, and the file has a string",
				"error: f:3: token: must be a string, and the file has a number: put it in quotes",
				"error: f:4: site: must be a string, and the file has a boolean (yes, no, on, off, y and n are booleans in YAML): put it in quotes",
				"error: f:5: interval: 5s is too short: use 1m or more",
			},
		},
		{
			name: "every other wrong type",
			file: lines("helper: 5", "features: [pki]", "choria_insecure: 'yes'", "cert_deny_list: x", "monitor_port: 80.5", "versions: {max_dark: 99999999999999999999}"),
			want: []string{
				"error: f:1: helper: must be a command line or a map with the key plugin, and the file has a number: put it in quotes",
				"error: f:2: features: must be a map of keys and values, and the file has a list",
				"error: f:3: choria_insecure: must be true or false without quotes, and the file has a string",
				"error: f:4: cert_deny_list: must be a list of strings, and the file has a string",
				"error: f:5: monitor_port: must be a whole number without quotes, and the file has a number",
				"error: f:6: versions.max_dark: must be a whole number without quotes, and the file has a number",
			},
		},
		{
			name: "misspelt keys are noticed, and the nearest key is named",
			file: lines("helper: /h", "log_file: x", "broker_provisioner_password: x", "feature: {}", "features: {jtw: false}", "management: {}"),
			want: []string{
				"warning: f:2: log_file: unknown key, ignored: is logfile meant?",
				"warning: f:3: broker_provisioner_password: unknown key, ignored: is broker_provisioning_password meant?",
				"warning: f:4: feature: unknown key, ignored: is features meant?",
				"warning: f:5: features.jtw: unknown key, ignored: is jwt meant?",
				"warning: f:6: management: unknown key, ignored: remove it",
			},
		},
		{
			name: "keys of older files",
			file: lines("helper: /h", "leader_election_name: X", "broker_port: 4222", "rego_policy: /x"),
			want: []string{
				"warning: f:2: leader_election_name: does nothing any more, NOBODY IS ELECTED BY IT: several provisioners would all work at once and provision the same nodes; set leader_election: true and remove this key",
				"warning: f:3: broker_port: does nothing any more, there is no broker inside: remove it",
				"warning: f:4: rego_policy: does nothing: remove it",
			},
		},
		{
			name: "an election that works makes the stale key harmless",
			file: lines("helper: /h", "leader_election_name: X", "leader_election: true"),
			want: []string{"warning: f:2: leader_election_name: does nothing any more: remove it, leader_election is enough"},
		},
		{
			name: "one key twice, in two spellings and in one",
			file: lines("helper: /h", "Interval: 5m", "interval: 10m", "site: a", "site: b"),
			want: []string{
				"warning: f:2: Interval: is the same key as interval, which wins: remove one",
				"warning: f:5: site: is given twice, first on line 4, and the last one counts: remove one",
			},
		},
		{
			name: "a null after a value does not undo it, so the value is judged",
			file: lines("helper: /h", "Interval: 5s", "interval:"),
			want: []string{"error: f:2: interval: 5s is too short: use 1m or more"},
		},
		{
			name: "deny patterns: one that does not compile would let a name through",
			file: lines("helper: /h", "cert_deny_list:", `  - '\.choria$'`, "  - '('", "  - 5", "  -", "  - ''"),
			want: []string{
				"error: f:4: cert_deny_list: item 2 is not a regular expression: error parsing regexp: missing closing ): `(`",
				"error: f:5: cert_deny_list: item 3 must be a string, and the file has a number: put it in quotes",
				"error: f:6: cert_deny_list: item 4 must be a string, and the file has null",
				"warning: f:7: cert_deny_list: item 5 is empty and denies every name",
			},
		},
		{
			name: "an empty deny pattern is one that matches all",
			file: lines("helper: /h", "cert_deny_list: ['']"),
			want: []string{"warning: f:2: cert_deny_list: item 1 is empty and denies every name"},
		},
		{
			name: "a plugin's map",
			file: lines("helper:", "  args: [a, 1]", "  sha256: abc", "  env: {A: 1, B: x, '': z}", "  timeout: 0s", "  start_timeout: soon", "  max_in_flight: 0", "  mtls: on", "  config: [x]", "  tmeout: 5s"),
			want: []string{
				"error: f:1: helper: has no plugin: name the path of one; an exec helper is a string, not a map",
				"error: f:2: helper.args: item 2 must be a string, and the file has a number: put it in quotes",
				"error: f:3: helper.sha256: must be 64 hexadecimal digits, as sha256sum prints them",
				"error: f:4: helper.env.A: must be a string, and the file has a number: put it in quotes",
				`error: f:4: helper.env: "" cannot be the name of an environment variable`,
				`error: f:5: helper.timeout: "0s" is not more than zero`,
				`error: f:6: helper.start_timeout: "soon" is no duration: use for example 30s, 5m, 1h30m, 1d or 1y`,
				"error: f:7: helper.max_in_flight: 0 is too few: use 1 or more",
				"error: f:8: helper.mtls: must be a string, and the file has a boolean (yes, no, on, off, y and n are booleans in YAML): put it in quotes",
				"error: f:9: helper.config: must be a map of keys and values, and the file has a list",
				"warning: f:10: helper.tmeout: unknown key, ignored: is timeout meant?",
			},
		},
		{
			name: "the shared ledger",
			file: lines("helper: /h", "state:", "  nats:", "    bucket: a.b", "    replicas: 7", "    token_file: /t"),
			want: []string{
				"error: f:3: state.nats: has no servers: list those of the main account, such as nats://broker.example.net:4222",
				"error: f:3: state.nats: has only one of token_file and seed_file: a token is proved by its seed, name both",
				`error: f:4: state.nats.bucket: "a.b" is no bucket name: use letters, digits, - and _`,
				"error: f:5: state.nats.replicas: 7 is out of range: use 1 to 5",
			},
		},
		{
			name: "what is of the wrong type is not called missing as well",
			file: lines("helper: {plugin: 5}", "state: {nats: {servers: a}}"),
			want: []string{
				"error: f:1: helper.plugin: must be a string, and the file has a number: put it in quotes",
				"error: f:2: state.nats.servers: must be a list of strings, and the file has a string",
			},
		},
		{
			name: "nor is a map that is none",
			file: lines("helper: /h", "state: {nats: a}"),
			want: []string{"error: f:2: state.nats: must be a map of keys and values, and the file has a string"},
		},
		{
			name: "budgets",
			file: lines("helper: /h", "versions:", "  trial: -1m", "  release_timeout: ''", "  max_in_trial: -1", "  max_dark: -2", "  quarantine_after: -3"),
			want: []string{
				`error: f:3: versions.trial: "-1m" is not more than zero`,
				`error: f:4: versions.release_timeout: "" is no duration: use for example 30s, 5m, 1h30m, 1d or 1y`,
				"error: f:5: versions.max_in_trial: -1 is negative: use 0 for no limit",
				"error: f:6: versions.max_dark: -2 is negative: use 0 for no limit",
				"error: f:7: versions.quarantine_after: -3 is negative: use 0 for no limit",
			},
		},
		{
			name: "a secret in two places: which one is meant?",
			file: lines("helper: /h", "token: a", "token_file: /t", "broker_provisioning_password_file: /p", "broker_provisioning_password: b"),
			want: []string{
				"error: f:3: token_file: cannot be set together with token: remove one",
				"error: f:4: broker_provisioning_password_file: cannot be set together with broker_provisioning_password: remove one",
			},
		},
		{
			name: "network addresses",
			file: lines("helper: /h", "monitor_port: 70000", "monitor_address: '127.0.0.1:8080'", "lifecycle_component: 'a b'", "state_dir: ''"),
			want: []string{
				"error: f:2: monitor_port: 70000 is no port: use 1 to 65535, or 0 for none",
				`error: f:3: monitor_address: "127.0.0.1:8080" must be an IP address or a host name, the port is set by monitor_port`,
				`error: f:4: lifecycle_component: "a b" must be one word without '.', '>' and '*': it is part of a NATS subject`,
				"error: f:5: state_dir: must not be empty",
			},
		},
		{
			name: "what the older one let pass is no error",
			file: lines("helper: /h", "loglevel: verbose", "upgrades_repository: repo.example.net"),
			want: []string{
				`warning: f:2: loglevel: "verbose" is no level, warning is used: use debug, info, warn or error`,
				"warning: f:3: upgrades_repository: is no http or https URL: nodes cannot download from it",
			},
		},
		{
			name: "upgrades from nowhere",
			file: lines("helper: /h", "features:", "  upgrades: true"),
			want: []string{"warning: f:3: features.upgrades: is on without upgrades_repository: no node can be upgraded"},
		},
		{
			name: "a trial that is over before its node is looked at again",
			file: lines("helper: /h", "upgrades_repository: https://repo.example.net", "interval: 9m", "features:", "  upgrades: true"),
			want: []string{"warning: f: versions.trial: 10m0s is less than interval and 2m0s: a node that refuses its configuration, or waits for one again, is looked at too late to leave its version: use 11m0s or more"},
		},
		{
			name: "a duration that would wrap around to a small one",
			file: lines("helper: /h", "interval: 1e6y", "server_jwt_validity: nany"),
			want: []string{
				`error: f:2: interval: "1e6y" is no duration: use for example 30s, 5m, 1h30m, 1d or 1y`,
				`error: f:3: server_jwt_validity: "nany" is no duration: use for example 30s, 5m, 1h30m, 1d or 1y`,
			},
		},
		{
			name: "the line of a merged key is where it was written",
			file: lines("defaults: &d", "  pki: true", "helper: /h", "features:", "  <<: *d", "  ed25519: true"),
			want: []string{
				"warning: f:1: defaults: unknown key, ignored: remove it",
				"error: f:6: features.ed25519: cannot be on together with features.pki: turn one of them off",
			},
		},
		{
			name: "of merged maps the first wins, and its line is named",
			file: lines("x: [&a {interval: 1s}, &b {interval: 5m}]", "helper: /h", "<<: [*a, *b]"),
			want: []string{
				"warning: f:1: x: unknown key, ignored: remove it",
				"error: f:1: interval: 1s is too short: use 1m or more",
			},
		},
		{
			name: "a key that YAML 1.1 takes for a boolean has another name for each parser, so no line",
			file: lines("helper: /h", "on: 5"),
			want: []string{"warning: f: true: unknown key, ignored: remove it"},
		},
		{
			name: "an empty file crashed the older one",
			want: []string{"error: f: the file is empty: it must at least name a helper"},
		},
		{
			name: "only comments",
			file: lines("---", "# workers: 4"),
			want: []string{"error: f: the file is empty: it must at least name a helper"},
		},
		{
			name: "a list, not a map",
			file: lines("- workers: 4"),
			want: []string{"error: f: must hold keys and values, such as workers: 4, and holds a list"},
		},
		{
			name: "a word",
			file: "workers",
			want: []string{"error: f: must hold keys and values, such as workers: 4, and holds a string"},
		},
		{
			name: "a second document is not read",
			file: lines("helper: /h", "---", "token: x"),
			want: []string{"warning: f:3: a second YAML document starts here and is ignored: remove the --- before it"},
		},
		{
			name: "an empty document before the one that was meant",
			file: lines("---", "---", "helper: /h"),
			want: []string{
				"warning: f:3: a second YAML document starts here and is ignored: remove the --- before it",
				"error: f: the file is empty: it must at least name a helper",
			},
		},
		{
			name: "a line indented by mistake makes the parser stop at the next",
			file: lines("  helper: /h", "token: x"),
			want: []string{"warning: f:2: may not be read from here on, compare with check --json: did not find expected <document start>"},
		},
		{
			name: "a pattern in double quotes",
			file: lines("helper: /h", "cert_deny_list:", `  - "\.choria$"`),
			want: []string{`error: f:3: is not valid YAML: found unknown escape character; a pattern with \ needs single quotes`},
		},
		{
			name: "the parser counts this line from 0",
			file: lines("helper: /h", "features: {pki: true", "token: x"),
			want: []string{"error: f:3: is not valid YAML: did not find expected ',' or '}'"},
		},
		{
			name: "the same on the first line, which it leaves out",
			file: lines("token: ]", "helper: /h"),
			want: []string{"error: f:1: is not valid YAML: did not find expected node content"},
		},
		{
			name: "a template that was not filled in",
			file: lines("helper: /h", "token: {{ .Values.token }}"),
			want: []string{"error: f: is not valid YAML: a key is itself a list or a map; was a {{ template }} not filled in?"},
		},
		{
			name: "a token that YAML takes for an alias is not repeated",
			file: lines("helper: /h", "token: *s3cret"),
			want: []string{"error: f: is not valid YAML: a value that starts with * refers to an anchor that is not there; a password or pattern that starts with * needs quotes"},
		},
		{
			name: "a value that the parser would quote is not repeated",
			file: lines("helper: /h", "token: !!int s3cret"),
			want: []string{"error: f: is not valid YAML: cannot decode !!str *** as a !!int"},
		},
		{
			name: "garbage",
			file: "\x00\x01\x02",
			want: []string{"error: f: is not valid YAML: control characters are not allowed"},
		},
		{
			name: "not a configuration at all",
			file: strings.Repeat("x", maxSize+1),
			want: []string{"error: f: is larger than 1048576 bytes and no configuration: is the path right?"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg, problems, err := Parse("f", []byte(tt.file))
			if (cfg == nil) != (err != nil) {
				t.Fatalf("configuration is %v and error %v", cfg, err)
			}

			var got []string
			for _, p := range problems {
				got = append(got, p.Severity.String()+": "+p.String())
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(tt.want, "\n  "))
			}
		})
	}
}

func TestParseValues(t *testing.T) {
	for _, tt := range []struct {
		name string
		file string
		want func(c *Config) bool
	}{
		{"a byte order mark, as editors on Windows write", "\ufeffworkers: 7\n", func(c *Config) bool { return c.Workers == 7 }},
		{"line ends of Windows", "workers: 7\r\nsite: a\r\n", func(c *Config) bool { return c.Workers == 7 && c.Site == "a" }},
		{"JSON with tabs", "{\n\t\"workers\": 7,\n\t\"features\": {\"pki\": true}\n}", func(c *Config) bool { return c.Workers == 7 && c.Features.PKI }},
		{"the booleans of YAML 1.1", "features: {pki: yes, jwt: on, upgrades: y}\nchoria_insecure: Off\n", func(c *Config) bool {
			return c.Features == Features{PKI: true, JWT: true, Upgrades: true} && !c.Insecure
		}},
		{"of two spellings the lower-case one wins, wherever it stands", "interval: 10m\nInterval: 5m\nINTERVAL: 7m\n", func(c *Config) bool { return c.Interval == 10*time.Minute }},
		{"of a repeated key the last", "site: a\nsite: b\n", func(c *Config) bool { return c.Site == "b" }},
		{"a merge key", "x: &x {pki: true}\nfeatures: {<<: *x, jwt: true}\n", func(c *Config) bool { return c.Features == Features{PKI: true, JWT: true} }},
		{"null is the default", "workers:\ninterval: ~\nhelper: null\nfeatures:\nstate:\nversions:\n", func(c *Config) bool {
			return c.Workers == defaultWorkers && c.Interval == time.Minute && c.Versions.Trial == 10*time.Minute
		}},
		{"no workers is the default", "workers: 0\n", func(c *Config) bool { return c.Workers == defaultWorkers }},
		{"ed25519 needs jwt", "features: {ed25519: true}\n", func(c *Config) bool { return c.Features == Features{JWT: true, ED25519: true} }},
		{"a deny pattern between slashes, without case", "cert_deny_list: ['/^admin/']\n", func(c *Config) bool {
			return c.CertDenyList[0].MatchString("ADMIN.example.net") && !c.CertDenyList[0].MatchString("/admin")
		}},
		{"the default deny list, without case", "site: a\n", func(c *Config) bool {
			return len(c.CertDenyList) == 4 && c.CertDenyList[1].MatchString("bob.Privileged.CHORIA")
		}},
		{"a command line is split as a shell does", `helper: "/h --site 'new york' x\\ y"`, func(c *Config) bool {
			return slices.Equal(c.Helper.Command, []string{"/h", "--site", "new york", "x y"}) && c.Helper.Plugin == ""
		}},
		{"a plugin, with its defaults", "helper: {plugin: /p, sha256: " + strings.Repeat("AB", 32) + ", config: {ca: /x, count: 5}}\n", func(c *Config) bool {
			h := c.Helper
			return h.Plugin == "/p" && h.Command == nil && h.SHA256 == strings.Repeat("ab", 32) && h.Timeout == 10*time.Second &&
				h.StartTimeout == 10*time.Second && h.MaxInFlight == 64 && h.MTLS == "auto" && string(h.Config) == `{"ca":"/x","count":5}`
		}},
		{"off is a boolean in YAML 1.1, and a value of mtls", "helper: {plugin: /p, mtls: off}\n", func(c *Config) bool { return c.Helper.MTLS == "off" }},
		{"a plugin wins over a command line in another spelling", "Helper: /h\nhelper: {plugin: /p}\n", func(c *Config) bool {
			return c.Helper.Plugin == "/p" && c.Helper.CommandLine == "" && c.Helper.Command == nil
		}},
		{"a shared ledger, with its defaults", "state: {nats: {servers: ['nats://a:4222']}}\n", func(c *Config) bool {
			n := c.State.NATS
			return slices.Equal(n.Servers, []string{"nats://a:4222"}) && n.Bucket == "CHORIA_PROVISIONER" && n.Replicas == 1
		}},
		{"an IPv6 address has colons and no port", "monitor_address: '::1'\n", func(c *Config) bool { return c.MonitorAddress == "::1" }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg, _, err := Parse("f", []byte(tt.file))
			if err != nil {
				t.Fatal(err)
			}
			if !tt.want(cfg) {
				t.Errorf("got %+v", *cfg)
			}
		})
	}
}

// TestParseWithoutLines is a file that only one of the two parsers can read.
func TestParseWithoutLines(t *testing.T) {
	file := []byte(onlyForValues)
	if root, _, err := parseLines(file); root != nil || err == nil {
		t.Fatal("the parser of the lines reads this file now, the test needs another")
	}

	cfg, problems, err := Parse("f", file)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Workers != 7 {
		t.Errorf("workers is %d", cfg.Workers)
	}

	want := []string{
		"f:4: may not be read from here on, compare with check --json: mapping values are not allowed in this context",
		"f: wrokers: unknown key, ignored: is workers meant?",
	}
	if len(problems) != 2 || problems[0].String() != want[0] || problems[1].String() != want[1] {
		t.Errorf("got %v, want %q", problems, want)
	}
}

func TestLoadUnreadable(t *testing.T) {
	if _, _, err := Load("testdata/absent.yaml"); err == nil || err.Error() != "configuration: open testdata/absent.yaml: no such file or directory" {
		t.Errorf("got %v", err)
	}
	if _, _, err := Load("testdata"); err == nil {
		t.Error("a directory loaded")
	}
}

func FuzzLoad(f *testing.F) {
	files, err := filepath.Glob("testdata/configs/*")
	if err != nil || len(files) == 0 {
		f.Fatal("no seeds")
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte("helper: {plugin: /p, env: {A: b}, config: {a: 1}}\nstate: {nats: {servers: [a]}}\nversions: {trial: 1d}\n"))
	f.Add([]byte("a: &a {<<: *a}\nb: [&b [*b]]\n"))
	f.Add([]byte(onlyForValues))

	f.Fuzz(func(t *testing.T, data []byte) {
		cfg, problems, err := Parse("f", data)
		if (cfg == nil) != (err != nil) || (problems.Err() == nil) != (err == nil) {
			t.Fatalf("configuration %v, problems %v, error %v", cfg, problems, err)
		}
		for _, p := range problems {
			if p.Message == "" || p.Line < 0 || p.Line > len(data)+1 {
				t.Errorf("problem %+v", p)
			}
		}
		if cfg != nil {
			checkInvariants(t, cfg)
		}
	})
}

// checkInvariants is what the rest of the program takes for granted.
func checkInvariants(t *testing.T, c *Config) {
	h := c.Helper
	_, levelErr := logrus.ParseLevel(c.LogLevel)

	for what, holds := range map[string]bool{
		"workers":           c.Workers > 0,
		"interval":          c.Interval >= time.Minute,
		"loglevel":          levelErr == nil,
		"component":         c.LifecycleComponent != "" && !strings.ContainsAny(c.LifecycleComponent, ".>*") && !strings.ContainsFunc(c.LifecycleComponent, unicode.IsSpace),
		"port":              c.MonitorPort >= 0 && c.MonitorPort <= 65535,
		"deny list":         len(c.CertDenyList) > 0 && !slices.Contains(c.CertDenyList, nil),
		"validity":          c.ServerJWTValidity > 0,
		"pki or ed25519":    !c.Features.PKI || !c.Features.ED25519,
		"ed25519 has jwt":   !c.Features.ED25519 || c.Features.JWT,
		"one token":         c.Token == "" || c.TokenFile == "",
		"one password":      c.BrokerProvisioningPassword == "" || c.BrokerProvisioningPasswordFile == "",
		"one helper":        h.Plugin == "" || (h.CommandLine == "" && h.Command == nil),
		"helper's limits":   h.Timeout > 0 && h.StartTimeout > 0 && h.MaxInFlight > 0,
		"helper's mtls":     h.MTLS == "auto" || h.MTLS == "off",
		"helper's checksum": h.SHA256 == "" || len(h.SHA256) == 64,
		"helper's config":   h.Config == nil || json.Valid(h.Config),
		"state":             c.StateDir != "" && c.State.NATS.Bucket != "" && c.State.NATS.Replicas > 0,
		"versions":          c.Versions.Trial > 0 && c.Versions.ReleaseTimeout > 0 && min(c.Versions.MaxInTrial, c.Versions.MaxDark, c.Versions.QuarantineAfter) >= 0,
	} {
		if !holds {
			t.Errorf("%s: %+v", what, *c)
		}
	}

	if _, err := json.Marshal(c); err != nil {
		t.Error(err)
	}
}

// onlyForValues is read by the parser of the values and not by that of the
// lines.
const onlyForValues = " workers: 7\n wrokers: 5\nsite\n - x: 5\n"
