//go:build linux

// Package insecure tests the provisioner with real Choria servers on a network
// without TLS and signatures. go-choria decides by a global whether requests
// are signed, so the network with an issuer has a test binary of its own.
package insecure

import (
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/choria-provisioner/provisioner/e2e/harness"
	"github.com/choria-provisioner/provisioner/internal/simfleet"
)

// enrolLimit is how long a node may take from its start to its second start:
// discovery, the sequence, and a splay of up to 12 seconds.
const enrolLimit = 45 * time.Second

func TestInsecure(t *testing.T) {
	bin := harness.Build(t)

	for _, test := range []struct {
		name string
		run  func(*testing.T, harness.Binaries)
	}{
		{"certificates by a Go plugin", testLocalCA},
		{"exec helper", testExecHelper},
		{"standby", testStandby},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(t, bin)
		})
	}
}

// The example plugin signs the node's request; the node holds the certificate,
// the CA and the key they belong to.
func testLocalCA(t *testing.T, bin harness.Binaries) {
	broker := harness.StartBroker(t, simfleet.Insecure)
	daemon := startDaemon(t, bin, broker, harness.DaemonOptions{
		Name: "provisioner",
		Config: map[string]any{
			"features": map[string]bool{"jwt": true, "pki": true},
			"helper": map[string]any{
				"plugin": harness.BuildExample(t, "localca"),
				"config": map[string]any{
					"dir":     t.TempDir(),
					"brokers": []string{broker.Addr()},
					// the broker's certificate is from another authority
					"configuration": map[string]string{"plugin.security.file.ca": broker.CA()},
				},
			},
		},
	})
	node := startNode(t, bin, broker, "signed.example.net")

	expectEnrolled(t, broker, daemon, node)
	node.ExpectConfiguration(t, map[string]string{
		"identity":                         "{identity}",
		"collectives":                      harness.Collective,
		"main_collective":                  harness.Collective,
		"loglevel":                         "info",
		"registerinterval":                 "300",
		"plugin.choria.middleware_hosts":   broker.Addr(),
		"plugin.choria.server.provision":   "false",
		"plugin.security.provider":         "file",
		"plugin.security.file.ca":          broker.CA(),
		"plugin.security.file.certificate": "{directory}/ssl/certificate.pem",
		"plugin.security.file.key":         "{directory}/ssl/private.pem",
	})
	expectCertificate(t, node)
}

// A script that knows nothing of us configures a node, and the daemon needs
// nothing of its environment for it.
func testExecHelper(t *testing.T, bin harness.Binaries) {
	broker := harness.StartBroker(t, simfleet.Insecure)
	configuration := harness.InsecureConfiguration(broker)

	daemon := startDaemon(t, bin, broker, harness.DaemonOptions{
		Name: "provisioner",
		Config: map[string]any{
			"features": map[string]bool{"jwt": true},
			"helper":   harness.ExecHelper(t, configuration),
		},
		BareEnvironment: true,
	})
	node := startNode(t, bin, broker, "scripted.example.net")

	expectEnrolled(t, broker, daemon, node)
	node.ExpectConfiguration(t, configuration)
}

// A helper that never answers, and left a child, holds nobody up at SIGTERM.
func TestTerminateExecHelper(t *testing.T) {
	bin := harness.Build(t)
	broker := harness.StartBroker(t, simfleet.Insecure)
	daemon := startDaemon(t, bin, broker, harness.DaemonOptions{
		Name:   "provisioner",
		Config: map[string]any{"helper": harness.Script(t, "#!/bin/sh\nsleep 601 &\nsleep 602\n")},
	})
	startNode(t, bin, broker, "stuck.example.net")

	harness.Eventually(t, 20*time.Second, "start of the helper script", func() error {
		for _, id := range daemon.Descendants() {
			if strings.Contains(id.Command(), "sleep 602") {
				return nil
			}
		}
		return errors.New("it does not run")
	})
	harness.TerminateInTime(t, daemon, "exec-helper", "helper.sh", "sleep 601")
}

func testStandby(t *testing.T, bin harness.Binaries) {
	broker := harness.StartBroker(t, simfleet.Insecure)
	helper := harness.SiteHelper(bin, harness.InsecureConfiguration(broker))

	harness.TestStandby(t, harness.Standby{
		StartDaemon: func(t testing.TB, name string) *harness.Daemon {
			return startDaemon(t, bin, broker, harness.DaemonOptions{
				Name: name,
				Config: map[string]any{
					"leader_election": true,
					"features":        map[string]bool{"jwt": true},
					"helper":          helper,
				},
			})
		},
		StartNode: func(t testing.TB, identity string) *harness.Node {
			return startNode(t, bin, broker, identity)
		},
	})
}

func startNode(t testing.TB, bin harness.Binaries, broker *simfleet.Broker, identity string) *harness.Node {
	t.Helper()

	return harness.StartNode(t, bin, identity, harness.ProvisioningToken(t, broker))
}

// startDaemon starts a daemon on the broker; options say what it does there.
func startDaemon(t testing.TB, bin harness.Binaries, broker *simfleet.Broker, opts harness.DaemonOptions) *harness.Daemon {
	t.Helper()

	opts.Config["choria_insecure"] = true
	opts.Config["token"] = broker.Token()
	opts.Config["jwt_verify_cert"] = broker.VerifyCert()
	opts.ChoriaConfig = harness.ProvisionerConfig(t, broker, opts.Name+".example.net")

	return harness.StartDaemon(t, bin, opts)
}

// expectEnrolled waits until the node is back on the network with the
// configuration it was given.
func expectEnrolled(t testing.TB, broker *simfleet.Broker, daemon *harness.Daemon, node *harness.Node) {
	t.Helper()

	harness.Eventually(t, enrolLimit, "return of "+node.Identity, func() error {
		// all who come over the network are in one account
		return harness.Connections(broker, node, "provisioning", "provisioning")
	})
	node.ExpectReexecuted(t)
	harness.Eventually(t, 5*time.Second, "count of provisioned nodes", func() error {
		return daemon.ExpectMetric("choria_provisioner_provisioned", 1)
	})
}

// expectCertificate checks the files that the provision agent wrote beside the
// key that the node made itself.
func expectCertificate(t testing.TB, node *harness.Node) {
	t.Helper()

	certificate := readCertificate(t, node, "ssl/certificate.pem")
	roots := x509.NewCertPool()
	roots.AddCert(readCertificate(t, node, "ssl/ca.pem"))
	_, err := certificate.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	if err != nil {
		t.Errorf("certificate of %s: %v", node.Identity, err)
	}
	if certificate.Subject.CommonName != node.Identity {
		t.Errorf("certificate of %s is for %q", node.Identity, certificate.Subject.CommonName)
	}

	key, err := x509.ParsePKCS1PrivateKey(readPEM(t, node, "ssl/private.pem"))
	if err != nil {
		t.Fatal(err)
	}
	public, ok := certificate.PublicKey.(*rsa.PublicKey)
	if !ok || !public.Equal(key.Public()) {
		t.Errorf("the certificate of %s is not for its key", node.Identity)
	}
}

func readCertificate(t testing.TB, node *harness.Node, name string) *x509.Certificate {
	t.Helper()

	certificate, err := x509.ParseCertificate(readPEM(t, node, name))
	if err != nil {
		t.Fatalf("%s: %v", node.Path(name), err)
	}

	return certificate
}

func readPEM(t testing.TB, node *harness.Node, name string) []byte {
	t.Helper()

	text, err := node.Read(name)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		t.Fatalf("%s is no PEM", node.Path(name))
	}

	return block.Bytes
}
