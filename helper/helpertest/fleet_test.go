package helpertest

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"testing"
)

// A helper is tried with what a node sends and the host lets through, else it
// passes here and fails there.
func TestNodesAreAsTheHostSeesThem(t *testing.T) {
	f, err := newFleet()
	if err != nil {
		t.Fatal(err)
	}
	n := f.withCSR()

	block, _ := pem.Decode([]byte(n.GetCsr().GetCsrPem()))
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil || len(csr.Subject.Names) != 1 || csr.Subject.CommonName != n.GetIdentity() || len(csr.Extensions) > 0 {
		t.Errorf("the CSR is for %v with %d extensions: %v", csr.Subject, len(csr.Extensions), err)
	}
	block, _ = pem.Decode([]byte(n.GetCsr().GetPublicKeyPem()))
	if _, err := x509.ParsePKCS1PublicKey(block.Bytes); err != nil || block.Type != "PUBLIC KEY" {
		t.Errorf("the public key: %v, type %s", err, block.Type)
	}
	var claims map[string]any
	if err := json.Unmarshal(n.GetProvisioningClaimsJson(), &claims); err != nil || claims["chpwd"] != nil || claims["chs"] != true {
		t.Errorf("the claims are %v: %v", claims, err)
	}
}
