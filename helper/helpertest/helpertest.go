// Package helpertest holds a helper to the contract: it starts the helper as
// the host does, asks it what a fleet asks, and reports each rule of the
// contract by itself. It is behind "choria-provisioner helper test", and a
// helper's own test may call it:
//
//	func TestContract(t *testing.T) {
//		helpertest.Run(t, helpertest.Config{Supervisor: supervisor.Config{Path: build(t)}})
//	}
package helpertest

import (
	"context"
	"fmt"
	"time"

	"github.com/choria-provisioner/provisioner/helper/helperv1"
	"github.com/choria-provisioner/provisioner/helper/supervisor"
)

// Config says what to test.
type Config struct {
	// Supervisor says how the helper is started: its path, arguments and
	// configuration, and the limits to hold it to. AllowRawClaims marks the
	// adapter of an exec helper. Metrics, Health and Restart are the test's own.
	Supervisor supervisor.Config
	// Nodes are a site's own, asked about beside the generated ones: the helper
	// must decide about each. May be empty.
	Nodes []*helperv1.Node
}

// Check runs every check and reports. ctx ends it early; what it could not run
// has then failed.
func Check(ctx context.Context, cfg Config) *Report {
	k, err := newKit(cfg)
	if err != nil {
		return &Report{Path: cfg.Supervisor.Path, Checks: []Result{{Name: "start", Outcome: Failed, Reason: err.Error()}}}
	}
	defer k.sweep()

	for _, c := range checks() {
		began := time.Now()
		outcome, reason := k.run(ctx, c)
		k.report.Checks = append(k.report.Checks, Result{Name: c.name, Outcome: outcome, Reason: reason, Seconds: time.Since(began).Seconds()})
	}

	return k.report
}

// T is what Run needs of testing.T.
type T interface {
	Helper()
	Context() context.Context
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
}

// Run runs every check in a test; each that fails is an error of the test.
func Run(t T, cfg Config) {
	t.Helper()
	for _, r := range Check(t.Context(), cfg).Checks {
		report := t.Logf
		if r.Outcome == Failed {
			report = t.Errorf
		}
		report("%s", r)
	}
}

// check is one rule of the contract.
type check struct {
	name string
	run  func(ctx context.Context, k *kit) verdict
	// first marks a check without which no other makes sense.
	first bool
}

// verdict is how a check ended.
type verdict struct {
	outcome Outcome
	reason  string
}

func pass(format string, args ...any) verdict { return verdict{Passed, fmt.Sprintf(format, args...)} }
func warn(format string, args ...any) verdict { return verdict{Warned, fmt.Sprintf(format, args...)} }
func fail(format string, args ...any) verdict { return verdict{Failed, fmt.Sprintf(format, args...)} }
func skip(format string, args ...any) verdict { return verdict{Skipped, fmt.Sprintf(format, args...)} }
