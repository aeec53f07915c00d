package helpertest

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"regexp"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/choria-provisioner/provisioner/helper/helperv1"
)

// checkIdentity finds another generated node's name in an answer: calls that
// run at once must share nothing.
func (k *kit) checkIdentity(n *helperv1.Node, answer *helperv1.ConfigureNodeResponse) error {
	text, err := proto.Marshal(answer)
	if err != nil {
		return err
	}
	name := regexp.MustCompile(`n[0-9]+\.` + regexp.QuoteMeta(k.fleet.domain))
	for _, found := range name.FindAll(text, -1) {
		if string(found) != n.GetIdentity() {
			return fmt.Errorf("the answer for %s names another node, %s", n.GetIdentity(), found)
		}
	}

	return nil
}

// checkCertificate judges a certificate for a node's request; a helper may well
// issue none.
func checkCertificate(n *helperv1.Node, c *helperv1.Configure) error {
	if c.GetCertificatePem() == "" {
		return nil
	}
	block, _ := pem.Decode([]byte(c.GetCertificatePem()))
	if block == nil || block.Type != "CERTIFICATE" {
		return errors.New("certificate_pem: it is no PEM certificate")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return fmt.Errorf("certificate_pem: %w", err)
	}
	if cert.Subject.CommonName != n.GetIdentity() && !slices.Contains(cert.DNSNames, n.GetIdentity()) {
		return fmt.Errorf("certificate_pem: it is for %q, not for %s", cert.Subject.CommonName, n.GetIdentity())
	}
	if c.GetPrivateKeyPem() == "" {
		block, _ := pem.Decode([]byte(n.GetCsr().GetCsrPem()))
		if block == nil {
			return errors.New("the node's own certificate request is no PEM")
		}
		csr, err := x509.ParseCertificateRequest(block.Bytes)
		if err != nil {
			return fmt.Errorf("the node's own certificate request: %w", err)
		}
		if !bytes.Equal(csr.RawSubjectPublicKeyInfo, cert.RawSubjectPublicKeyInfo) {
			return errors.New("certificate_pem: it is not for the key of the node's request")
		}
	}

	return checkIssuer(cert, c)
}

func checkIssuer(cert *x509.Certificate, c *helperv1.Configure) error {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(c.GetCaPem())) {
		return errors.New("ca_pem: it holds no certificate, the node could not verify anyone")
	}
	intermediates := x509.NewCertPool()
	intermediates.AppendCertsFromPEM([]byte(c.GetCertificatePem()))
	_, err := cert.Verify(x509.VerifyOptions{Roots: pool, Intermediates: intermediates, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	if err != nil {
		return fmt.Errorf("certificate_pem: it is not issued by ca_pem: %w", err)
	}

	return nil
}

// difference names the first field in which two answers differ.
func difference(a, b proto.Message) string {
	if path := differs(a.ProtoReflect(), b.ProtoReflect()); path != "" {
		return path[1:] + " is not the same"
	}

	return "they are not the same"
}

func differs(a, b protoreflect.Message) string {
	fields := a.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if a.Get(f).Equal(b.Get(f)) && a.Has(f) == b.Has(f) {
			continue
		}
		name := "." + string(f.Name())
		if f.Message() != nil && !f.IsMap() && !f.IsList() && a.Has(f) && b.Has(f) {
			return name + differs(a.Get(f).Message(), b.Get(f).Message())
		}
		return name
	}

	return ""
}
