// Package metrics holds every Prometheus metric of the provisioner, and the
// server that shows them. docs/metrics.md describes each for the people who
// watch them.
package metrics

import (
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
)

const namespace = "choria_provisioner"

// knownActions are the values of the label rpc; each is there at 0 from the
// start, so that increase() sees the first event. They are agent#action as the
// older provisioner named them.
func knownActions() []string {
	return []string{
		"choria_provision#jwt",
		"choria_provision#gen25519",
		"choria_provision#gencsr",
		"choria_provision#configure",
		"choria_provision#restart",
		"choria_provision#shutdown",
		"choria_provision#release_update",
		"rpcutil#inventory",
	}
}

// knownResults are the values of the label result, those of package host.
func knownResults() []string {
	return []string{
		"provisioned", "deferred", "shutdown", "upgrade-sent", "updating", "refused",
		"failed", "locked", "twins", "helper-unavailable", "disconnected", "paused", "evicted", "cancelled",
	}
}

// knownMethods are the values of the label method: those of the contract that
// are called for nodes.
func knownMethods() []string {
	return []string{"ConfigureNode", "DecideRelease", "ReportOutcome"}
}

// knownStates are the values of the label state, those of package supervisor.
func knownStates() []string {
	return []string{"stopped", "starting", "running", "restarting", "crash-loop", "closed"}
}

// Metrics are the metrics of one provisioner, on a registry of their own, so
// that two provisioners fit in one process. The zero value is not usable, see
// New. Metrics with labels are reached through methods: no label ever carries
// an identity, whose number has no bound.
type Metrics struct {
	// Discovered counts nodes found by broadcast discovery.
	Discovered prometheus.Counter
	// EventDiscovered counts nodes found by their lifecycle events.
	EventDiscovered prometheus.Counter
	// DiscoverCycles counts broadcast discoveries that were started.
	DiscoverCycles prometheus.Counter
	// DiscoveryErrors counts broadcast discoveries that failed.
	DiscoveryErrors prometheus.Counter
	// ProvisionErrors counts passes over a node that ended in an error; a
	// deferred node is not one of them.
	ProvisionErrors prometheus.Counter
	// Provisioned counts nodes that were configured and restarted.
	Provisioned prometheus.Counter
	// HelperErrors counts helper calls for a node that gave no usable answer.
	HelperErrors prometheus.Counter
	// HelperShutdownRequests counts nodes that accepted a shutdown the helper
	// asked for.
	HelperShutdownRequests prometheus.Counter

	// BusyWorkers is the number of workers with a node in hand.
	BusyWorkers prometheus.Gauge
	// WorkQueueEntries is the number of nodes queued for a worker.
	WorkQueueEntries prometheus.Gauge
	// WaitingNodes is the number of nodes known and not yet provisioned.
	WaitingNodes prometheus.Gauge

	// QueueRefusals counts nodes found while the queue was full; they are
	// remembered and queued later.
	QueueRefusals prometheus.Counter
	// Deferred counts passes over a node that were put off on request.
	Deferred prometheus.Counter
	// StaleEntriesDropped counts queued nodes dropped because they had waited
	// for longer than twice the discovery interval.
	StaleEntriesDropped prometheus.Counter
	// Twins counts identities that began to be held because more than one machine
	// answered for them.
	Twins prometheus.Counter

	registry      *prometheus.Registry
	labels        prometheus.Labels
	paused        prometheus.Gauge
	helperTime    prometheus.Histogram
	rpcTime       *prometheus.HistogramVec
	rpcErrors     *prometheus.CounterVec
	buildInfo     *prometheus.GaugeVec
	lastDiscovery prometheus.Gauge

	helperCalls    *prometheus.CounterVec
	helperCallTime *prometheus.HistogramVec
	helperRestarts prometheus.Counter
	helperState    *prometheus.GaugeVec

	releases
	passTime           *prometheus.HistogramVec
	signingTokenExpiry prometheus.Gauge

	mu    sync.Mutex // keeps exactly one state at 1
	state string
}

