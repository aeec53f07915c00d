//go:build linux

package issuer

import (
	"testing"
	"time"

	"github.com/choria-provisioner/provisioner/e2e/harness"
	"github.com/choria-provisioner/provisioner/internal/simfleet"
)

// Nodes that misbehave, each beside 20 healthy ones, with the feature ed25519.
func TestFaults(t *testing.T) {
	// a call that is not answered ends after 22 seconds
	const oneSilence = 45 * time.Second

	bin := harness.Build(t)
	broker := harness.StartBroker(t, simfleet.Issuer)

	harness.TestFaults(t, broker, func() *harness.Daemon { return faultDaemon(t, bin, broker) }, []harness.FaultRow{
		{Fault: "key-empty", Says: "the public key has 0 characters"},
		{Fault: "key-short", Says: "the public key has 62 characters"},
		{Fault: "key-long", Says: "the public key has 66 characters"},
		{Fault: "key-huge", Says: "the public key has 200000 characters"},
		{Fault: "key-not-hex", Says: "the public key is no hex"},
		{Fault: "key-upper-case", Fate: harness.Provisioned},
		{Fault: "key-neutral", Says: "is weak: anybody could sign for it"},
		{Fault: "key-no-directory", Says: "the reply names no directory"},
		{Fault: "key-directory-newline", Says: "a line break would add a line"},
		{Fault: "signature-empty", Says: "the signature of the nonce has 0 characters"},
		{Fault: "signature-short", Says: "the signature of the nonce has 126 characters"},
		{Fault: "signature-wrong", Says: "the signature of the nonce is not that of the public key"},
		{Fault: "signature-of-other-key", Says: "the signature of the nonce is not that of the public key"},
		{Fault: "signature-replayed", Says: "the signature of the nonce is not that of the public key"},

		{Fault: "jwt-empty", Says: "the node sent no provisioning JWT"},
		{Fault: "jwt-junk", Says: "the node's provisioning JWT is refused"},
		{Fault: "jwt-huge", Says: "the node's provisioning JWT is refused"},
		{Fault: "jwt-truncated", Says: "the node's provisioning JWT is refused"},
		{Fault: "jwt-none", Says: "signing method none is invalid"},
		{Fault: "jwt-hs256-with-public-key", Says: "signing method HS256 is invalid"},
		{Fault: "jwt-hs256-with-hex-key", Says: "signing method HS256 is invalid"},
		{Fault: "jwt-rsa", Says: "rsa public key required"},
		{Fault: "jwt-other-issuer", Says: "signature is invalid"},
		{Fault: "jwt-server-purpose", Says: "not a provisioning token"},
		{Fault: "jwt-expired", Says: "token is expired"},
		{Fault: "jwt-not-yet-valid", Says: "token is not valid yet"},
		{Fault: "ecdh-empty", Says: "the ECDH public key has 0 characters"},
		{Fault: "ecdh-short", Says: "the ECDH public key has 62 characters"},
		{Fault: "ecdh-not-hex", Says: "the ECDH public key is no hex"},

		{Fault: "inventory-large", Fate: harness.Provisioned},
		{Fault: "inventory-deep", Says: "rpcutil#inventory failed: the reply cannot be read"},
		{Fault: "inventory-not-utf8", Fate: harness.Provisioned},

		{Fault: "reply-junk-body", Says: "choria_provision#jwt failed: the reply cannot be read", Limit: oneSilence},
		{Fault: "reply-empty-body", Says: "choria_provision#jwt failed: the reply cannot be read", Limit: oneSilence},
		{Fault: "reply-list", Says: "choria_provision#jwt failed: the node sent no provisioning JWT"},
		{Fault: "reply-number", Says: "choria_provision#jwt failed: invalid reply"},
		{Fault: "reply-unknown-fields", Fate: harness.Provisioned},
		{Fault: "reply-twice", Says: "two machines share this identity"},
		{Fault: "reply-often", Says: "two machines share this identity"},
		{Fault: "reply-twice-late", Fate: harness.ConfiguredOnce, Says: "two machines share this identity"},
		{Fault: "reply-from-another", Says: `answered by "somebody.example.net"`, Limit: oneSilence},
		{Fault: "reply-mute-error", Says: "choria_provision#jwt failed after 3 tries: status 1, without a reason"},
		{Fault: "reply-strange-status", Says: "choria_provision#jwt failed after 3 tries: well"},
		{Fault: "reply-long-error", Says: "choria_provision#jwt failed after 3 tries: no no"},
		{Fault: "reply-forged-log", Says: "choria_provision#jwt failed after 3 tries: no"},
		{Fault: "unknown-action", Says: "Unknown action jwt"},
		{Fault: "wrong-token", Says: "Incorrect provision token supplied"},
		{Fault: "locked", Says: "Another provisioner works on the node", Level: "info"},

		{Fault: "twin", Says: "two machines share this identity"},
		{Fault: "impostor-before", Says: "two machines share this identity"},
		{Fault: "impostor-after", Fate: harness.AtMostOnce, Says: "two machines share this identity"},
		{Fault: "impostor-configure", Fate: harness.AtMostOnce, Says: "two machines share this identity"},

		{Fault: "identity-capitals", Fate: harness.Provisioned},
		{Fault: "identity-underscore", Fate: harness.Provisioned},
		{Fault: "identity-percent", Fate: harness.Provisioned},
		{Fault: "identity-dash", Fate: harness.Provisioned},
		{Fault: "identity-shell", Fate: harness.Provisioned},
		{Fault: "identity-slash", Fate: harness.Provisioned},
		{Fault: "identity-unicode", Fate: harness.Provisioned},
		{Fault: "identity-right-to-left", Fate: harness.Provisioned},
		{Fault: "identity-253", Fate: harness.Provisioned},
		{Fault: "identity-254", Says: `long."... has 254 bytes, more than 253`, Level: "warning", Nameless: true},
		{Fault: "identity-forged", Says: `identity ">" holds`, Level: "warning", Nameless: true},

		{Fault: "replay", Fate: harness.Provisioned},
		{Fault: "dies-after-gen25519", Fate: harness.Returning, Limit: oneSilence},
		{Fault: "too-slow", Fate: harness.Configured, Says: "choria_provision#restart failed: not answered", Limit: oneSilence},
	})
}

func faultDaemon(t testing.TB, bin harness.Binaries, broker *simfleet.Broker) *harness.Daemon {
	t.Helper()

	return harness.StartDaemon(t, bin, harness.DaemonOptions{
		Name:         "provisioner",
		ChoriaConfig: harness.ProvisionerConfig(t, broker, "provisioner.example.net"),
		Config: map[string]any{
			"token":                        broker.Token(),
			"broker_provisioning_password": broker.Password(),
			"jwt_verify_cert":              broker.VerifyCert(),
			"jwt_signing_key":              broker.SigningKey(),
			"jwt_signing_token":            broker.SigningToken(),
			"features":                     map[string]bool{"ed25519": true},
			"logfile":                      harness.JSONLog,
			"loglevel":                     "info",
			"helper": map[string]any{"plugin": harness.BuildExample(t, "localca"), "config": map[string]any{
				"dir": t.TempDir(), "brokers": []string{broker.Addr()}, "issuer": broker.IssuerPublic(),
			}},
		},
	})
}
