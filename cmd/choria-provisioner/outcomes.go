package main

import (
	"context"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/time/rate"

	"github.com/choria-provisioner/provisioner/fleet"
	"github.com/choria-provisioner/provisioner/helper/helperv1"
	"github.com/choria-provisioner/provisioner/host"
	"github.com/choria-provisioner/provisioner/version/ledger"
)

const (
	// outcomesWaiting is how many outcomes may wait for the helper to hear them,
	// outcomesAtOnce how many it hears at once.
	outcomesWaiting = 10_000
	outcomesAtOnce  = 4
)

// outcomes tells the helper how its decisions ended, beside the work: no node
// waits for it, and a helper that does not listen loses some.
type outcomes struct {
	report  func(context.Context, *helperv1.ReportOutcomeRequest) error
	wanted  func() bool
	log     *logrus.Entry
	waiting chan *helperv1.ReportOutcomeRequest
	lost    rate.Sometimes
	failed  rate.Sometimes
}

func newOutcomes(report func(context.Context, *helperv1.ReportOutcomeRequest) error, wanted func() bool, log *logrus.Entry) *outcomes {
	return &outcomes{
		report: report, wanted: wanted, log: log,
		waiting: make(chan *helperv1.ReportOutcomeRequest, outcomesWaiting),
		lost:    rate.Sometimes{Interval: time.Minute},
		failed:  rate.Sometimes{Interval: time.Minute},
	}
}

// Run tells the helper until ctx ends; what waits then is dropped.
func (o *outcomes) Run(ctx context.Context) {
	var tasks sync.WaitGroup
	for range outcomesAtOnce {
		tasks.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case req := <-o.waiting:
					if err := o.report(ctx, req); err != nil && ctx.Err() == nil {
						o.failed.Do(func() {
							o.log.Warnf("The helper did not hear the outcome %s of %s: %v", req.Outcome, req.Identity, err)
						})
					}
				}
			}
		})
	}
	tasks.Wait()
}

// passed takes the end of a pass. Those that another provisioner, the lease or
// the network ended are none of the helper's.
func (o *outcomes) passed(p fleet.Pass) {
	detail := p.Outcome.Reason
	result := p.Outcome.Result
	switch result {
	case host.Provisioned, host.Deferred, host.Shutdown, host.UpgradeSent, host.Failed:
	case host.Refused:
		result = host.Failed
	default:
		return
	}
	if p.Err != nil {
		detail = p.Err.Error()
	}
	o.add(&helperv1.ReportOutcomeRequest{
		RequestId: p.Outcome.RequestID, Identity: p.Identity, Outcome: string(result), Version: p.Outcome.Version, Detail: detail,
	})
}

// judged takes a verdict.
func (o *outcomes) judged(identity string, v ledger.Verdict) {
	o.add(&helperv1.ReportOutcomeRequest{Identity: identity, Outcome: string(v.Outcome), Version: v.Version, Detail: v.Why})
}

func (o *outcomes) add(req *helperv1.ReportOutcomeRequest) {
	if !o.wanted() {
		return
	}
	select {
	case o.waiting <- req:
	default:
		o.lost.Do(func() { o.log.Warnf("The helper hears outcomes too slowly, some are lost") })
	}
}
