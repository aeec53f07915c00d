package host

import (
	"bytes"
	"crypto"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"regexp"
	"strings"
	"testing"
)

func checkCSR(data []byte, identity string, deny []*regexp.Regexp) error {
	_, err := verifyCSR(data, identity, deny)
	return err
}

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
		{"another CSR before it, which other readers find", good[:len(good)-1] + "\x01\n" + good, "there is data before it"},
		{"text before it", "hello\n" + good, "there is data before it"},
		{"headers", strings.Replace(good, "-----\n", "-----\nA: b\n\n", 1), "its PEM block has headers"},
		{"the older type", strings.ReplaceAll(good, "CERTIFICATE REQUEST", "NEW CERTIFICATE REQUEST"), `type "NEW CERTIFICATE REQUEST"`},
		{"too large", good + strings.Repeat("\n", 10) + strings.Repeat("x", maxCSR), "it has "},
		{"a group in the subject", request(testIdentity, func(r *x509.CertificateRequest) { r.Subject.Organization = []string{"system:masters"} }), "not one common name"},
		{"another extension", request(testIdentity, func(r *x509.CertificateRequest) {
			r.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 19}, Value: []byte{0x30, 3, 1, 1, 0xff}}}
		}), "it asks for the extension 2.5.29.19"},
		{"names after what is read", appended(t, key), "there is data within it that is not part of a CSR"},
		{"names in another attribute", otherAttribute(t, key), "it has attributes beside one request for extensions"},
		{"another block", strings.ReplaceAll(good, "CERTIFICATE REQUEST", "CERTIFICATE"), `it is a PEM block of type "CERTIFICATE"`},
		{"junk in the block", string(pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: []byte("junk")})), "it cannot be parsed"},
		{"data within the block after it", string(pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: append(append([]byte{}, block.Bytes...), 0)})), "it cannot be parsed"},
		{"two of them", good + good, "there is data after it"},
		{"bad signature", badSignature(), "its signature is not its own"},
		{"another name", request("n2.example.net", nil), `it is for "n2.example.net"`},
		{"a name to fill the log with", request(strings.Repeat("x", 10000), nil), `it is for "` + strings.Repeat("x", 1000) + `"`},
		{"another case", request("N1.example.net", nil), `it is for "N1.example.net"`},
		{"trailing dot", request(testIdentity+".", nil), `it is for "n1.example.net."`},
		{"white space", request(testIdentity+" ", nil), `it is for "n1.example.net "`},
		{"no name", request("", nil), "not one common name"},
		{"two names", request("", func(r *x509.CertificateRequest) {
			r.Subject.ExtraNames = []pkix.AttributeTypeAndValue{{Type: oidCommonName, Value: testIdentity}, {Type: oidCommonName, Value: "boss.mcollective"}}
		}), "not one common name"},
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

// otherAttribute is a CSR whose alternative names stand in Microsoft's attribute
// for extensions, which OpenSSL reads and crypto/x509 does not.
func otherAttribute(t *testing.T, key *rsa.PrivateKey) string {
	t.Helper()

	good := makeCSR(t, key, &x509.CertificateRequest{Subject: pkix.Name{CommonName: testIdentity}, DNSNames: []string{"x.example.net"}})
	block, _ := pem.Decode([]byte(good))
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	must(t, err)
	pkcs9, err := asn1.Marshal(oidExtensionRequest)
	must(t, err)
	microsoft, err := asn1.Marshal(asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 311, 2, 1, 14})
	must(t, err)

	var info struct {
		Version    int
		Subject    asn1.RawValue
		PublicKey  asn1.RawValue
		Attributes asn1.RawValue `asn1:"tag:0"`
	}
	_, err = asn1.Unmarshal(csr.RawTBSCertificateRequest, &info)
	must(t, err)
	var attribute struct {
		ID     asn1.ObjectIdentifier
		Values asn1.RawValue
	}
	_, err = asn1.Unmarshal(info.Attributes.Bytes, &attribute)
	must(t, err)
	if !bytes.Contains(info.Attributes.Bytes, pkcs9) {
		t.Fatal("the CSR has no request for extensions")
	}
	attribute.ID = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 311, 2, 1, 14}
	info.Attributes.Bytes, err = asn1.Marshal(attribute)
	must(t, err)
	info.Attributes.FullBytes = nil
	if !bytes.Contains(info.Attributes.Bytes, microsoft) {
		t.Fatal("the attribute was not replaced")
	}
	signed, err := asn1.Marshal(info)
	must(t, err)

	return signCSR(t, key, signed)
}

// signCSR makes a CSR of what is signed in one.
func signCSR(t *testing.T, key *rsa.PrivateKey, signed []byte) string {
	t.Helper()

	sum := sha256.Sum256(signed)
	signature, err := rsa.SignPKCS1v15(nil, key, crypto.SHA256, sum[:])
	must(t, err)
	der, err := asn1.Marshal(struct {
		Info      asn1.RawValue
		Algorithm pkix.AlgorithmIdentifier
		Signature asn1.BitString
	}{
		asn1.RawValue{FullBytes: signed},
		pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 11}, Parameters: asn1.NullRawValue},
		asn1.BitString{Bytes: signature, BitLength: 8 * len(signature)},
	})
	must(t, err)

	return string(pem.EncodeToMemory(&pem.Block{Type: csrType, Bytes: der}))
}