// New makes the metrics with site, which may be empty, as the value of the
// label site on each.
func New(site string) *Metrics {
	b := builder{registry: prometheus.NewRegistry(), labels: prometheus.Labels{"site": site}}

	m := &Metrics{
		registry: b.registry,
		labels:   b.labels,

		Discovered:             b.counter("discovered", "Nodes found by broadcast discovery"),
		EventDiscovered:        b.counter("event_discovered", "Nodes found by their lifecycle events"),
		DiscoverCycles:         b.counter("discover_cycles", "Broadcast discoveries started"),
		DiscoveryErrors:        b.counter("discovery_errors", "Broadcast discoveries that failed"),
		ProvisionErrors:        b.counter("provision_errors", "Passes over a node that ended in an error"),
		Provisioned:            b.counter("provisioned", "Nodes configured and restarted"),
		HelperErrors:           b.counter("helper_errors", "Helper calls for a node without a usable answer"),
		HelperShutdownRequests: b.counter("helper_shutdown_requests", "Nodes that accepted a shutdown the helper asked for"),

		paused:           b.gauge("paused", "1 while nothing is sent to nodes, 0 otherwise"),
		BusyWorkers:      b.gauge("busy_workers", "Workers with a node in hand"),
		WorkQueueEntries: b.gauge("work_queue_entries", "Nodes queued for a worker"),
		WaitingNodes:     b.gauge("waiting_nodes", "Nodes known and not yet provisioned"),

		// Above 20 s the node's agent has given up answering, above 22 s the
		// call is lost; the buckets beyond are for downloads of a release.
		rpcTime: b.histograms("rpc_time", "Seconds each attempt of an RPC took",
			[]float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20, 30, 60, 120}, "rpc"),
		rpcErrors:  b.counters("rpc_errors", "RPCs that failed after the last try", "rpc"),
		helperTime: b.histogram("helper_time", "Seconds the helper took for a node", helperBuckets()),

		QueueRefusals:       b.counter("queue_refusals_total", "Nodes found while the queue was full, to be queued later"),
		Deferred:            b.counter("deferred_total", "Passes over a node that were put off on request"),
		Twins:               b.counter("twins_total", "Identities held because more than one machine answered for them"),
		StaleEntriesDropped: b.counter("stale_entries_dropped_total", "Queued nodes dropped because they had waited for too long"),
		buildInfo:           b.gauges("build_info", "Always 1, labelled with the versions of the provisioner and of Go", "version", "go"),
		lastDiscovery:       b.gauge("last_discovery_timestamp_seconds", "When the last successful broadcast discovery ended, 0 before the first"),

		helperCalls:    b.counters("helper_calls_total", "Calls to the helper plugin by method and status code", "method", "code"),
		helperCallTime: b.histograms("helper_call_seconds", "Seconds a call to the helper plugin took, by method", helperBuckets(), "method"),
		helperRestarts: b.counter("helper_restarts_total", "Times the helper plugin was started again after it had ended or failed"),
		helperState:    b.gauges("helper_state", "1 for the state the helper plugin is in, 0 for all others", "state"),

		// A node that is there takes well under a second, one that is silent
		// 22 s a try of each call.
		passTime: b.histograms("pass_seconds", "Seconds a pass over a node took, by what it came to",
			[]float64{.05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300}, "result"),
		releases: newReleases(b),

		signingTokenExpiry: b.gauge("signing_token_expiry_timestamp_seconds", "When jwt_signing_token expires, 0 where none can be read"),
	}

	for _, action := range knownActions() {
		m.rpcTime.WithLabelValues(action)
		m.rpcErrors.WithLabelValues(action)
	}
	for _, result := range knownResults() {
		m.passTime.WithLabelValues(result)
	}
	for _, method := range knownMethods() {
		m.helperCallTime.WithLabelValues(method)
		for code := codes.OK; code <= codes.Unauthenticated; code++ {
			m.helperCalls.WithLabelValues(method, code.String())
		}
	}
	for _, state := range knownStates() {
		m.helperState.WithLabelValues(state)
	}
	m.paused.Set(1) // a gate starts paused

	return m
}

// helperBuckets lie around the default deadline of a helper call, 10 s.
func helperBuckets() []float64 {
	return []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 15, 30, 60}
}

// Gatherer yields these metrics and no others.
func (m *Metrics) Gatherer() prometheus.Gatherer { return m.registry }

// ObserveRPC records one attempt of action (agent#action), whatever came of it.
func (m *Metrics) ObserveRPC(action string, d time.Duration) {
	m.rpcTime.WithLabelValues(action).Observe(d.Seconds())
}

// RPCError counts a call of action (agent#action) that was given up.
func (m *Metrics) RPCError(action string) { m.rpcErrors.WithLabelValues(action).Inc() }

// ObserveHelper records how long the helper took to answer for one node.
func (m *Metrics) ObserveHelper(d time.Duration) { m.helperTime.Observe(d.Seconds()) }

// SetPaused shows whether the gate is paused. It is 1 before the first call.
func (m *Metrics) SetPaused(paused bool) {
	v := 0.0
	if paused {
		v = 1
	}
	m.paused.Set(v)
}

