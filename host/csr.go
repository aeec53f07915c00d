package host

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode"

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
	csr, err := verifyCSR([]byte(reply.CSR), identity, deny)
	if err != nil {
		return nil, fmt.Errorf("the node's CSR is refused: %w", err)
	}
	publicKey, err := checkPublicKey(reply.PublicKey, csr.PublicKey)
	if err != nil {
		return nil, err
	}
	if err := checkDirectory(reply.SSLDir); err != nil {
		return nil, fmt.Errorf("ssldir: %w", err)
	}

	return &helperv1.CSR{
		// What was checked, not what was sent: another reader of PEM may find
		// another block in that.
		CsrPem:       string(pem.EncodeToMemory(&pem.Block{Type: csrType, Bytes: csr.Raw})),
		PublicKeyPem: publicKey,
		Ssldir:       reply.SSLDir,
	}, nil
}

const (
	csrType = "CERTIFICATE REQUEST"
	// maxCSR is the most bytes of PEM, and maxRSA the most bits of an RSA key:
	// checking a signature costs time that grows with the square of these.
	maxCSR = 32 << 10
	maxRSA = 8192
)

// verifyCSR refuses all but one well-formed, self-signed CSR for exactly this
// identity. The agent makes CSRs with a common name and nothing else (go-choria,
// provision agent, gencsr), so everything else in one is somebody's try to be
// more than it is; only the identity itself is allowed as a DNS name too.
func verifyCSR(data []byte, identity string, deny []*regexp.Regexp) (*x509.CertificateRequest, error) {
	data = bytes.TrimSpace(data)
	if len(data) > maxCSR {
		return nil, fmt.Errorf("it has %d bytes, more than %d", len(data), maxCSR)
	}
	block, rest := pem.Decode(data)
	switch {
	case block == nil:
		return nil, errors.New("it is no PEM")
	case block.Type != csrType:
		return nil, fmt.Errorf("it is a PEM block of type %.1000q", block.Type)
	case len(bytes.TrimSpace(rest)) > 0:
		return nil, errors.New("there is data after it")
	case !bytes.HasPrefix(data, []byte("-----BEGIN "+csrType+"-----")), bytes.Count(data, []byte("-----BEGIN")) != 1:
		return nil, errors.New("there is data before it")
	case len(block.Headers) > 0:
		return nil, errors.New("its PEM block has headers")
	}

	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("it cannot be parsed: %w", err)
	}
	if key, ok := csr.PublicKey.(*rsa.PublicKey); ok && key.N.BitLen() > maxRSA {
		return nil, fmt.Errorf("its RSA key has %d bits, more than %d", key.N.BitLen(), maxRSA)
	}
	if err := csr.CheckSignature(); err != nil {
		return nil, fmt.Errorf("its signature is not its own: %w", err)
	}
	if !hasNothingElse(csr) {
		return nil, errors.New("there is data within it that is not part of a CSR")
	}

	names, err := csrNames(csr)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if name != identity {
			return nil, fmt.Errorf("it is for %.1000q", name)
		}
		for _, re := range deny {
			if re.MatchString(name) {
				return nil, fmt.Errorf("the name %q matches %s of cert_deny_list", name, re)
			}
		}
	}

	return csr, nil
}

// hasNothingElse tells whether csr is the encoding of its parts and no more: what
// follows the last field of a sequence encoding/asn1, and with it crypto/x509,
// passes over, and another reader may not.
func hasNothingElse(csr *x509.CertificateRequest) bool {
	type nameSET []struct {
		Type  asn1.ObjectIdentifier
		Value asn1.RawValue
	}
	var (
		outer   struct{ Info, Algorithm, Signature asn1.RawValue }
		info    requestInfo
		subject []nameSET
	)
	key, err := x509.MarshalPKIXPublicKey(csr.PublicKey)

	return err == nil && bytes.Equal(key, csr.RawSubjectPublicKeyInfo) &&
		isExactly(csr.Raw, &outer) && isExactly(csr.RawTBSCertificateRequest, &info) && isExactly(csr.RawSubject, &subject)
}

// isExactly reads der into a value and tells whether nothing was left out.
func isExactly[V any](der []byte, into *V) bool {
	rest, err := asn1.Unmarshal(der, into)
	if err != nil || len(rest) > 0 {
		return false
	}
	again, err := asn1.Marshal(*into)

	return err == nil && bytes.Equal(again, der)
}

