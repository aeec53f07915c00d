//go:build linux

package harness

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/choria-provisioner/provisioner/internal/simfleet"
)

// Collective is where nodes are once they were provisioned.
const Collective = "mcollective"

// IssuerConfiguration is what a site with an Organization Issuer gives its
// nodes, with {identity} and {directory} where a node's own values go.
func IssuerConfiguration(b *simfleet.Broker) map[string]string {
	return map[string]string{
		"identity":                             "{identity}",
		"collectives":                          Collective,
		"main_collective":                      Collective,
		"rpcauthorization":                     "0",
		"plugin.choria.server.provision":       "false",
		"plugin.choria.use_srv":                "false",
		"plugin.choria.middleware_hosts":       b.URL(),
		"plugin.security.provider":             "choria",
		"plugin.security.choria.ca":            b.CA(),
		"plugin.security.choria.token_file":    "{directory}/server.jwt",
		"plugin.security.choria.seed_file":     "{directory}/server.seed",
		"plugin.security.issuer.names":         "choria",
		"plugin.security.issuer.choria.public": b.IssuerPublic(),
	}
}

// InsecureConfiguration is what a site without an issuer gives its nodes, with
// {identity} where a node's own goes. All have one certificate, that of the
// broker, with which a real server is content.
func InsecureConfiguration(b *simfleet.Broker) map[string]string {
	return map[string]string{
		"identity":                         "{identity}",
		"collectives":                      Collective,
		"main_collective":                  Collective,
		"plugin.choria.server.provision":   "false",
		"plugin.choria.use_srv":            "false",
		"plugin.choria.middleware_hosts":   b.URL(),
		"plugin.security.provider":         "file",
		"plugin.security.file.ca":          b.CA(),
		"plugin.security.file.certificate": filepath.Join(b.Dir(), "broker.pem"),
		"plugin.security.file.key":         filepath.Join(b.Dir(), "broker-key.pem"),
	}
}

// fill is a configuration with a node's own values in it.
func fill(configuration map[string]string, identity, directory string) map[string]string {
	node := strings.NewReplacer("{identity}", identity, "{directory}", directory)
	filled := map[string]string{}
	for key, value := range configuration {
		filled[key] = node.Replace(value)
	}

	return filled
}

// SiteHelper is the helper key of a daemon that runs the sitehelper plugin; the
// plugin has a child process.
func SiteHelper(bin Binaries, configuration map[string]string) map[string]any {
	return map[string]any{
		"plugin": bin.SiteHelper,
		"config": map[string]any{
			"configuration": configuration,
			"child":         []string{"sleep", "600"},
		},
	}
}

// execHelper is a helper as sites wrote them for the older provisioner. It
// takes the first value of a key; keys within the inventory, a string, have
// their quotes escaped and do not match.
const execHelper = `#!/bin/sh
input=$(cat)
value() {
	printf '%s\n' "$input" | sed -n 's/.*"'"$1"'" *: *"\([^"]*\)".*/\1/p' | head -n 1
}
identity=$(value identity)
directory=$(value directory)
cat <<JSON
REPLY
JSON
`

// ExecHelper writes a helper script that gives nodes a configuration and
// returns its path.
func ExecHelper(t testing.TB, configuration map[string]string) string {
	t.Helper()

	return ExecHelperWith(t, configuration, nil)
}

// ExecHelperWith is ExecHelper with more keys in the answer.
func ExecHelperWith(t testing.TB, configuration map[string]string, more map[string]any) string {
	t.Helper()

	answer := map[string]any{
		"msg":           "enrolled",
		"configuration": fill(configuration, "$identity", "$directory"),
	}
	maps.Copy(answer, more)
	reply, err := json.MarshalIndent(answer, "", "  ")
	if err != nil {
		t.Fatal(err)
	}

	return Script(t, strings.Replace(execHelper, "REPLY", string(reply), 1))
}

// Script writes an executable script and returns its path.
func Script(t testing.TB, text string) string {
	t.Helper()

	path := filepath.Join(t.TempDir(), "helper.sh")
	err := os.WriteFile(path, []byte(text), 0o700)
	if err != nil {
		t.Fatal(err)
	}

	return path
}
