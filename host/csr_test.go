package host

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"net"
	"net/url"
	"regexp"
	"strings"
	"testing"
)

func TestCheckCSR(t *testing.T) {
	key := testRSAKey(t)
	request := func(cn string, edit func(*x509.CertificateRequest)) string {
		r := &x509.CertificateRequest{Subject: pkix.Name{CommonName: cn}}
		if edit != nil {
			edit(r)
		}
		return makeCSR(t, key, r)
	}
	good := request(testIdentity, nil)
	block, _ := pem.Decode([]byte(good))
	badSignature := func() string {
		der := append([]byte{}, block.Bytes...)
		der[len(der)-1] ^= 1
		return string(pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: der}))
	}
	sanWith := func(tag int, value string) string {
		name, err := asn1.Marshal(asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: tag, Bytes: []byte(value)})
		must(t, err)
		seq, err := asn1.Marshal(asn1.RawValue{Class: asn1.ClassUniversal, Tag: asn1.TagSequence, IsCompound: true, Bytes: name})
		must(t, err)
		return request(testIdentity, func(r *x509.CertificateRequest) {
			r.ExtraExtensions = []pkix.Extension{{Id: oidSubjectAltName, Value: seq}}
		})
	}

	for _, tc := range []struct {
		name string
		csr  string
		err  string // empty accepts
	}{
		{"as the agent makes it", good, ""},
		{"the identity as DNS name too", request(testIdentity, func(r *x509.CertificateRequest) { r.DNSNames = []string{testIdentity} }), ""},
		{"surrounded by white space", "\n" + good + "\n\n", ""},
		{"empty", "", "it is no PEM"},
		{"no PEM", "hello", "it is no PEM"},
		{"another block", strings.ReplaceAll(good, "CERTIFICATE REQUEST", "CERTIFICATE"), `it is a PEM block of type "CERTIFICATE"`},
		{"junk in the block", string(pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: []byte("junk")})), "it cannot be parsed"},
		{"data within the block after it", string(pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: append(append([]byte{}, block.Bytes...), 0)})), "it cannot be parsed"},
		{"two of them", good + good, "there is data after it"},
		{"bad signature", badSignature(), "its signature is not its own"},
		{"another name", request("n2.example.net", nil), `it is for "n2.example.net"`},
		{"a name to fill the log with", request(strings.Repeat("x", 1<<20), nil), `it is for "` + strings.Repeat("x", 1000) + `"`},
		{"another case", request("N1.example.net", nil), `it is for "N1.example.net"`},
		{"trailing dot", request(testIdentity+".", nil), `it is for "n1.example.net."`},
		{"white space", request(testIdentity+" ", nil), `it is for "n1.example.net "`},
		{"no name", request("", nil), "it has 0 common names"},
		{"two names", request("", func(r *x509.CertificateRequest) {
			r.Subject.ExtraNames = []pkix.AttributeTypeAndValue{{Type: oidCommonName, Value: testIdentity}, {Type: oidCommonName, Value: "boss.mcollective"}}
		}), "it has 2 common names"},
		{"another DNS name", request(testIdentity, func(r *x509.CertificateRequest) { r.DNSNames = []string{testIdentity, "x.example.net"} }), `it is for "x.example.net"`},
		{"an address", request(testIdentity, func(r *x509.CertificateRequest) { r.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)} }), "kind 7"},
		{"an email address", request(testIdentity, func(r *x509.CertificateRequest) { r.EmailAddresses = []string{"a@b.c"} }), "kind 1"},
		{"a URI", request(testIdentity, func(r *x509.CertificateRequest) { r.URIs = []*url.URL{{Scheme: "spiffe", Host: "x"}} }), "kind 6"},
		{"a kind that x509 does not show", sanWith(0, "x"), "kind 0"},
		{"a directory name", sanWith(4, "x"), "kind 4"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := checkCSR([]byte(tc.csr), testIdentity, nil)
			switch {
			case tc.err == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)):
				t.Errorf("error %v, want %q in it", err, tc.err)
			}
		})
	}

	deny := []*regexp.Regexp{regexp.MustCompile(`(?i)\.mcollective$`)}
	csr := makeCSR(t, key, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "boss.MCollective"}})
	if err := checkCSR([]byte(csr), "boss.MCollective", deny); err == nil || !strings.Contains(err.Error(), "matches (?i)\\.mcollective$ of cert_deny_list") {
		t.Errorf("error %v: the deny list must hold whatever the identity", err)
	}
}
