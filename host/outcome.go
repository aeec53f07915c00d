package host

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"time"
)

// Result is what a pass came to. It is the label of a metric and the result of
// an audit line.
type Result string

const (
	// Provisioned is a node that was configured and told to restart.
	Provisioned Result = "provisioned"
	// Deferred is a node for which the helper asked to wait.
	Deferred Result = "deferred"
	// Shutdown is a node whose server was told to exit.
	Shutdown Result = "shutdown"
	// UpgradeSent is a node that was sent another version, newer or older; it
	// comes back with it.
	UpgradeSent Result = "upgrade-sent"
	// Updating is a node that was sent a version before and may be at it still.
	Updating Result = "updating"
	// Refused is a node that is not provisioned because of its version: a change
	// was stopped or failed and upgrades are not optional, or it is held.
	Refused Result = "refused"

	// Failed is a pass that ended in an error of the node, the helper or ours;
	// the others are ErrLocked, ErrTwins, ErrHelperUnavailable, ErrDisconnected,
	// ErrPaused and ErrEvicted.
	Failed            Result = "failed"
	Locked            Result = "locked"
	Twins             Result = "twins"
	HelperUnavailable Result = "helper-unavailable"
	Disconnected      Result = "disconnected"
	Paused            Result = "paused"
	Evicted           Result = "evicted"
	// Cancelled is a pass that ended with its context: the lease was lost, or
	// the daemon shuts down.
	Cancelled Result = "cancelled"
)

// Results are all results.
func Results() []Result {
	return []Result{Provisioned, Deferred, Shutdown, UpgradeSent, Updating, Refused, Failed, Locked, Twins, HelperUnavailable, Disconnected, Paused, Evicted, Cancelled}
}

// Failure is the result of a pass that err ended.
func Failure(ctx context.Context, err error) Result {
	if ctx.Err() != nil && !errors.Is(context.Cause(ctx), ErrEvicted) {
		return Cancelled
	}
	for _, known := range []struct {
		err    error
		result Result
	}{
		{ErrEvicted, Evicted},
		{ErrLocked, Locked},
		{ErrPaused, Paused},
		{ErrDisconnected, Disconnected},
		{ErrHelperUnavailable, HelperUnavailable},
		{ErrTwins, Twins},
	} {
		if errors.Is(err, known.err) {
			return known.result
		}
	}

	return Failed
}

// Outcome is how a pass ended. What was learned and made is in it also when the
// pass failed later.
type Outcome struct {
	// Result is empty when the pass failed; Failure then tells it.
	Result Result
	// RequestID is that of every question to the helper in the pass.
	RequestID string
	// Reason is the helper's, or what stands in the way of a change of version;
	// it may be empty.
	Reason string
	// RetryAfter is how long a deferred or updating node is left alone at least,
	// 0 is until it is found again.
	RetryAfter time.Duration
	// Version is the node's, as its inventory shows it; it may be empty.
	Version string
	// KeyFingerprint is the hex SHA-256 of the node's ed25519 public key, or of
	// the public key in its CSR (DER, SubjectPublicKeyInfo); empty without one.
	KeyFingerprint string
	// JWTID is the ID (jti) of the server JWT that was signed, and
	// CertificateSerial the hex serial number of the certificate that the helper
	// gave; empty without one.
	JWTID             string
	CertificateSerial string
	// Epoch is that of the lease under which the pass began, 0 without election.
	Epoch uint64
}

// keyFingerprint is that of the key the node showed in this pass.
func (n *node) keyFingerprint() string {
	key := []byte(n.publicKey)
	if n.csr != nil {
		key = csrKey(n.csr.CsrPem)
	}
	if len(key) == 0 {
		return ""
	}
	sum := sha256.Sum256(key)

	return hex.EncodeToString(sum[:])
}

// csrKey is the public key in a CSR, nil when it is none.
func csrKey(data string) []byte {
	block, _ := pem.Decode([]byte(data))
	if block == nil {
		return nil
	}
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil
	}

	return csr.RawSubjectPublicKeyInfo
}

// certificateSerial is that of the first certificate in certs; what is none is
// the node's to refuse.
func certificateSerial(certs string) string {
	block, _ := pem.Decode([]byte(certs))
	if block == nil {
		return ""
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return ""
	}

	return cert.SerialNumber.Text(16)
}
