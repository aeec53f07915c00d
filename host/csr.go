package host

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/asn1"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"regexp"

	"github.com/choria-provisioner/provisioner/helper/helperv1"
)

// fetchCSR makes the node generate a key and a CSR, and checks the CSR.
func (h *Host) fetchCSR(ctx context.Context, n *node) error {
	return h.call(ctx, Request{Action: ActionGenCSR}, func(r Reply) (err error) {
		n.csr, err = readCSR(r.Data, h.identity, h.cfg.CertDenyList)
		return err
	})
}

// readCSR reads the reply to gencsr and checks the CSR.
func readCSR(data []byte, identity string, deny []*regexp.Regexp) (*helperv1.CSR, error) {
	var reply struct {
		CSR       string `json:"csr"`
		PublicKey string `json:"public_key"`
		SSLDir    string `json:"ssldir"`
	}
	if err := json.Unmarshal(data, &reply); err != nil {
		return nil, fmt.Errorf("invalid reply: %w", err)
	}
	if err := checkCSR([]byte(reply.CSR), identity, deny); err != nil {
		return nil, fmt.Errorf("the node's CSR is refused: %w", err)
	}

	return &helperv1.CSR{CsrPem: reply.CSR, PublicKeyPem: reply.PublicKey, Ssldir: reply.SSLDir}, nil
}

// checkCSR refuses all but one well-formed, self-signed CSR for exactly this
// identity. The agent makes CSRs with a common name and no other name
// (go-choria, provision agent, gencsr), so every other name is somebody's try
// to be more than it is; the identity itself is allowed as a DNS name.
func checkCSR(data []byte, identity string, deny []*regexp.Regexp) error {
	block, rest := pem.Decode(data)
	switch {
	case block == nil:
		return errors.New("it is no PEM")
	case block.Type != "CERTIFICATE REQUEST" && block.Type != "NEW CERTIFICATE REQUEST":
		return fmt.Errorf("it is a PEM block of type %.1000q", block.Type)
	case len(bytes.TrimSpace(rest)) > 0:
		return errors.New("there is data after it")
	}

	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return fmt.Errorf("it cannot be parsed: %w", err)
	}
	if err := csr.CheckSignature(); err != nil {
		return fmt.Errorf("its signature is not its own: %w", err)
	}

	names, err := subjectNames(csr)
	if err != nil {
		return err
	}
	for _, name := range names {
		if name != identity {
			return fmt.Errorf("it is for %.1000q", name)
		}
		for _, re := range deny {
			if re.MatchString(name) {
				return fmt.Errorf("the name %q matches %s of cert_deny_list", name, re)
			}
		}
	}

	return nil
}

var (
	oidCommonName     = asn1.ObjectIdentifier{2, 5, 4, 3}
	oidSubjectAltName = asn1.ObjectIdentifier{2, 5, 29, 17}
)

// subjectNames are the common name, of which there must be one, and the DNS
// names. Names of any other kind are refused.
func subjectNames(csr *x509.CertificateRequest) ([]string, error) {
	var names []string
	for _, attr := range csr.Subject.Names {
		if !attr.Type.Equal(oidCommonName) {
			continue
		}
		name, ok := attr.Value.(string)
		if !ok {
			return nil, fmt.Errorf("its common name is a %T", attr.Value)
		}
		names = append(names, name)
	}
	if len(names) != 1 {
		return nil, fmt.Errorf("it has %d common names", len(names))
	}

	for _, ext := range csr.Extensions {
		if !ext.Id.Equal(oidSubjectAltName) {
			continue
		}
		dns, err := dnsNames(ext.Value)
		if err != nil {
			return nil, err
		}
		names = append(names, dns...)
	}

	return names, nil
}

// dnsNames reads a subjectAltName extension (RFC 5280, 4.2.1.6) by hand:
// crypto/x509 passes over the kinds it does not know.
func dnsNames(der []byte) ([]string, error) {
	const tagDNSName = 2

	var seq asn1.RawValue
	rest, err := asn1.Unmarshal(der, &seq)
	if err != nil || len(rest) > 0 || !seq.IsCompound || seq.Tag != asn1.TagSequence || seq.Class != asn1.ClassUniversal {
		return nil, errors.New("its alternative names cannot be parsed")
	}

	var names []string
	for rest := seq.Bytes; len(rest) > 0; {
		var name asn1.RawValue
		if rest, err = asn1.Unmarshal(rest, &name); err != nil {
			return nil, errors.New("its alternative names cannot be parsed")
		}
		if name.Class != asn1.ClassContextSpecific || name.Tag != tagDNSName {
			return nil, fmt.Errorf("it has an alternative name that is no DNS name (kind %d)", name.Tag)
		}
		names = append(names, string(name.Bytes))
	}

	return names, nil
}
