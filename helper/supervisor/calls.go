package supervisor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/choria-provisioner/provisioner/helper"
	"github.com/choria-provisioner/provisioner/helper/helperv1"
)

// ConfigureNode asks the helper for a node's configuration. An answer always
// holds a decision. Raw claims are removed from the request unless the helper
// was granted them.
func (s *Supervisor) ConfigureNode(ctx context.Context, req *helperv1.ConfigureNodeRequest) (*helperv1.ConfigureNodeResponse, error) {
	return call(ctx, s, "ConfigureNode", req, func(ctx context.Context, i *instance) (*helperv1.ConfigureNodeResponse, error) {
		resp, err := i.configurer.ConfigureNode(ctx, withoutRawClaims(i.info, req))
		if err == nil && resp.GetDecision() == nil {
			err = ErrNoDecision
		}
		return resp, err
	})
}

// DecideRelease asks the helper for a node's version. An answer always holds a
// decision. A helper without CAPABILITY_DECIDE_RELEASE answers UNIMPLEMENTED.
func (s *Supervisor) DecideRelease(ctx context.Context, req *helperv1.DecideReleaseRequest) (*helperv1.DecideReleaseResponse, error) {
	return call(ctx, s, "DecideRelease", req, func(ctx context.Context, i *instance) (*helperv1.DecideReleaseResponse, error) {
		resp, err := i.decider.DecideRelease(ctx, withoutRawClaims(i.info, req))
		if err == nil && resp.GetDecision() == nil {
			err = ErrNoDecision
		}
		return resp, err
	})
}

// ReportOutcome tells the helper how a decision ended.
func (s *Supervisor) ReportOutcome(ctx context.Context, req *helperv1.ReportOutcomeRequest) error {
	_, err := call(ctx, s, "ReportOutcome", req, func(ctx context.Context, i *instance) (*helperv1.ReportOutcomeResponse, error) {
		return i.decider.ReportOutcome(ctx, req)
	})

	return err
}

// withoutRawClaims returns a request that the helper may see.
func withoutRawClaims[R interface {
	proto.Message
	GetNode() *helperv1.Node
}](info Info, req R) R {
	if len(req.GetNode().GetRawClaimsJson()) == 0 || info.Has(helperv1.Capability_CAPABILITY_RAW_CLAIMS) {
		return req
	}
	req = proto.CloneOf(req)
	req.GetNode().RawClaimsJson = nil

	return req
}

// call runs one call: within the limit of calls in flight, with a deadline, and
// never on a helper that is gone. The wait for a free place is bounded by ctx
// alone, so that a busy helper is not taken for a slow one.
func call[Resp any](ctx context.Context, s *Supervisor, method string, req proto.Message, do func(context.Context, *instance) (*Resp, error)) (*Resp, error) {
	began := time.Now()
	resp, err := func() (*Resp, error) {
		inst, state := s.current()
		if inst == nil {
			return nil, fmt.Errorf("%w: it is %v", ErrUnavailable, state)
		}
		if n := proto.Size(req); n > helper.MaxMessageSize {
			return nil, fmt.Errorf("%w: the request has %d bytes, more than %d", ErrTooLarge, n, helper.MaxMessageSize)
		}
		if err := inst.enter(ctx); err != nil {
			return nil, err
		}
		defer inst.leave()

		began = time.Now()
		ctx, cancel := context.WithTimeoutCause(ctx, s.cfg.Timeout, fmt.Errorf("no answer within %v", s.cfg.Timeout))
		defer cancel()
		resp, err := do(ctx, inst)
		return resp, readError(ctx, inst, err)
	}()
	if err != nil {
		resp = nil
		err = &callError{helper: s.Info().Name, method: method, cause: err}
	}

	took := time.Since(began)
	s.cfg.Metrics.CallDone(method, status.Code(err), took)
	s.cfg.Log.Debugf("helper call %s: %v in %v", method, status.Code(err), took.Round(time.Millisecond))

	return resp, err
}

// readError says in the host's words what gRPC says in its own.
func readError(ctx context.Context, inst *instance, err error) error {
	switch code := status.Code(err); {
	case code == codes.DeadlineExceeded && deadlinePassed(ctx):
		<-ctx.Done() // due: gRPC looks at the clock, or hears the helper's timer, before ours has run
		return status.Error(code, context.Cause(ctx).Error())
	case code == codes.ResourceExhausted && strings.Contains(err.Error(), "received message") && strings.Contains(err.Error(), "larger than max"):
		// gRPC's own limit; only its text tells it from the helper's word.
		return fmt.Errorf("%w: the answer has more than %d bytes", ErrTooLarge, helper.MaxMessageSize)
	case code == codes.Unavailable && inst.proc.hasExited(), connectionLost(err):
		return fmt.Errorf("%w: it ended during the call", ErrUnavailable)
	}

	return err
}

// deadlinePassed tells the end of the call's own time from a helper's answer
// that something else was too slow.
func deadlinePassed(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()

	return ok && !time.Now().Before(deadline)
}

// connectionLost says that gRPC, and not the helper, made an error: the end of a
// process shows on its connection before it is known here. Only gRPC's texts tell,
// and its codes would have a node fail that has to wait: CANCELLED when the
// connection was closed on this side, INTERNAL when it ended within an answer.
func connectionLost(err error) bool {
	texts := map[codes.Code][]string{
		codes.Unavailable: {"error reading from server", "connection error: desc", "transport is closing"},
		codes.Canceled:    {"the client connection is closing"},
		codes.Internal:    {"unexpected EOF"},
	}
	st := status.Convert(err)

	return slices.ContainsFunc(texts[st.Code()], func(text string) bool { return strings.Contains(st.Message(), text) })
}