// appended is a CSR with a second set of attributes within what is signed, after
// the first. crypto/x509 passes over it.
func appended(t *testing.T, key *rsa.PrivateKey) string {
	t.Helper()

	part := func(names ...string) asn1.RawValue {
		block, _ := pem.Decode([]byte(makeCSR(t, key, &x509.CertificateRequest{Subject: pkix.Name{CommonName: testIdentity}, DNSNames: names})))
		csr, err := x509.ParseCertificateRequest(block.Bytes)
		must(t, err)
		var info asn1.RawValue
		_, err = asn1.Unmarshal(csr.RawTBSCertificateRequest, &info)
		must(t, err)
		return info
	}
	good, bad := part(), part("x.example.net")
	attributes := bad.Bytes[bytes.LastIndex(bad.Bytes, []byte{0xa0}):]
	signed, err := asn1.Marshal(asn1.RawValue{Tag: asn1.TagSequence, IsCompound: true, Bytes: append(good.Bytes, attributes...)})
	must(t, err)

	return signCSR(t, key, signed)
}

// A key of any size costs no time: it is refused before its signature is looked
// at.
func TestGiantKey(t *testing.T) {
	n := new(big.Int).Sub(new(big.Int).Lsh(big.NewInt(1), maxRSA+8), big.NewInt(1))
	spki, err := x509.MarshalPKIXPublicKey(&rsa.PublicKey{N: n, E: 1<<31 - 1})
	must(t, err)
	subject, err := asn1.Marshal(pkix.Name{CommonName: testIdentity}.ToRDNSequence())
	must(t, err)
	info, err := asn1.Marshal(struct {
		Version    int
		Subject    asn1.RawValue
		PublicKey  asn1.RawValue
		Attributes []asn1.RawValue `asn1:"tag:0"`
	}{0, asn1.RawValue{FullBytes: subject}, asn1.RawValue{FullBytes: spki}, nil})
	must(t, err)
	der, err := asn1.Marshal(struct {
		Info      asn1.RawValue
		Algorithm pkix.AlgorithmIdentifier
		Signature asn1.BitString
	}{
		asn1.RawValue{FullBytes: info},
		pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 11}, Parameters: asn1.NullRawValue},
		asn1.BitString{Bytes: make([]byte, maxRSA/8), BitLength: maxRSA},
	})
	must(t, err)
	csr := pem.EncodeToMemory(&pem.Block{Type: csrType, Bytes: der})
	if err := checkCSR(csr, testIdentity, nil); err == nil || !strings.Contains(err.Error(), "its RSA key has 8200 bits") {
		t.Errorf("error %v", err)
	}
}

func TestReadCSR(t *testing.T) {
	key, other := testRSAKey(t), testOtherRSAKey(t)
	good := makeCSR(t, key, &x509.CertificateRequest{Subject: pkix.Name{CommonName: testIdentity}})
	pkcs1 := func(k *rsa.PrivateKey) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: x509.MarshalPKCS1PublicKey(&k.PublicKey)}))
	}
	for _, tc := range []struct {
		name           string
		publicKey, dir string
		err            string
		surround       string
	}{
		{name: "as the agent sends it", publicKey: pkcs1(key), dir: "/etc/choria/ssl"},
		{name: "without a public key", dir: `C:\choria\ssl`},
		{name: "surrounded by white space", surround: "\n\n", dir: "/"},
		{name: "another public key", publicKey: pkcs1(other), err: "the node's public key is not the one in its CSR"},
		{name: "another before it, which other readers find", publicKey: strings.Replace(pkcs1(other), "\n-----END", "=\n-----END", 1) + pkcs1(key)},
		{name: "a key of another type", publicKey: strings.ReplaceAll(pkcs1(key), "PUBLIC KEY", "CERTIFICATE"), err: `the node's public key is a PEM block of type "CERTIFICATE"`},
		{name: "junk for a public key", publicKey: "junk", err: "the node's public key is not one PEM block"},
		{name: "a line break in the directory", dir: "/etc\nx", err: `ssldir: "/etc\nx" is no path`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			data, err := json.Marshal(map[string]string{"csr": tc.surround + good + tc.surround, "public_key": tc.publicKey, "ssldir": tc.dir})
			must(t, err)
			csr, err := readCSR(data, testIdentity, nil)
			if tc.err != "" {
				if err == nil || err.Error() != tc.err {
					t.Errorf("error %v, want %q", err, tc.err)
				}
				return
			}
			must(t, err)
			if csr.CsrPem != good {
				t.Errorf("the helper is given %q, not what was checked", csr.CsrPem)
			}
			if tc.publicKey != "" && csr.PublicKeyPem != pkcs1(key) {
				t.Errorf("the helper is given the key %q, not the one that was checked", csr.PublicKeyPem)
			}
		})
	}
}
