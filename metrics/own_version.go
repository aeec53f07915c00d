package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// OwnVersion is what is shown of the version of the daemon itself.
type OwnVersion struct {
	// Running is its name, and Proved tells whether it has proved itself.
	Running string
	Proved  bool
	// Verdicts are the standing ones.
	Verdicts []OwnVerdict
}

// OwnVerdict is a version that is not started again. Verdicts differ in From.
type OwnVerdict struct {
	From, To, Outcome string
	// At is zero where it is not known.
	At time.Time
}

// WatchOwnVersion shows what of returns at each scrape. It is called once, by a
// daemon that a launcher started.
func (m *Metrics) WatchOwnVersion(of func() OwnVersion) {
	m.registry.MustRegister(&ownVersion{
		proved: prometheus.NewDesc(namespace+"_own_version_proved",
			"1 once the version of the daemon that runs has proved itself, 0 before", []string{"version"}, m.labels),
		verdict: prometheus.NewDesc(namespace+"_own_version_verdict_timestamp_seconds",
			"When a version of the daemon was given a verdict that stands, 0 where that is not known", []string{"from", "to", "outcome"}, m.labels),
		of: of,
	})
}

// ownVersion is a collector, so that a verdict that was lifted is not shown any
// longer.
type ownVersion struct {
	proved, verdict *prometheus.Desc
	of              func() OwnVersion
}

func (c *ownVersion) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.proved
	ch <- c.verdict
}

func (c *ownVersion) Collect(ch chan<- prometheus.Metric) {
	own := c.of()
	proved := 0.0
	if own.Proved {
		proved = 1
	}
	ch <- prometheus.MustNewConstMetric(c.proved, prometheus.GaugeValue, proved, own.Running)
	for _, v := range own.Verdicts {
		at := 0.0
		if !v.At.IsZero() {
			at = float64(v.At.Unix())
		}
		ch <- prometheus.MustNewConstMetric(c.verdict, prometheus.GaugeValue, at, v.From, v.To, v.Outcome)
	}
}

// Load is how busy the fleet is, as the gauges show it: nodes queued for a
// worker, nodes known, workers with a node in hand.
func (m *Metrics) Load() (queued, waiting, busy int) {
	return value(m.WorkQueueEntries), value(m.WaitingNodes), value(m.BusyWorkers)
}

func value(g prometheus.Gauge) int {
	var metric dto.Metric
	if g.Write(&metric) != nil {
		return 0
	}

	return int(metric.GetGauge().GetValue())
}
