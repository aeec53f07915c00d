package host

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"testing"

	"github.com/choria-io/tokens"

	"github.com/choria-provisioner/provisioner/helper/helperv1"
	"github.com/choria-provisioner/provisioner/metrics"
)

// What was shown and made in a pass is in its outcome, for the audit log.
func TestOutcome(t *testing.T) {
	t.Run("an ed25519 key and a server JWT", func(t *testing.T) {
		s := newSetup(t, Features{JWT: true, ED25519: true})
		s.cfg.Epoch = 7
		outcome, err := s.provision(t.Context())
		must(t, err)

		claims, err := tokens.ParseServerTokenUnverified(s.caller.last(ActionConfigure).Configure.ServerJWT)
		must(t, err)
		key := sha256.Sum256(s.node.seed.Public().(ed25519.PublicKey))
		want := Outcome{Result: Provisioned, RequestID: s.helper.asked[0].RequestId, Version: "0.30.2", KeyFingerprint: fmt.Sprintf("%x", key), JWTID: claims.ID, Epoch: 7}
		if outcome != want {
			t.Errorf("outcome %+v, want %+v", outcome, want)
		}
	})

	t.Run("a CSR and the helper's certificate", func(t *testing.T) {
		s := newSetup(t, Features{PKI: true})
		certificate := makeCertificate(t, big.NewInt(0xc0ffee))
		s.helper.configure = configureWith(func(c *helperv1.Configure) { c.CertificatePem, c.CaPem = certificate, certificate })
		outcome, err := s.provision(t.Context())
		must(t, err)

		der, err := x509.MarshalPKIXPublicKey(s.node.csrKey.Public())
		must(t, err)
		if want := fmt.Sprintf("%x", sha256.Sum256(der)); outcome.KeyFingerprint != want {
			t.Errorf("fingerprint %s, want %s", outcome.KeyFingerprint, want)
		}
		if outcome.CertificateSerial != "c0ffee" || outcome.JWTID != "" {
			t.Errorf("outcome %+v", outcome)
		}
	})

	t.Run("a pass that failed in the end", func(t *testing.T) {
		s := newSetup(t, Features{JWT: true, ED25519: true})
		s.node.replies[ActionRestart] = func(context.Context, int) ([]Reply, error) { return nil, errors.New("no route") }
		outcome, err := s.provision(t.Context())
		if err == nil || outcome.JWTID == "" || outcome.KeyFingerprint == "" || outcome.Version == "" {
			t.Errorf("error %v, outcome %+v: the server JWT has left", err, outcome)
		}
	})

	t.Run("a certificate that is none", func(t *testing.T) {
		for _, text := range []string{"", "no PEM", "-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n"} {
			if got := certificateSerial(text); got != "" {
				t.Errorf("%q has serial %q", text, got)
			}
		}
	})
}

func TestFailure(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()

	for _, tc := range []struct {
		why  string
		ctx  context.Context
		err  error
		want Result
	}{
		{"anything else is a failure", t.Context(), errors.New("disk full"), Failed},
		{"a silent node is a failure", t.Context(), ErrNotAnswered, Failed},
		{"wrapped by the call and its tries", t.Context(), fmt.Errorf("jwt: %w", fmt.Errorf("2 tries: %w", ErrLocked)), Locked},
		{"", t.Context(), ErrTwins, Twins},
		{"", t.Context(), ErrPaused, Paused},
		{"", t.Context(), ErrDisconnected, Disconnected},
		{"", t.Context(), ErrHelperUnavailable, HelperUnavailable},
		{"whatever a call said when the lease was lost in it", over, ErrLocked, Cancelled},
	} {
		if got := Failure(tc.ctx, tc.err); got != tc.want {
			t.Errorf("%s: %v is %s, want %s", tc.why, tc.err, got, tc.want)
		}
	}
}

// Each result is a series from the start, and no other is.
func TestResultsAreMetrics(t *testing.T) {
	families, err := metrics.New("test").Gatherer().Gather()
	must(t, err)

	var got []Result
	for _, f := range families {
		if f.GetName() != "choria_provisioner_pass_seconds" {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "result" {
					got = append(got, Result(l.GetValue()))
				}
			}
		}
	}
	want := Results()
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("series of %v, results are %v", got, want)
	}
}

func makeCertificate(t *testing.T, serial *big.Int) string {
	t.Helper()

	public, private, err := ed25519.GenerateKey(rand.Reader)
	must(t, err)
	template := &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: testIdentity}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, private)
	must(t, err)

	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}
