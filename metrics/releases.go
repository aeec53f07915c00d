package metrics

import "github.com/prometheus/client_golang/prometheus"

// Allowed is the value of the label guard for a decision that no guard stopped.
const Allowed = "allowed"

// knownDecisions are the values of the label decision.
func knownDecisions() []string { return []string{"keep", "upgrade", "rollback", "defer", "shutdown"} }

// knownGuards are the values of the label guard for a change of version, those
// of package ledger and Allowed.
func knownGuards() []string {
	return []string{
		Allowed, "stale-epoch", "feature-off", "no-known-good", "invalid-version", "no-version", "same-version",
		"ambiguous", "held", "trial-running", "not-upgradable", "no-repository", "older-than-current",
		"newer-than-current", "barred", "quarantined", "pinned", "not-reversible", "second-rollback", "backoff",
		"third-change", "max-in-trial", "max-dark",
	}
}

// releases are the metrics of versions. They are there, at 0, with upgrades off
// too.
type releases struct {
	// TrialsRunning is the number of nodes with a change of version that has no
	// verdict, but for those that are dark.
	TrialsRunning prometheus.Gauge
	// DarkNodes is the number of nodes that were sent a version and not seen
	// since.
	DarkNodes prometheus.Gauge
	// HeldNodes is the number of nodes that wait for a person.
	HeldNodes prometheus.Gauge
	// QuarantinedVersions is the number of versions that no node is sent.
	QuarantinedVersions prometheus.Gauge
	// LedgerErrors counts events that could not be recorded, and records that
	// could not be read.
	LedgerErrors prometheus.Counter

	decisions *prometheus.CounterVec
	verdicts  *prometheus.CounterVec
}

func newReleases(b builder) releases {
	r := releases{
		TrialsRunning:       b.gauge("trials_running", "Nodes with a change of version that has no verdict yet, without the dark ones"),
		DarkNodes:           b.gauge("dark_nodes", "Nodes that were sent a version and not seen since"),
		HeldNodes:           b.gauge("held_nodes", "Nodes that wait for a person because of their version"),
		QuarantinedVersions: b.gauge("quarantined_versions", "Versions that no node is sent because too many left them"),
		LedgerErrors:        b.counter("ledger_errors_total", "Events that could not be recorded in the ledger, and records that could not be read"),
		decisions:           b.counters("decisions_total", "Decisions about versions by kind, and the guard that stopped them or allowed", "decision", "guard"),
		verdicts:            b.counters("verdicts_total", "Verdicts on versions by outcome", "version", "outcome"),
	}
	for _, decision := range knownDecisions() {
		r.decisions.WithLabelValues(decision, Allowed)
	}
	for _, guard := range knownGuards() {
		r.decisions.WithLabelValues("upgrade", guard)
		r.decisions.WithLabelValues("rollback", guard)
	}

	return r
}

// Decided counts a decision: keep, upgrade, rollback, defer or shutdown, and the
// guard that stopped it, or Allowed.
func (r *releases) Decided(decision, guard string) {
	r.decisions.WithLabelValues(decision, guard).Inc()
}

// Judged counts a verdict: proved, presumed, rolled-back, halted or inconclusive.
// Only versions that were sent to nodes are judged, so that their number is the
// site's.
func (r *releases) Judged(version, outcome string) {
	r.verdicts.WithLabelValues(version, outcome).Inc()
}