// SetBuild shows the version of the program, beside Go's.
func (m *Metrics) SetBuild(version string) {
	m.buildInfo.WithLabelValues(version, runtime.Version()).Set(1)
}

// DiscoverySucceeded records that a broadcast discovery ended well at t.
func (m *Metrics) DiscoverySucceeded(t time.Time) {
	m.lastDiscovery.Set(float64(t.UnixMilli()) / 1000)
}

// PassDone records a pass over a node that took d; result is one of package
// host's.
func (m *Metrics) PassDone(result string, d time.Duration) {
	m.passTime.WithLabelValues(result).Observe(d.Seconds())
}

// SigningTokenExpires shows when the signing token expires; the zero time is a
// token that cannot be read.
func (m *Metrics) SigningTokenExpires(t time.Time) {
	if t.IsZero() {
		m.signingTokenExpiry.Set(0)
		return
	}
	m.signingTokenExpiry.Set(float64(t.Unix()))
}

// WatchHelper shows name and build of the helper that info returns at each
// scrape; an empty name is none. It is called once.
func (m *Metrics) WatchHelper(info func() (name, build string)) {
	m.registry.MustRegister(&helperInfo{
		desc: prometheus.NewDesc(namespace+"_helper_info", "Always 1, labelled with what the helper plugin says it is", []string{"name", "build"}, m.labels),
		info: info,
	})
}

// helperInfo is a collector, so that a helper that was replaced is not shown any
// longer.
type helperInfo struct {
	desc *prometheus.Desc
	info func() (name, build string)
}

func (c *helperInfo) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc }

func (c *helperInfo) Collect(ch chan<- prometheus.Metric) {
	if name, build := c.info(); name != "" {
		ch <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, 1, name, build)
	}
}

// Helper is what the supervisor of the helper plugin reports to.
func (m *Metrics) Helper() *Helper { return &Helper{m} }

// Helper turns what the supervisor of the helper plugin reports into metrics.
type Helper struct{ m *Metrics }

// CallDone counts a call to method, for instance ConfigureNode, that took d
// and ended with code as gRPC names it, for instance DeadlineExceeded.
func (h *Helper) CallDone(method, code string, d time.Duration) {
	h.m.helperCalls.WithLabelValues(method, code).Inc()
	h.m.helperCallTime.WithLabelValues(method).Observe(d.Seconds())
}

// Restarted counts a start of the plugin that was not its first.
func (h *Helper) Restarted() { h.m.helperRestarts.Inc() }

// StateChanged shows state as the one the plugin is in.
func (h *Helper) StateChanged(state string) {
	h.m.mu.Lock()
	defer h.m.mu.Unlock()

	if h.m.state != "" {
		h.m.helperState.WithLabelValues(h.m.state).Set(0)
	}
	h.m.helperState.WithLabelValues(state).Set(1)
	h.m.state = state
}

// builder registers what it makes, with the same labels on each.
type builder struct {
	registry *prometheus.Registry
	labels   prometheus.Labels
}

func (b builder) opts(name, help string) prometheus.Opts {
	return prometheus.Opts{Namespace: namespace, Name: name, Help: help, ConstLabels: b.labels}
}

func (b builder) histogramOpts(name, help string, buckets []float64) prometheus.HistogramOpts {
	return prometheus.HistogramOpts{Namespace: namespace, Name: name, Help: help, ConstLabels: b.labels, Buckets: buckets}
}

func (b builder) counter(name, help string) prometheus.Counter {
	return register(b, prometheus.NewCounter(prometheus.CounterOpts(b.opts(name, help))))
}

func (b builder) counters(name, help string, labels ...string) *prometheus.CounterVec {
	return register(b, prometheus.NewCounterVec(prometheus.CounterOpts(b.opts(name, help)), labels))
}

func (b builder) gauge(name, help string) prometheus.Gauge {
	return register(b, prometheus.NewGauge(prometheus.GaugeOpts(b.opts(name, help))))
}

func (b builder) gauges(name, help string, labels ...string) *prometheus.GaugeVec {
	return register(b, prometheus.NewGaugeVec(prometheus.GaugeOpts(b.opts(name, help)), labels))
}

func (b builder) histogram(name, help string, buckets []float64) prometheus.Histogram {
	return register(b, prometheus.NewHistogram(b.histogramOpts(name, help, buckets)))
}

func (b builder) histograms(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return register(b, prometheus.NewHistogramVec(b.histogramOpts(name, help, buckets), labels))
}

// register panics on a name that is taken, which only a mistake in this file
// can cause: the registry is new.
func register[C prometheus.Collector](b builder, c C) C {
	b.registry.MustRegister(c)
	return c
}
