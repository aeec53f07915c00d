//go:build linux

// Package operators shows what those who run the daemon rely on: its audit log,
// secrets that stay inside and can be rotated, and early words about a signing
// token.
package operators

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/choria-io/tokens"

	"github.com/choria-provisioner/provisioner/e2e/harness"
	"github.com/choria-provisioner/provisioner/internal/simfleet"
)

// limit is how long a few nodes may take on a machine that does much else.
const limit = 60 * time.Second

// startBroker starts a network whose secrets are found in any text.
func startBroker(t testing.TB) *simfleet.Broker {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	broker, err := simfleet.StartBroker(ctx, simfleet.BrokerOptions{
		Dir:         t.TempDir(),
		ElectionTTL: simfleet.MinElectionTTL,
		Password:    "broker-password-" + rand.Text(),
		Token:       "provision-token-" + rand.Text(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := broker.Close(); err != nil {
			t.Error(err)
		}
	})

	return broker
}

// startDaemon starts a daemon with ed25519 nodes and the plugin of e2e, both
// changed by keys.
func startDaemon(t testing.TB, bin harness.Binaries, broker *simfleet.Broker, keys map[string]any) *harness.Daemon {
	t.Helper()

	config := map[string]any{
		"token":                        broker.Token(),
		"broker_provisioning_password": broker.Password(),
		"jwt_verify_cert":              broker.VerifyCert(),
		"jwt_signing_key":              broker.SigningKey(),
		"jwt_signing_token":            broker.SigningToken(),
		"features":                     map[string]bool{"ed25519": true},
		"helper": map[string]any{"plugin": bin.SiteHelper, "config": map[string]any{
			"configuration": harness.IssuerConfiguration(broker),
		}},
	}
	for key, value := range keys {
		config[key] = value
	}

	return harness.StartDaemon(t, bin, harness.DaemonOptions{
		Name:         "provisioner",
		ChoriaConfig: harness.ProvisionerConfig(t, broker, "provisioner.example.net"),
		Config:       config,
	})
}

func write(t testing.TB, path, text string) string {
	t.Helper()

	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}

	return path
}

// Each pass leaves one line with what was shown and made in it, though only
// errors are logged otherwise.
func TestAudit(t *testing.T) {
	bin, broker := harness.Build(t), startBroker(t)
	fleet := harness.StartFleet(t, broker, 3, simfleet.NodeOptions{})
	daemon := startDaemon(t, bin, broker, map[string]any{
		"loglevel":        "error",
		"logfile":         harness.JSONLog,
		"leader_election": true,
	})
	harness.ExpectProvisioned(t, fleet, limit)
	if _, err := fleet.Add(t.Context(), "other-token.example.net", func(o *simfleet.NodeOptions) { o.Token = "another" }); err != nil {
		t.Fatal(err)
	}

	var lines map[string]map[string]any
	harness.Eventually(t, limit, "audit lines of four nodes", func() error {
		lines = auditLines(t, daemon)
		if len(lines) != 4 {
			return fmt.Errorf("there are lines of %d nodes", len(lines))
		}
		return nil
	})

	for _, node := range fleet.Nodes()[:3] {
		line := lines[node.Identity()]
		key, err := hex.DecodeString(node.PublicKey())
		if err != nil {
			t.Fatal(err)
		}
		issuer, err := hex.DecodeString(broker.IssuerPublic())
		if err != nil {
			t.Fatal(err)
		}
		claims, err := tokens.ParseServerToken(node.Configured().ServerJWT, ed25519.PublicKey(issuer))
		if err != nil {
			t.Fatal(err)
		}
		for field, want := range map[string]any{
			"level": "info", "result": "provisioned", "error": "",
			"key_sha256":         fmt.Sprintf("%x", sha256.Sum256(key)),
			"jwt_id":             claims.ID,
			"certificate_serial": "",
			"version":            simfleet.DefaultVersion,
			"helper":             "sitehelper",
			"helper_build":       "1",
		} {
			if line[field] != want {
				t.Errorf("%s: %s is %v, want %v", node.Identity(), field, line[field], want)
			}
		}
		if took, err := time.ParseDuration(fmt.Sprint(line["duration"])); err != nil || took <= 0 {
			t.Errorf("%s: duration is %v", node.Identity(), line["duration"])
		}
		if epoch, _ := line["epoch"].(float64); epoch <= 0 {
			t.Errorf("%s: epoch is %v though it was elected", node.Identity(), line["epoch"])
		}
	}

	line := lines["other-token.example.net"]
	if text := fmt.Sprint(line["error"]); line["result"] != "failed" || !strings.Contains(text, "choria_provision#jwt failed") {
		t.Errorf("the node that refuses the token: result %v, error %q", line["result"], text)
	}
}

