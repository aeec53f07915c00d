package helpertest

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc/codes"

	"github.com/choria-provisioner/provisioner/helper/helperv1"
	"github.com/choria-provisioner/provisioner/helper/supervisor"
)

// kit is the state of one test of a helper. Every check starts a helper of its
// own, so that each fails for its own reason.
type kit struct {
	cfg    Config
	report *Report
	fleet  *fleet
	marker marker

	// broken names the check without which the others make no sense.
	broken string
	// info is from the first start.
	info supervisor.Info
	// subjects make the nodes that the helper decides about.
	subjects []subject

	mu sync.Mutex
	// printed counts the lines that the helper wrote to standard output, and the
	// first is kept. left are the processes that outlived it.
	printed      int
	firstPrinted string
	left         []string
}

func newKit(cfg Config) (*kit, error) {
	f, err := newFleet()
	if err != nil {
		return nil, err
	}
	k := &kit{cfg: cfg, fleet: f, marker: newMarker(), report: &Report{Path: cfg.Supervisor.Path}}

	s := &k.cfg.Supervisor
	s.Env = maps.Clone(s.Env)
	if s.Env == nil {
		s.Env = map[string]string{}
	}
	s.Env[markerVariable] = string(k.marker)
	// A helper that fails is seen soon, and not started again under a check.
	s.Health = supervisor.Health{Interval: 500 * time.Millisecond}
	s.Restart = supervisor.Restart{Min: time.Hour, Max: time.Hour, Pause: time.Hour}

	return k, nil
}

type hook func(*logrus.Entry)

func (h hook) Levels() []logrus.Level     { return logrus.AllLevels }
func (h hook) Fire(e *logrus.Entry) error { h(e); return nil }

func (k *kit) run(ctx context.Context, c check) (Outcome, string) {
	if ctx.Err() != nil {
		return Failed, context.Cause(ctx).Error()
	}
	if k.broken != "" {
		return Skipped, "the check " + k.broken + " failed"
	}

	v := c.run(ctx, k)
	if v.outcome == Failed && c.first {
		k.broken = c.name
	}

	return v.outcome, v.reason
}

// with starts a helper and hands it to do. A helper that has ended or failed by
// then has failed the check, whatever do says.
func (k *kit) with(ctx context.Context, do func(context.Context, *supervisor.Supervisor) verdict) verdict {
	h, err := k.start(ctx, k.cfg.Supervisor)
	if err != nil {
		return fail("%v", err)
	}
	v := do(ctx, h)
	if v.outcome == Failed {
		awaitEnd(h)
	}
	if h.State() != supervisor.Running {
		v = fail("%s", strings.TrimSpace(fmt.Sprintf("the helper ended or failed its health check: %v\n%s", h.Failure(), v.reason)))
	}
	_ = h.Close()
	k.sweep()

	return v
}

// start starts a helper and listens to its log.
func (k *kit) start(ctx context.Context, cfg supervisor.Config) (*supervisor.Supervisor, error) {
	to := cfg.Log
	log := logrus.New()
	log.SetOutput(io.Discard)
	log.SetLevel(logrus.DebugLevel)
	log.AddHook(hook(func(e *logrus.Entry) {
		if e.Data["stream"] == "stdout" {
			k.heardPrint(e.Message)
		}
		if to != nil {
			to.WithFields(e.Data).Log(e.Level, e.Message)
		}
	}))
	cfg.Log = logrus.NewEntry(log)

	s, err := supervisor.New(cfg)
	if err != nil {
		return nil, err
	}
	if err := s.Start(ctx); err != nil {
		k.sweep()
		return nil, err
	}

	return s, nil
}

func (k *kit) heardPrint(line string) {
	k.mu.Lock()
	defer k.mu.Unlock()

	if k.printed++; k.printed == 1 {
		k.firstPrinted = line
	}
}

// awaitEnd gives a helper the moment in which its end, which may be why a call
// failed, becomes known.
func awaitEnd(h *supervisor.Supervisor) {
	for end := time.Now().Add(time.Second); h.State() == supervisor.Running && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
}

// sweep ends what outlived its helper and remembers it.
func (k *kit) sweep() {
	left := k.marker.sweep()

	k.mu.Lock()
	defer k.mu.Unlock()
	k.left = append(k.left, left...)
}

// request asks about a node.
func request(n *helperv1.Node) *helperv1.ConfigureNodeRequest {
	return &helperv1.ConfigureNodeRequest{
		RequestId: rand.Text(),
		Node:      n,
		Context: &helperv1.Context{
			FeaturePki:     n.GetCsr() != nil,
			FeatureJwt:     len(n.GetProvisioningClaimsJson()) > 0,
			FeatureEd25519: n.GetEd25519() != nil,
		},
	}
}

// refuses says that a code refuses the node, which is the helper's right.
func refuses(c codes.Code) bool {
	switch c {
	case codes.InvalidArgument, codes.FailedPrecondition, codes.NotFound, codes.OutOfRange, codes.PermissionDenied, codes.Unauthenticated:
		return true
	}

	return false
}

// fault says what is wrong with a failed call, by the table of the contract.
func fault(code codes.Code, err error) string {
	switch code {
	case codes.Unavailable, codes.ResourceExhausted, codes.Aborted:
		return fmt.Sprintf("a passing fault, but a test needs all that the helper needs: %v", err)
	case codes.Internal, codes.Unknown, codes.DataLoss, codes.AlreadyExists:
		return fmt.Sprintf("a fault of the helper: %v", err)
	case codes.DeadlineExceeded, codes.Canceled:
		return fmt.Sprintf("no answer in time: %v", err)
	case codes.Unimplemented:
		return fmt.Sprintf("the method is not offered: %v", err)
	}
	if refuses(code) {
		return fmt.Sprintf("the node is refused: %v", err)
	}

	return fmt.Sprintf("the code %v is none of the contract: %v", code, err)
}
