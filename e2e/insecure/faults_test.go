//go:build linux

package insecure

import (
	"testing"
	"time"

	"github.com/choria-provisioner/provisioner/e2e/harness"
	"github.com/choria-provisioner/provisioner/internal/simfleet"
)

// Nodes that misbehave, each beside 20 healthy ones, with the features pki and
// jwt.
func TestFaults(t *testing.T) {
	const (
		// a call that is not answered ends after 22 seconds
		oneSilence = 45 * time.Second
		// jwt is tried three times
		threeSilences = 95 * time.Second
	)
	bin := harness.Build(t)
	broker := harness.StartBroker(t, simfleet.Insecure)

	harness.TestFaults(t, broker, func() *harness.Daemon { return faultDaemon(t, bin, broker) }, []harness.FaultRow{
		{Fault: "csr-empty", Says: "the node's CSR is refused: it is no PEM"},
		{Fault: "csr-no-pem", Says: "the node's CSR is refused: it is no PEM"},
		{Fault: "csr-wrong-block", Says: `it is a PEM block of type "CERTIFICATE"`},
		{Fault: "csr-junk-der", Says: "it cannot be parsed"},
		{Fault: "csr-trailing-data", Says: "there is data after it"},
		{Fault: "csr-trailing-der", Says: "it cannot be parsed"},
		{Fault: "csr-two", Says: "there is data after it"},
		{Fault: "csr-bad-signature", Says: "its signature is not its own"},
		{Fault: "csr-other-cn", Says: `it is for "other.example.net"`},
		{Fault: "csr-long-cn", Says: "bytes, more than 32768"},
		{Fault: "csr-privileged", Says: `.privileged.mcollective"`},
		{Fault: "csr-case", Says: `it is for "CSR-CASE.FAULT.EXAMPLE.NET"`},
		{Fault: "csr-trailing-dot", Says: `it is for "csr-trailing-dot.fault.example.net."`},
		{Fault: "csr-white-space", Says: `it is for "csr-white-space.fault.example.net "`},
		{Fault: "csr-nul", Says: `\x00.example.org"`},
		{Fault: "csr-no-cn", Says: "not one common name"},
		{Fault: "csr-two-cns", Says: "not one common name"},
		{Fault: "csr-san-dns", Says: `it is for "other.example.net"`},
		{Fault: "csr-san-own-dns", Fate: harness.Provisioned},
		{Fault: "csr-san-ip", Says: "it has an alternative name that is no DNS name"},
		{Fault: "csr-san-email", Says: "it has an alternative name that is no DNS name"},
		{Fault: "csr-san-uri", Says: "it has an alternative name that is no DNS name"},
		{Fault: "csr-san-registered-id", Says: "it has an alternative name that is no DNS name"},
		{Fault: "csr-san-junk", Says: "it cannot be parsed: x509: invalid subject alternative names"},

		{Fault: "inventory-large", Fate: harness.Provisioned},
		{Fault: "inventory-nested", Fate: harness.Provisioned},
		{Fault: "inventory-deep", Says: "rpcutil#inventory failed: the reply cannot be read"},
		{Fault: "inventory-wrong-types", Says: "invalid inventory"},
		{Fault: "inventory-facts-list", Says: "invalid inventory: its facts are no JSON object"},
		{Fault: "inventory-no-version", Fate: harness.Provisioned},
		{Fault: "inventory-no-facts", Fate: harness.Provisioned},
		// go-choria's client makes an empty inventory of them
		{Fault: "inventory-list", Fate: harness.Provisioned},
		{Fault: "inventory-null", Fate: harness.Provisioned},
		{Fault: "inventory-junk", Says: "rpcutil#inventory failed: the reply cannot be read"},
		{Fault: "inventory-not-utf8", Fate: harness.Provisioned},
		// neither answers in the time of this test, at five tries
		{Fault: "inventory-huge"},
		{Fault: "silent"},

		{Fault: "silent-gencsr", Says: "choria_provision#gencsr failed: not answered", Limit: oneSilence},
		{Fault: "silent-restart", Fate: harness.Configured, Says: "choria_provision#restart failed: not answered", Limit: oneSilence},
		{Fault: "reply-junk", Says: "choria_provision#jwt failed after 3 tries: not answered", Limit: threeSilences},
		{Fault: "slow", Fate: harness.Provisioned, Limit: oneSilence},
		{Fault: "lost-configure", Fate: harness.Provisioned, Limit: oneSilence},
		{Fault: "lost-restart", Fate: harness.Provisioned},
		{Fault: "flaky-inventory", Fate: harness.Provisioned},
		{Fault: "failing-inventory", Says: "rpcutil#inventory failed after 5 tries: never"},
		{Fault: "dies-after-jwt", Fate: harness.Returning, Limit: oneSilence},
		{Fault: "dies-after-inventory", Fate: harness.Returning, Limit: oneSilence},
		// gencsr and restart are not tried again: the next discovery brings it
		{Fault: "dies-after-gencsr", Fate: harness.Returning, Limit: threeSilences},
		{Fault: "dies-after-configure", Fate: harness.Returning, Limit: threeSilences},
		{Fault: "csr-new-key", Fate: harness.Wiped},
	})
}

func faultDaemon(t testing.TB, bin harness.Binaries, broker *simfleet.Broker) *harness.Daemon {
	t.Helper()

	return startDaemon(t, bin, broker, harness.DaemonOptions{
		Name: "provisioner",
		Config: map[string]any{
			"logfile":  harness.JSONLog,
			"loglevel": "info",
			"features": map[string]bool{"pki": true, "jwt": true},
			"helper": map[string]any{"plugin": harness.BuildExample(t, "localca"), "config": map[string]any{
				"dir": t.TempDir(), "brokers": []string{broker.Addr()},
			}},
		},
	})
}