// requestInfo is what is signed in a CSR (RFC 2986, 4.1).
type requestInfo struct {
	Version    int
	Subject    asn1.RawValue
	PublicKey  asn1.RawValue
	Attributes []asn1.RawValue `asn1:"tag:0"`
}

// checkPublicKey refuses a key that is not the one in the CSR, and returns it
// encoded anew. The agent sends PKCS #1 in a block of type PUBLIC KEY (go-choria,
// provision agent, gencsr).
func checkPublicKey(data string, want any) (string, error) {
	if data == "" {
		return "", nil
	}
	block, rest := pem.Decode([]byte(data))
	if block == nil || len(bytes.TrimSpace(rest)) > 0 {
		return "", errors.New("the node's public key is not one PEM block")
	}
	if block.Type != "PUBLIC KEY" && block.Type != "RSA PUBLIC KEY" {
		return "", fmt.Errorf("the node's public key is a PEM block of type %.1000q", block.Type)
	}
	var got any
	if key, err := x509.ParsePKCS1PublicKey(block.Bytes); err == nil {
		got = key
	} else if got, err = x509.ParsePKIXPublicKey(block.Bytes); err != nil {
		return "", errors.New("the node's public key is neither PKCS #1 nor PKIX")
	}
	if key, ok := want.(interface{ Equal(crypto.PublicKey) bool }); !ok || !key.Equal(got) {
		return "", errors.New("the node's public key is not the one in its CSR")
	}

	return string(pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: block.Bytes})), nil
}

// checkDirectory refuses a path that is none: it goes into a configuration.
func checkDirectory(dir string) error {
	if len(dir) > maxShown || strings.ContainsFunc(dir, unicode.IsControl) {
		return fmt.Errorf("%.1000q is no path", dir)
	}

	return nil
}

var (
	oidCommonName       = asn1.ObjectIdentifier{2, 5, 4, 3}
	oidSubjectAltName   = asn1.ObjectIdentifier{2, 5, 29, 17}
	oidExtensionRequest = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 14}
)

// csrNames are the common name and the DNS names. All else that a CSR can ask
// for is refused, wherever it stands: other names in the subject, other kinds of
// alternative names, other extensions, other attributes.
func csrNames(csr *x509.CertificateRequest) ([]string, error) {
	if len(csr.Subject.Names) != 1 || !csr.Subject.Names[0].Type.Equal(oidCommonName) {
		return nil, fmt.Errorf("its subject is %.1000q, not one common name", csr.Subject)
	}
	name, ok := csr.Subject.Names[0].Value.(string)
	if !ok {
		return nil, fmt.Errorf("its common name is a %T", csr.Subject.Names[0].Value)
	}
	names := []string{name}

	extensions, err := requestedExtensions(csr)
	if err != nil {
		return nil, err
	}
	for _, ext := range extensions {
		if !ext.Id.Equal(oidSubjectAltName) {
			return nil, fmt.Errorf("it asks for the extension %v", ext.Id)
		}
		dns, err := dnsNames(ext.Value)
		if err != nil {
			return nil, err
		}
		names = append(names, dns...)
	}

	return names, nil
}

// requestedExtensions reads the attributes by hand: crypto/x509
// passes over those it does not know, and over a second value of one it does.
func requestedExtensions(csr *x509.CertificateRequest) ([]pkix.Extension, error) {
	var info requestInfo
	if !isExactly(csr.RawTBSCertificateRequest, &info) {
		return nil, errors.New("its attributes cannot be parsed")
	}
	if len(info.Attributes) == 0 {
		return nil, nil
	}

	var attribute struct {
		ID     asn1.ObjectIdentifier
		Values []asn1.RawValue `asn1:"set"`
	}
	switch {
	case !isExactly(info.Attributes[0].FullBytes, &attribute):
		return nil, errors.New("its attributes cannot be parsed")
	case len(info.Attributes) > 1 || len(attribute.Values) != 1 || !attribute.ID.Equal(oidExtensionRequest):
		return nil, fmt.Errorf("it has attributes beside one request for extensions, the first is %v", attribute.ID)
	}
	var extensions []pkix.Extension
	if !isExactly(attribute.Values[0].FullBytes, &extensions) {
		return nil, errors.New("its extensions cannot be parsed")
	}

	return extensions, nil
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
