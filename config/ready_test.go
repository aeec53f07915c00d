package config

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestCheckReady(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "helper")
	plain := filepath.Join(dir, "plain")
	for path, mode := range map[string]os.FileMode{program: 0o755, plain: 0o644} {
		if err := os.WriteFile(path, nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	key := strings.Repeat("ab", 32)

	for _, tt := range []struct {
		name string
		file string
		want []string
	}{
		{
			name: "everything is there",
			file: lines("helper: DIR/helper --x", "logfile: DIR/new.log", "token_file: DIR/plain", "jwt_verify_cert: DIR/plain", "jwt_signing_key: DIR/plain", "jwt_signing_token: DIR/plain", "features: {ed25519: true}"),
		},
		{
			name: "a program found on PATH, as the older provisioner ran it",
			file: lines("helper: sh -c true"),
		},
		{
			name: "a public key is no file to look for",
			file: lines("helper: DIR/helper", "jwt_verify_cert: "+key, "features: {jwt: true}"),
		},
		{
			name: "paths of features that are off are not looked at",
			file: lines("helper: DIR/helper", "jwt_verify_cert: DIR/absent.pem", "jwt_signing_key: DIR/absent"),
		},
		{
			name: "a missing certificate is a missing file, not a bad key",
			file: lines("helper: DIR/helper", "jwt_verify_cert: DIR/absent.pem", "features: {jwt: true}"),
			want: []string{"f:2: jwt_verify_cert: stat DIR/absent.pem: no such file or directory"},
		},
		{
			name: "half a public key",
			file: lines("helper: DIR/helper", "jwt_verify_cert: abcd", "features: {jwt: true}"),
			want: []string{"f:2: jwt_verify_cert: no such file, and no ed25519 public key: that has 64 hexadecimal digits and this has 4"},
		},
		{
			name: "features without what they need",
			file: lines("helper: DIR/helper", "features:", "  ed25519: true"),
			want: []string{
				"f:3: features.ed25519: is on without jwt_verify_cert: it verifies the token of every node, name its file or the public key",
				"f:3: features.ed25519: is on without jwt_signing_key: it signs the token of every node, name its file",
			},
		},
		{
			name: "the same of jwt alone",
			file: lines("helper: DIR/helper", "features: {jwt: true}"),
			want: []string{"f:2: features.jwt: is on without jwt_verify_cert: it verifies the token of every node, name its file or the public key"},
		},
		{
			name: "all paths at once, in the order of the file",
			file: lines("token_file: DIR/a", "broker_provisioning_password_file: DIR/b", "helper: {plugin: DIR/c}", "logfile: DIR/d/e", "state: {nats: {servers: [x],", "  token_file: DIR/f,", "  seed_file: DIR}}"),
			want: []string{
				"f:1: token_file: stat DIR/a: no such file or directory",
				"f:2: broker_provisioning_password_file: stat DIR/b: no such file or directory",
				"f:3: helper.plugin: DIR/c cannot be started: stat DIR/c: no such file or directory",
				"f:4: logfile: stat DIR/d: no such file or directory",
				"f:6: state.nats.token_file: stat DIR/f: no such file or directory",
				"f:7: state.nats.seed_file: DIR is a directory, not a file",
			},
		},
		{
			name: "a helper that may not be executed",
			file: lines("helper: DIR/plain"),
			want: []string{"f:1: helper: DIR/plain cannot be started: permission denied"},
		},
		{
			name: "no helper: such files load, as they always did",
			file: lines("site: a"),
			want: []string{"f: helper: is not set: name a plugin or the command line of an exec helper, no node is provisioned without"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg, _, err := Parse("f", []byte(strings.ReplaceAll(tt.file, "DIR", dir)))
			if err != nil {
				t.Fatal(err)
			}

			var got []string
			for _, p := range cfg.CheckReady() {
				if p.Severity != Error {
					t.Errorf("%s is no error", p)
				}
				got = append(got, strings.ReplaceAll(p.String(), dir, "DIR"))
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(tt.want, "\n  "))
			}
		})
	}
}

func TestReadSecrets(t *testing.T) {
	dir := t.TempDir()
	for _, tt := range []struct{ name, content, want string }{
		{"a newline, as editors end a file", "s3cret\n", "s3cret"},
		{"no newline, as a mounted secret has none", "s3cret", "s3cret"},
		{"a newline of Windows", "s3cret\r\n", "s3cret"},
		{"only one is taken off", "s3cret \n\n", "s3cret \n"},
		{"an empty token is allowed", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(dir, "secret")
			if err := os.WriteFile(path, []byte(tt.content), 0o600); err != nil {
				t.Fatal(err)
			}

			c := &Config{TokenFile: path, BrokerProvisioningPasswordFile: path}
			if got, err := c.ReadToken(); err != nil || got != tt.want {
				t.Errorf("token is %q, %v, want %q", got, err, tt.want)
			}
			if got, err := c.ReadBrokerPassword(); err != nil || got != tt.want {
				t.Errorf("password is %q, %v, want %q", got, err, tt.want)
			}
		})
	}

	c := &Config{Token: "a", BrokerProvisioningPasswordFile: filepath.Join(dir, "absent")}
	if got, err := c.ReadToken(); err != nil || got != "a" {
		t.Errorf("token is %q, %v", got, err)
	}
	if _, err := c.ReadBrokerPassword(); err == nil || !strings.HasPrefix(err.Error(), "broker_provisioning_password_file: open ") {
		t.Errorf("got %v", err)
	}
}
