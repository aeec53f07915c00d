package demo

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// scrapeTimeout bounds the reading of the metrics.
const scrapeTimeout = 2 * time.Second

// sample is what the provisioner's metrics say at one moment.
type sample struct {
	provisioned  int
	failedPasses int
	helperRuns   bool
	// rpcs are by action (agent#action); those never called are not in it.
	rpcs map[string]rpcSample
}

// rpcSample is what the metrics say of one action.
type rpcSample struct {
	attempts int
	// errors are the calls that were given up.
	errors int
	mean   time.Duration
	// slowest lies above over and is at most atMost: a histogram knows no more.
	// atMost is 0 where it has no limit.
	over, atMost time.Duration
}

// scrape reads the metrics page at url.
func scrape(ctx context.Context, url string) (sample, error) {
	ctx, cancel := context.WithTimeout(ctx, scrapeTimeout)
	defer cancel()

	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return sample{}, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return sample{}, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return sample{}, fmt.Errorf("%s: %s", url, resp.Status)
	}

	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	if err != nil {
		return sample{}, fmt.Errorf("%s: %w", url, err)
	}

	return newSample(families), nil
}

func newSample(families map[string]*dto.MetricFamily) sample {
	metrics := func(name string) []*dto.Metric { return families["choria_provisioner_"+name].GetMetric() }

	s := sample{rpcs: map[string]rpcSample{}}
	for _, m := range metrics("provisioned") {
		s.provisioned = int(m.GetCounter().GetValue())
	}
	for _, m := range metrics("provision_errors") {
		s.failedPasses = int(m.GetCounter().GetValue())
	}
	for _, m := range metrics("helper_state") {
		if label(m, "state") == "running" {
			s.helperRuns = m.GetGauge().GetValue() == 1
		}
	}
	for _, m := range metrics("rpc_time") {
		if h := m.GetHistogram(); h.GetSampleCount() > 0 {
			s.rpcs[label(m, "rpc")] = newRPCSample(h)
		}
	}
	for _, m := range metrics("rpc_errors") {
		if rpc, called := s.rpcs[label(m, "rpc")]; called {
			rpc.errors = int(m.GetCounter().GetValue())
			s.rpcs[label(m, "rpc")] = rpc
		}
	}

	return s
}

// newRPCSample finds the first bucket that holds all observations: the slowest
// is in it.
func newRPCSample(h *dto.Histogram) rpcSample {
	s := rpcSample{
		attempts: int(h.GetSampleCount()),
		mean:     fromSeconds(h.GetSampleSum() / float64(h.GetSampleCount())),
	}
	for _, b := range h.GetBucket() {
		bound := b.GetUpperBound()
		if math.IsInf(bound, 1) {
			break
		}
		if b.GetCumulativeCount() == h.GetSampleCount() {
			s.atMost = fromSeconds(bound)
			break
		}
		s.over = fromSeconds(bound)
	}

	return s
}

func fromSeconds(s float64) time.Duration {
	return time.Duration(s * float64(time.Second)).Round(time.Microsecond)
}

func label(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}

	return ""
}
