package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/choria-provisioner/provisioner/helper/helperv1"
)

// newSite is the helper, configured.
func newSite(t *testing.T, config map[string]any) *site {
	t.Helper()
	in, err := structpb.NewStruct(config)
	if err != nil {
		t.Fatal(err)
	}
	s := &site{}
	if err := s.configure(t.Context(), in); err != nil {
		t.Fatal(err)
	}

	return s
}

func csr(t *testing.T, name string) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: name}}, key)
	if err != nil {
		t.Fatal(err)
	}

	return string(encode("CERTIFICATE REQUEST", der))
}

func request(id, csrPEM string) *helperv1.ConfigureNodeRequest {
	return &helperv1.ConfigureNodeRequest{RequestId: id, Node: &helperv1.Node{
		Identity: "n1.example.net",
		Csr:      &helperv1.CSR{CsrPem: csrPEM, Ssldir: "/etc/choria/ssl"},
	}}
}

func TestCertificates(t *testing.T) {
	dir := t.TempDir()
	s := newSite(t, map[string]any{"dir": dir})
	req := request("r1", csr(t, "n1.example.net"))
	sign := func(s *site, req *helperv1.ConfigureNodeRequest) *helperv1.Configure {
		t.Helper()
		resp, err := s.configureNode(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		return resp.GetConfigure()
	}

	first := sign(s, req)
	cert, err := parseCertificate([]byte(first.GetCertificatePem()))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(first.GetCaPem()))
	if _, err := cert.Verify(x509.VerifyOptions{DNSName: "n1.example.net", Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		t.Errorf("the certificate is not good: %v", err)
	}
	if first.GetConfiguration()["plugin.security.file.certificate"] != "/etc/choria/ssl/certificate.pem" || first.GetSsldir() != "/etc/choria/ssl" {
		t.Errorf("got %v", first)
	}

	if again := sign(s, req); again.GetCertificatePem() != first.GetCertificatePem() {
		t.Error("the same request got a second certificate")
	}
	restarted := newSite(t, map[string]any{"dir": dir})
	if again := sign(restarted, req); again.GetCertificatePem() != first.GetCertificatePem() || again.GetCaPem() != first.GetCaPem() {
		t.Error("after a restart the same request got a second certificate")
	}
	if other := sign(s, request("r2", req.GetNode().GetCsr().GetCsrPem())); other.GetCertificatePem() == first.GetCertificatePem() {
		t.Error("another pass got the same certificate")
	}

	given := newSite(t, map[string]any{"dir": t.TempDir(), "ca_cert": filepath.Join(dir, "ca.pem"), "ca_key": filepath.Join(dir, "ca-key.pem")})
	if other := sign(given, req); other.GetCaPem() != first.GetCaPem() {
		t.Error("a given authority was not used")
	}
}

func TestRefusedRequests(t *testing.T) {
	s := newSite(t, map[string]any{"dir": t.TempDir()})
	broken := strings.Replace(csr(t, "n1.example.net"), "\n", "\nAAAA", 1)
	cases := map[string]struct{ csr, want string }{
		"another node's name": {csr(t, "n2.example.net"), `it is for "n2.example.net", not for the node`},
		"no PEM":              {"hello", "no PEM certificate request"},
		"a damaged one":       {broken, "certificate request: "},
	}
	for why, c := range cases {
		t.Run(why, func(t *testing.T) {
			_, err := s.configureNode(t.Context(), request("r1", c.csr))
			if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestED25519(t *testing.T) {
	s := newSite(t, map[string]any{
		"dir": t.TempDir(), "brokers": []any{"a:4222", "b:4222"}, "issuer": "abcd",
		"configuration": map[string]any{"rpcauthorization": "0", "loglevel": "debug"},
	})
	resp, err := s.configureNode(t.Context(), &helperv1.ConfigureNodeRequest{Node: &helperv1.Node{
		Identity: "n1", Ed25519: &helperv1.Ed25519Key{Directory: "/etc/choria"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	got := resp.GetConfigure()
	for k, v := range map[string]string{
		"identity":                             "n1",
		"plugin.security.provider":             "choria",
		"plugin.security.choria.token_file":    "/etc/choria/server.jwt",
		"plugin.security.choria.seed_file":     "/etc/choria/server.seed",
		"plugin.security.issuer.choria.public": "abcd",
		"plugin.choria.middleware_hosts":       "a:4222,b:4222",
		"plugin.choria.server.provision":       "false",
		"rpcauthorization":                     "0",
		"loglevel":                             "debug",
	} {
		if got.GetConfiguration()[k] != v {
			t.Errorf("%s is %q, want %q", k, got.GetConfiguration()[k], v)
		}
	}
	if got.GetCertificatePem() != "" || !slices.Equal(got.GetServerClaims().GetCollectives(), []string{"mcollective"}) {
		t.Errorf("got %v", got)
	}
}

func TestConfigRefused(t *testing.T) {
	cases := map[string]map[string]any{
		`unknown field "broker"`:                     {"broker": "a"},
		`validity "1y" is not a duration like 8760h`: {"validity": "1y"},
		"ca_cert and ca_key go together":             {"ca_cert": "a"},
		"collectives is empty":                       {"collectives": []any{}},
	}
	for want, config := range cases {
		t.Run(want, func(t *testing.T) {
			in, err := structpb.NewStruct(config)
			if err != nil {
				t.Fatal(err)
			}
			_, err = (&site{}).validate(t.Context(), in)
			if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v", err)
			}
		})
	}
}

// A plugin in a module of its own needs the SDK alone.
func TestNoGoChoria(t *testing.T) {
	for _, args := range [][]string{{"list", "-m", "all"}, {"list", "-deps", "../..."}} {
		out, err := exec.Command("go", args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if bytes.Contains(out, []byte("choria-io/")) {
			t.Errorf("go %v shows go-choria:\n%s", args, out)
		}
	}
}
