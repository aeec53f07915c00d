package host

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/choria-provisioner/provisioner/helper"
	"github.com/choria-provisioner/provisioner/helper/helperv1"
	"github.com/choria-provisioner/provisioner/metrics"
)

// askHelper asks for the node's configuration.
func (h *Host) askHelper(ctx context.Context, n *node) (*helperv1.ConfigureNodeResponse, error) {
	req := &helperv1.ConfigureNodeRequest{RequestId: h.requestID, Node: n.message(h), Context: h.context()}

	answer, err := ask(h, func() (*helperv1.ConfigureNodeResponse, error) {
		return h.cfg.Helper.ConfigureNode(ctx, req)
	})
	if err != nil {
		return nil, err
	}
	// The agent finds some of what is wrong only after it has written the
	// configuration: nothing of it may be sent.
	if err := helper.CheckAnswer(answer); err != nil {
		h.cfg.Metrics.HelperErrors.Inc()
		return nil, fmt.Errorf("the helper's answer is refused: %w", err)
	}

	return answer, nil
}

// decideRelease asks which version the node should run. done is true when the
// decision ends the pass.
func (h *Host) decideRelease(ctx context.Context, n *node) (outcome Outcome, done bool, err error) {
	req := &helperv1.DecideReleaseRequest{
		RequestId:  h.requestID,
		Node:       n.message(h),
		Context:    h.context(),
		Record:     ReleaseRecord(n.record),
		Candidates: Candidates(h.cfg.Ledger.Candidates()),
	}
	answer, err := ask(h, func() (*helperv1.DecideReleaseResponse, error) {
		return h.cfg.Helper.DecideRelease(ctx, req)
	})
	if err != nil {
		return Outcome{}, false, err
	}

	switch d := answer.Decision.(type) {
	case *helperv1.DecideReleaseResponse_Defer:
		h.cfg.Metrics.Decided("defer", metrics.Allowed)
		return deferred(d.Defer), true, nil
	case *helperv1.DecideReleaseResponse_Shutdown:
		h.cfg.Metrics.Decided("shutdown", metrics.Allowed)
		outcome, err = h.shutdown(ctx, d.Shutdown)
		return outcome, true, err
	}
	d, err := ReleaseDecision(answer)
	if err != nil {
		h.cfg.Metrics.HelperErrors.Inc()
		return Outcome{}, false, err
	}

	return h.decide(ctx, n, d)
}

// ask counts and times one question to the helper. What the helper's status
// code means for the node is the table in helper.proto.
func ask[A any](h *Host, question func() (A, error)) (A, error) {
	began := time.Now()
	answer, err := question()
	h.cfg.Metrics.ObserveHelper(time.Since(began))
	if err == nil {
		return answer, nil
	}

	h.cfg.Metrics.HelperErrors.Inc()
	switch status.Code(err) {
	case codes.Unavailable, codes.ResourceExhausted, codes.Aborted:
		return answer, fmt.Errorf("%w: %w", ErrHelperUnavailable, err)
	default:
		return answer, err
	}
}

func (h *Host) context() *helperv1.Context {
	f := h.cfg.Features

	return &helperv1.Context{
		Site:            h.cfg.Site,
		FeaturePki:      f.PKI,
		FeatureJwt:      f.JWT,
		FeatureEd25519:  f.ED25519,
		FeatureUpgrades: f.Upgrades,
	}
}
