package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// authority signs certificates and remembers them in a folder, by request.
type authority struct {
	cert     *x509.Certificate
	certPEM  string
	key      crypto.Signer
	issued   string
	validity time.Duration

	// mu lets a request that is sent again wait for its first answer.
	mu sync.Mutex
}

// caValidity is how long an authority made here lives.
const caValidity = 10 * 365 * 24 * time.Hour

// openAuthority reads the authority, or makes one at the first start.
func openAuthority(cfg config) (*authority, error) {
	a := &authority{issued: filepath.Join(cfg.Dir, "issued"), validity: cfg.validity}
	if err := os.MkdirAll(a.issued, 0o700); err != nil {
		return nil, err
	}

	certFile, keyFile := cfg.CACert, cfg.CAKey
	if certFile == "" {
		certFile, keyFile = filepath.Join(cfg.Dir, "ca.pem"), filepath.Join(cfg.Dir, "ca-key.pem")
		if _, err := os.Stat(certFile); errors.Is(err, os.ErrNotExist) {
			if err := makeAuthority(certFile, keyFile); err != nil {
				return nil, err
			}
		}
	}

	certPEM, err := os.ReadFile(certFile)
	if err != nil {
		return nil, err
	}
	keyPEM, err := os.ReadFile(keyFile)
	if err != nil {
		return nil, err
	}
	if a.cert, err = parseCertificate(certPEM); err != nil {
		return nil, fmt.Errorf("%s: %w", certFile, err)
	}
	if a.key, err = parseKey(keyPEM); err != nil {
		return nil, fmt.Errorf("%s: %w", keyFile, err)
	}
	a.certPEM = string(certPEM)

	return a, nil
}

// makeAuthority writes the certificate last: it marks a complete authority.
func makeAuthority(certFile, keyFile string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "localca"},
		NotBefore:             time.Now().Add(-time.Minute),
		NotAfter:              time.Now().Add(caValidity),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	certDER, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return err
	}

	if err := writeFile(keyFile, encode("PRIVATE KEY", keyDER), 0o600); err != nil {
		return err
	}
	return writeFile(certFile, encode("CERTIFICATE", certDER), 0o644)
}

// sign returns the certificate for a request. The same request gets the same
// one: a host whose call timed out asks again.
func (a *authority) sign(requestID string, csr *x509.CertificateRequest) (string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()

	sum := sha256.Sum256(append([]byte(requestID+"\x00"), csr.Raw...))
	serial := new(big.Int).SetBytes(sum[:16])
	file := filepath.Join(a.issued, hex.EncodeToString(sum[:16])+".pem")
	if before, err := os.ReadFile(file); err == nil {
		return string(before), nil
	}

	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: csr.Subject.CommonName},
		DNSNames:     []string{csr.Subject.CommonName},
		NotBefore:    time.Now().Add(-time.Minute),
		NotAfter:     time.Now().Add(a.validity),
		KeyUsage:     x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, csr.PublicKey, a.key)
	if err != nil {
		return "", err
	}
	certificate := encode("CERTIFICATE", der)

	return string(certificate), writeFile(file, certificate, 0o600)
}

// writeFile writes a file whole or not at all.
func writeFile(path string, b []byte, mode os.FileMode) error {
	if err := os.WriteFile(path+".new", b, mode); err != nil {
		return err
	}

	return os.Rename(path+".new", path)
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func parseCertificate(b []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(b)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, errors.New("no PEM certificate")
	}

	return x509.ParseCertificate(block.Bytes)
}

// parseCSR reads a certificate request that a node made for itself.
func parseCSR(text, identity string) (*x509.CertificateRequest, error) {
	block, _ := pem.Decode([]byte(text))
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, errors.New("no PEM certificate request")
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, err
	}
	if csr.Subject.CommonName != identity {
		return nil, fmt.Errorf("it is for %q, not for the node", csr.Subject.CommonName)
	}

	return csr, csr.CheckSignature()
}

// parseKey reads a key in any of the three usual forms.
func parseKey(b []byte) (crypto.Signer, error) {
	block, _ := pem.Decode(b)
	if block == nil {
		return nil, errors.New("no PEM private key")
	}

	var key any
	var err error
	switch block.Type {
	case "RSA PRIVATE KEY":
		key, err = x509.ParsePKCS1PrivateKey(block.Bytes)
	case "EC PRIVATE KEY":
		key, err = x509.ParseECPrivateKey(block.Bytes)
	default:
		key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
	}
	if err != nil {
		return nil, err
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("a %T cannot sign", key)
	}

	return signer, nil
}
