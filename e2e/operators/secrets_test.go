//go:build linux

package operators

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"io"
	"math/big"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/choria-io/tokens"
	"sigs.k8s.io/yaml"

	"github.com/choria-provisioner/provisioner/e2e/harness"
	"github.com/choria-provisioner/provisioner/internal/simfleet"
)

// secrets are texts that nobody may see, by what they are.
type secrets map[string]string

// expectNotIn tells of each secret in text, also in base64 as the protocol wraps
// what it carries.
func (s secrets) expectNotIn(t *testing.T, where, text string) {
	t.Helper()

	if text == "" {
		t.Errorf("%s is empty", where)
	}
	for name, secret := range s {
		if len(secret) < 12 {
			t.Fatalf("%s is too short to be told from other text: %q", name, secret)
		}
		for at := range 3 {
			// Which characters stand for a text depends on where in a group of
			// three it begins; the first and last ones also on its neighbours.
			wrapped := base64.StdEncoding.EncodeToString([]byte(secret)[at:])
			wrapped = wrapped[:len(wrapped)/4*4-4]
			if i := strings.Index(text, wrapped); i >= 0 {
				t.Errorf("%s shows the %s in base64: %.200s", where, name, text[max(0, i-100):])
			}
		}
		if i := strings.Index(text, secret); i >= 0 {
			t.Errorf("%s shows the %s: %.200s", where, name, text[max(0, i-100):])
		}
	}
}

// read is a file's text without white space around it.
func read(t testing.TB, path string) string {
	t.Helper()

	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	return strings.TrimSpace(string(text))
}

// At level debug, with nodes that are provisioned, refuse the token and send a
// foreign JWT, no secret is in the log (ours, go-choria's and go-plugin's), on
// the metrics pages, or in what check says of the configuration.
func TestSecretsStayInside(t *testing.T) {
	bin := harness.Build(t)

	for _, tc := range []struct {
		why      string
		features map[string]bool
		helper   func(t *testing.T, broker *simfleet.Broker, s secrets) any
	}{
		{"a plugin, server JWTs", map[string]bool{"ed25519": true}, func(_ *testing.T, broker *simfleet.Broker, s secrets) any {
			s["helper's configuration"] = "config-secret-" + rand.Text()
			s["helper's environment"] = "env-secret-" + rand.Text()
			configuration := harness.IssuerConfiguration(broker)
			configuration["plugin.site.password"] = s["helper's configuration"]

			return map[string]any{
				"plugin": bin.SiteHelper,
				"env":    map[string]string{"SITE_SECRET": s["helper's environment"]},
				"config": map[string]any{"configuration": configuration},
			}
		}},
		{"an exec helper, private keys", map[string]bool{"pki": true, "jwt": true}, func(t *testing.T, _ *simfleet.Broker, s secrets) any {
			key, certificate := keyPair(t)
			s["private key"] = strings.Split(key, "\n")[3]
			s["node's configuration"] = "node-secret-" + rand.Text()
			reply, err := json.Marshal(map[string]any{
				"key": key, "certificate": certificate, "ca": certificate, "ssldir": "/etc/choria/ssl",
				"configuration": map[string]string{
					"plugin.choria.server.provision": "false",
					"plugin.site.password":           s["node's configuration"],
				},
			})
			if err != nil {
				t.Fatal(err)
			}

			// What it says on standard error is the helper's own business.
			return harness.Script(t, "#!/bin/sh\ncat >/dev/null\ncat <<'JSON'\n"+string(reply)+"\nJSON\n")
		}},
	} {
		t.Run(tc.why, func(t *testing.T) {
			broker := startBroker(t)
			s := secrets{
				"provision token": broker.Token(),
				"broker password": broker.Password(),
				"signing seed":    read(t, broker.SigningKey()),
			}
			choriaConfig := harness.ProvisionerConfig(t, broker, "provisioner.example.net")
			s["daemon's seed"] = read(t, strings.TrimSuffix(choriaConfig, ".conf")+".seed")
			s["daemon's token"] = read(t, strings.TrimSuffix(choriaConfig, ".conf")+".jwt")
			s["node's broker password"] = "claims-password-" + rand.Text()
			jwt, err := broker.NewProvisioningJWT(func(c *tokens.ProvisioningClaims) { c.ProvNatsPass = s["node's broker password"] })
			if err != nil {
				t.Fatal(err)
			}
			s["provisioning JWT"] = jwt
			fleet := harness.StartFleet(t, broker, 3, simfleet.NodeOptions{JWT: jwt})
			keys := map[string]any{
				"loglevel": "debug",
				"features": tc.features,
				"helper":   tc.helper(t, broker, s),
			}
			daemon := startDaemon(t, bin, broker, keys)
			harness.ExpectProvisioned(t, fleet, limit)

			for identity, change := range map[string]func(*simfleet.NodeOptions){
				"other-token.example.net": func(o *simfleet.NodeOptions) { o.Token = "another" },
				"foreign-jwt.example.net": func(o *simfleet.NodeOptions) { o.JWT = jwt[:len(jwt)-8] + "AAAAAAAA" },
			} {
				if _, err := fleet.Add(t.Context(), identity, change); err != nil {
					t.Fatal(err)
				}
			}
			harness.Eventually(t, limit, "two refused nodes", func() error {
				return daemon.ExpectMetric("choria_provisioner_provision_errors", 2)
			})

			for _, node := range fleet.Nodes()[:3] {
				configured := node.Configured()
				if configured.Config["plugin.site.password"] == "" {
					t.Fatal("the nodes were given no secret that could be found")
				}
				if configured.ServerJWT != "" {
					s["server JWT of "+node.Identity()] = configured.ServerJWT
				}
				if tc.features["pki"] && !strings.Contains(configured.Key, s["private key"]) {
					t.Fatal("the nodes were given no private key that could be found")
				}
			}
			for _, page := range []string{"/metrics", "/healthz", "/readyz"} {
				s.expectNotIn(t, page, get(t, daemon.Monitor+page))
			}
			log := daemon.Log()
			if !strings.Contains(log, "level=debug") {
				t.Error("the log is not that of level debug")
			}
			s.expectNotIn(t, "the log", log)
			s.expectNotIn(t, "check --json", check(t, bin, broker, keys))
		})
	}
}

// check is what the command says of the daemon's configuration.
func check(t *testing.T, bin harness.Binaries, broker *simfleet.Broker, keys map[string]any) string {
	t.Helper()

	config := map[string]any{"token": broker.Token(), "broker_provisioning_password": broker.Password()}
	for key, value := range keys {
		config[key] = value
	}
	text, err := yaml.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	// It fails for what this configuration lacks, and shows it all the same.
	out, _ := exec.Command(bin.Provisioner, "check", "--json", "--config",
		write(t, filepath.Join(t.TempDir(), "provisioner.yaml"), string(text))).CombinedOutput()
	if !strings.Contains(string(out), "***") {
		t.Errorf("check --json masks nothing: %s", out)
	}

	return string(out)
}

func get(t *testing.T, url string) string {
	t.Helper()

	client := http.Client{Timeout: 5 * time.Second}
	response, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}

	return string(body)
}

// keyPair is a private key and a certificate of it, as a helper hands out both.
func keyPair(t *testing.T) (key, certificate string) {
	t.Helper()

	private, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: "a node"},
		NotAfter:     time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}

	return string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(private)})),
		string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}
