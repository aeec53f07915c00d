package simfleet

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"net"
	"net/url"
	"path"
	"strings"

	"github.com/choria-io/go-choria/providers/agent/mcorpc/golang/provision"
)

const csrBlock = "CERTIFICATE REQUEST"

var (
	oidCommonName     = asn1.ObjectIdentifier{2, 5, 4, 3}
	oidSubjectAltName = asn1.ObjectIdentifier{2, 5, 29, 17}
)

// csrFaults are in what gencsr answers.
func csrFaults() []Fault {
	// named makes a request for another common name
	named := func(name func(identity string) string) func(*Node) (string, error) {
		return request509(func(n *Node, t *x509.CertificateRequest) { t.Subject.CommonName = name(n.Identity()) })
	}
	// extended makes one with a subjectAltName that crypto/x509 would not write
	extended := func(der []byte) func(*Node) (string, error) {
		return request509(func(_ *Node, t *x509.CertificateRequest) {
			t.ExtraExtensions = []pkix.Extension{{Id: oidSubjectAltName, Value: der}}
		})
	}
	good := request509(func(*Node, *x509.CertificateRequest) {})

	return []Fault{
		csrFault("csr-new-key", "a new key for every CSR, as of a machine that is wiped", good),
		csrFault("csr-empty", "no CSR at all", fixed("")),
		csrFault("csr-no-pem", "a CSR that is no PEM: the older provisioner died of it", fixed("this is no PEM")),
		csrFault("csr-wrong-block", "a PEM block of another type", reencoded(good, func(b *pem.Block) { b.Type = "CERTIFICATE" })),
		csrFault("csr-junk-der", "a PEM block that holds no CSR", reencoded(good, func(b *pem.Block) { b.Bytes = []byte("junk") })),
		csrFault("csr-trailing-data", "a CSR with text after it", edited(good, func(text string) string { return text + "and more\n" })),
		csrFault("csr-trailing-der", "a CSR with bytes after it in its block", reencoded(good, func(b *pem.Block) { b.Bytes = append(b.Bytes, 0x05, 0x00) })),
		csrFault("csr-two", "two CSRs", edited(good, func(text string) string { return text + text })),
		// the last byte is one of the signature
		csrFault("csr-bad-signature", "a CSR that its own key did not sign", reencoded(good, func(b *pem.Block) { b.Bytes[len(b.Bytes)-1] ^= 1 })),
		csrFault("csr-other-cn", "a CSR for another node", named(func(string) string { return "other.example.net" })),
		csrFault("csr-long-cn", "a CSR for a name of 100,000 characters", named(func(string) string { return strings.Repeat("x", 100_000) })),
		csrFault("csr-privileged", "a CSR for a privileged user", named(func(id string) string { return id + ".privileged.mcollective" })),
		csrFault("csr-case", "a CSR for the identity in capitals", named(strings.ToUpper)),
		csrFault("csr-trailing-dot", "a CSR for the identity with a dot after it", named(func(id string) string { return id + "." })),
		csrFault("csr-white-space", "a CSR for the identity with a space after it", named(func(id string) string { return id + " " })),
		csrFault("csr-nul", "a CSR for the identity with a NUL and another name after it", named(func(id string) string { return id + "\x00.example.org" })),
		csrFault("csr-no-cn", "a CSR without a common name", named(func(string) string { return "" })),
		csrFault("csr-two-cns", "a CSR with two common names", request509(func(n *Node, t *x509.CertificateRequest) {
			t.Subject = pkix.Name{ExtraNames: []pkix.AttributeTypeAndValue{
				{Type: oidCommonName, Value: "other.example.net"}, {Type: oidCommonName, Value: n.Identity()},
			}}
		})),
		csrFault("csr-san-dns", "a CSR with another node's DNS name", request509(func(_ *Node, t *x509.CertificateRequest) { t.DNSNames = []string{"other.example.net"} })),
		csrFault("csr-san-own-dns", "a CSR with the identity as DNS name, which is allowed", request509(func(n *Node, t *x509.CertificateRequest) { t.DNSNames = []string{n.Identity()} })),
		csrFault("csr-san-ip", "a CSR with an address", request509(func(_ *Node, t *x509.CertificateRequest) { t.IPAddresses = []net.IP{net.IPv4(192, 0, 2, 1)} })),
		csrFault("csr-san-email", "a CSR with an e-mail address", request509(func(_ *Node, t *x509.CertificateRequest) { t.EmailAddresses = []string{"root@example.net"} })),
		csrFault("csr-san-uri", "a CSR with a URI", request509(func(_ *Node, t *x509.CertificateRequest) {
			t.URIs = []*url.URL{{Scheme: "spiffe", Host: "example.net", Path: "/admin"}}
		})),
		// registeredID 1.2.3.4, a kind that crypto/x509 passes over
		csrFault("csr-san-registered-id", "a CSR with a name of a rare kind", extended([]byte{0x30, 0x05, 0x88, 0x03, 0x2a, 0x03, 0x04})),
		csrFault("csr-san-junk", "a CSR with names that cannot be read", extended([]byte("junk"))),
	}
}

func csrFault(name, about string, csr func(n *Node) (string, error)) Fault {
	return Fault{Name: name, About: about, Feature: "pki", Apply: onCall(actionGenCSR, func(n *Node, _ Call) (Override, error) {
		text, err := csr(n)

		return Override{Data: provision.CSRReply{CSR: text, SSLDir: path.Join(n.opts.Directory, "ssl")}}, err
	})}
}

func fixed(text string) func(*Node) (string, error) {
	return func(*Node) (string, error) { return text, nil }
}

// request509 makes a CSR as a node does, but for what change changes.
func request509(change func(n *Node, template *x509.CertificateRequest)) func(*Node) (string, error) {
	return func(n *Node) (string, error) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return "", err
		}
		template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: n.Identity()}}
		change(n, template)
		der, err := x509.CreateCertificateRequest(rand.Reader, template, key)

		return string(pem.EncodeToMemory(&pem.Block{Type: csrBlock, Bytes: der})), err
	}
}

func edited(csr func(*Node) (string, error), edit func(string) string) func(*Node) (string, error) {
	return func(n *Node) (string, error) {
		text, err := csr(n)

		return edit(text), err
	}
}

func reencoded(csr func(*Node) (string, error), change func(*pem.Block)) func(*Node) (string, error) {
	return edited(csr, func(text string) string {
		block, _ := pem.Decode([]byte(text))
		if block == nil {
			return text
		}
		block.Bytes = bytes.Clone(block.Bytes)
		change(block)

		return string(pem.EncodeToMemory(block))
	})
}
