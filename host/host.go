// Package host provisions one node: it fetches what the node knows of itself,
// asks the helper, and hands the node its configuration.
package host

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/google/uuid"
	"github.com/sirupsen/logrus"

	"github.com/choria-provisioner/provisioner/helper/helperv1"
	"github.com/choria-provisioner/provisioner/metrics"
)

// restartSplay is the upper bound of a node's delay before it restarts, in
// seconds; the agent adds two (go-choria, provision agent, restart).
const restartSplay = 1

// Helper is the site's helper. Errors carry gRPC status codes, or wrap
// ErrHelperUnavailable when there was no helper to ask.
type Helper interface {
	// ConfigureNode never returns an answer without a decision.
	ConfigureNode(ctx context.Context, req *helperv1.ConfigureNodeRequest) (*helperv1.ConfigureNodeResponse, error)
	// DecideRelease never returns an answer without a decision.
	DecideRelease(ctx context.Context, req *helperv1.DecideReleaseRequest) (*helperv1.DecideReleaseResponse, error)
	// Has tells whether the helper announced a capability.
	Has(c helperv1.Capability) bool
}

// Gate tells whether this provisioner may work.
type Gate interface {
	IsOpen() bool
}

// Slot is the worker that a node occupies.
type Slot interface {
	// Lend gives the worker to other nodes when back is not called within
	// after; back waits for a worker again. Its error is that of ctx.
	Lend(after time.Duration) (back func(ctx context.Context) error)
}

// Features are the parts of the sequence that are on.
type Features struct {
	PKI      bool
	JWT      bool
	ED25519  bool
	Upgrades bool
}

// Config is what one pass over a node needs. All but Token, Site and Epoch are
// required.
type Config struct {
	Caller  Caller
	Helper  Helper
	Gate    Gate
	Slot    Slot
	Metrics *metrics.Metrics
	Log     *logrus.Entry
	// Doubted tells whether more than one machine answers for this identity.
	Doubted func() bool

	Features Features
	// Token is the provision token; it may be empty.
	Token string
	Site  string
	// Epoch is that of the lease, 0 without election.
	Epoch uint64
	// CertDenyList are patterns that no name in a CSR may match.
	CertDenyList []*regexp.Regexp
	// JWTVerifyCert is a file or a hex ed25519 public key.
	JWTVerifyCert string
	// JWTSigningKey and JWTSigningToken are paths, read for every node so that
	// a rotation needs no restart.
	JWTSigningKey   string
	JWTSigningToken string
	// ServerJWTValidity is how long a server JWT is valid.
	ServerJWTValidity time.Duration

	// Ledger is used with Features.Upgrades only.
	Ledger Ledger
	// UpgradesRepository is where nodes get versions from; it may be empty.
	UpgradesRepository string
}

// Host is one pass over one node.
type Host struct {
	identity string
	cfg      Config
	log      *logrus.Entry
	// requestID stays the same over every question to the helper in this pass.
	requestID string
}

// New returns a pass over the node identity.
func New(identity string, cfg Config) *Host {
	return &Host{
		identity:  identity,
		cfg:       cfg,
		log:       cfg.Log.WithField("identity", identity),
		requestID: uuid.NewString(),
	}
}

// Provision walks the node through the sequence. Errors wrap ErrLocked,
// ErrTwins, ErrPaused, ErrDisconnected or ErrHelperUnavailable where that is
// what ended the pass, and name the action that failed.
func (h *Host) Provision(ctx context.Context) (Outcome, error) {
	n := &node{}
	outcome, err := h.sequence(ctx, n)
	outcome.RequestID = h.requestID
	outcome.Version, outcome.Epoch = shown(n.version), h.cfg.Epoch
	outcome.KeyFingerprint = n.keyFingerprint()
	outcome.JWTID, outcome.CertificateSerial = n.jwtID, n.certificateSerial

	return outcome, err
}

// sequence is what Provision does, step by step.
func (h *Host) sequence(ctx context.Context, n *node) (Outcome, error) {
	features := h.cfg.Features

	if features.JWT {
		if err := h.fetchJWT(ctx, n); err != nil {
			return Outcome{}, err
		}
		n.lockFree = true
	}
	if features.ED25519 {
		if err := h.fetchKey(ctx, n); err != nil {
			return Outcome{}, err
		}
	}
	if features.Upgrades && !n.lockFree {
		if err := h.awaitUpdateLock(ctx, n); err != nil {
			return Outcome{}, err
		}
	}
	if err := h.fetchInventory(ctx, n); err != nil {
		return Outcome{}, err
	}
	if features.Upgrades {
		if outcome, done, err := h.settle(ctx, n); done || err != nil {
			return outcome, err
		}
		if h.cfg.Helper.Has(helperv1.Capability_CAPABILITY_DECIDE_RELEASE) {
			if outcome, done, err := h.decideRelease(ctx, n); done || err != nil {
				return outcome, err
			}
		}
	}
	if features.PKI {
		if err := h.fetchCSR(ctx, n); err != nil {
			return Outcome{}, err
		}
	}

	answer, err := h.askHelper(ctx, n)
	if err != nil {
		return Outcome{}, err
	}
	switch d := answer.Decision.(type) {
	case *helperv1.ConfigureNodeResponse_Defer:
		return deferred(d.Defer), nil
	case *helperv1.ConfigureNodeResponse_Shutdown:
		return h.shutdown(ctx, d.Shutdown)
	case *helperv1.ConfigureNodeResponse_Configure:
		return h.configure(ctx, d.Configure, n)
	default:
		return Outcome{}, fmt.Errorf("the helper answered with a decision this version does not know: %T", d)
	}
}

// configure hands the node what the helper decided and restarts it.
func (h *Host) configure(ctx context.Context, c *helperv1.Configure, n *node) (Outcome, error) {
	if c.Version != "" && h.cfg.Features.Upgrades {
		if outcome, done, err := h.grantWish(ctx, n, c); done || err != nil {
			return outcome, err
		}
	}

	req, err := h.configureRequest(c, n)
	if err != nil {
		return Outcome{}, err
	}
	for _, req := range []Request{{Action: ActionConfigure, Configure: req}, {Action: ActionRestart, Splay: restartSplay}} {
		if err := h.call(ctx, req, accepted); err != nil {
			return h.notConfigured(ctx, n, req.Action, err)
		}
	}
	if err := h.configured(ctx, n); err != nil {
		return Outcome{}, err
	}

	return Outcome{Result: Provisioned, Reason: c.Reason}, nil
}

// accepted takes any good reply.
func accepted(Reply) error { return nil }

// shutdown tells the node's server to exit. A node that refuses or does not
// answer is warned about and is no failure: old agents lack the action.
func (h *Host) shutdown(ctx context.Context, s *helperv1.Shutdown) (Outcome, error) {
	h.log.Warnf("The helper asked to shut the node's server down: %s", s.GetReason())

	err := h.call(ctx, Request{Action: ActionShutdown}, accepted)
	switch {
	case ctx.Err() != nil, errors.Is(err, ErrPaused), errors.Is(err, ErrLocked):
		return Outcome{}, err
	case err != nil:
		h.log.Warnf("Could not shut the node's server down: %v", err)
	default:
		h.cfg.Metrics.HelperShutdownRequests.Inc()
	}

	return Outcome{Result: Shutdown, Reason: s.GetReason()}, nil
}

func deferred(d *helperv1.Defer) Outcome {
	return Outcome{
		Result:     Deferred,
		Reason:     d.GetReason(),
		RetryAfter: max(0, d.GetRetryAfter().AsDuration()),
	}
}