// auditLines are the last audit lines of each node.
func auditLines(t testing.TB, daemon *harness.Daemon) map[string]map[string]any {
	t.Helper()

	lines := map[string]map[string]any{}
	for text := range strings.Lines(daemon.Log()) {
		var line map[string]any
		if json.Unmarshal([]byte(text), &line) == nil && line["component"] == "audit" {
			lines[fmt.Sprint(line["identity"])] = line
		}
	}

	return lines
}

// A provisioning token is rotated without a restart, secrets need not stand in
// the configuration, and metrics are shown where they were told to be alone.
func TestSecretsInFiles(t *testing.T) {
	bin, broker := harness.Build(t), startBroker(t)
	dir := t.TempDir()
	token := write(t, filepath.Join(dir, "token"), broker.Token()+"\n")
	fleet := harness.StartFleet(t, broker, 3, simfleet.NodeOptions{})
	daemon := startDaemon(t, bin, broker, map[string]any{
		"token":                             "",
		"token_file":                        token,
		"broker_provisioning_password":      "",
		"broker_provisioning_password_file": write(t, filepath.Join(dir, "password"), broker.Password()+"\n"),
	})
	harness.ExpectProvisioned(t, fleet, limit)

	write(t, token, "rotated\n")
	for i := range 3 {
		if _, err := fleet.Add(t.Context(), fmt.Sprintf("later-%d.example.net", i), func(o *simfleet.NodeOptions) { o.Token = "rotated" }); err != nil {
			t.Fatal(err)
		}
	}
	harness.ExpectProvisioned(t, fleet, limit)
	if err := daemon.ExpectMetric("choria_provisioner_provision_errors", 0); err != nil {
		t.Error(err)
	}

	monitor, err := url.Parse(daemon.Monitor)
	if err != nil {
		t.Fatal(err)
	}
	if conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.2", monitor.Port())); err == nil {
		conn.Close()
		t.Error("metrics are shown on another address than monitor_address")
	}
}

// A signing token that no server JWT can be chained with is said at start, with
// no node there, and each minute's metric shows its end.
func TestSigningTokenAtStart(t *testing.T) {
	bin, broker := harness.Build(t), startBroker(t)
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	token := func(validity time.Duration, chained bool) string {
		claims, err := tokens.NewClientIDClaims("choria=signer", nil, "choria", nil, "", "", validity, nil, public)
		if err != nil {
			t.Fatal(err)
		}
		if chained {
			if err := claims.AddOrgIssuerData(private); err != nil {
				t.Fatal(err)
			}
		}
		signed, err := tokens.SignToken(claims, private)
		if err != nil {
			t.Fatal(err)
		}
		return write(t, filepath.Join(t.TempDir(), "signer.jwt"), signed)
	}

	for _, tc := range []struct {
		why   string
		token string
		says  string
		// ends is when the token ends, from now.
		ends time.Duration
	}{
		{"it cannot sign servers", token(time.Hour, false), "has no trust chain signature", time.Hour},
		{"it has expired", token(-time.Hour, true), "expired at", -time.Hour},
		{"there is time to replace it", token(24*time.Hour, true), "jwt_signing_token expires soon", 24 * time.Hour},
		{"all is well", token(30*24*time.Hour, true), "jwt_signing_token is valid until", 30 * 24 * time.Hour},
	} {
		t.Run(tc.why, func(t *testing.T) {
			daemon := startDaemon(t, bin, broker, map[string]any{"jwt_signing_token": tc.token})
			harness.Eventually(t, limit, "word of the token", func() error {
				if !strings.Contains(daemon.Log(), tc.says) {
					return fmt.Errorf("the log has no %q", tc.says)
				}
				return nil
			})

			at, err := daemon.Metric("choria_provisioner_signing_token_expiry_timestamp_seconds")
			if err != nil {
				t.Fatal(err)
			}
			if off := time.Until(time.Unix(int64(at), 0)) - tc.ends; off.Abs() > 5*time.Minute {
				t.Errorf("the metric says %v, off by %v", time.Unix(int64(at), 0), off)
			}
		})
	}
}
