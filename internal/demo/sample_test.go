package demo

import (
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/choria-provisioner/provisioner/metrics"
)

// The provisioner's own metrics are read back.
func TestScrape(t *testing.T) {
	m := metrics.New("demo")
	server := httptest.NewServer(promhttp.HandlerFor(m.Gatherer(), promhttp.HandlerOpts{}))
	defer server.Close()

	m.Helper().StateChanged("starting")
	got, err := scrape(t.Context(), server.URL)
	if want := (sample{rpcs: map[string]rpcSample{}}); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("at first: %+v, %v", got, err)
	}

	m.Helper().StateChanged("running")
	m.Provisioned.Add(3)
	m.ProvisionErrors.Add(2)
	m.ObserveRPC("rpcutil#inventory", 2*time.Millisecond)
	m.ObserveRPC("rpcutil#inventory", 60*time.Millisecond)
	m.RPCError("rpcutil#inventory")
	m.ObserveRPC("choria_provision#jwt", time.Millisecond)
	m.ObserveRPC("choria_provision#restart", 200*time.Second)
	got, err = scrape(t.Context(), server.URL)
	want := sample{
		provisioned:  3,
		failedPasses: 2,
		helperRuns:   true,
		rpcs: map[string]rpcSample{
			"rpcutil#inventory":        {attempts: 2, errors: 1, mean: 31 * time.Millisecond, over: 50 * time.Millisecond, atMost: 100 * time.Millisecond},
			"choria_provision#jwt":     {attempts: 1, mean: time.Millisecond, atMost: 5 * time.Millisecond},
			"choria_provision#restart": {attempts: 1, mean: 200 * time.Second, over: 120 * time.Second},
		},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("later: %+v, %v", got, err)
	}
}

func TestReport(t *testing.T) {
	inventory := rpcSample{attempts: 2, errors: 1, mean: 31 * time.Millisecond, over: 50 * time.Millisecond, atMost: 100 * time.Millisecond}
	r := report{
		Summary: &Summary{
			Nodes: 2, Provisioned: 2, Seconds: 1.5, NodesPerMinute: 80,
			Errors: map[string]int{"rpcutil#inventory": 1},
		},
		rows: []reportRow{
			{"choria_provision#jwt", 2, rpcSample{attempts: 3, mean: 30 * time.Millisecond, over: 50 * time.Millisecond, atMost: 100 * time.Millisecond}},
			{"rpcutil#inventory", 2, inventory},
			{"choria_provision#restart", 2, rpcSample{attempts: 2, mean: time.Millisecond, atMost: 5 * time.Millisecond}},
		},
		failedPasses: 1,
	}

	var b strings.Builder
	r.write(&b)
	const want = `2 of 2 nodes provisioned in 1.5 s: 80 nodes a minute, start and discovery included

  action                             calls   errors       mean   slowest
  choria_provision#jwt                   2        0     30.0ms   50ms to 100ms
  rpcutil#inventory                      2        1     31.0ms   50ms to 100ms
  choria_provision#restart               2        0      1.0ms   at most 5ms

  slowest call: rpcutil#inventory, 50ms to 100ms
  failed passes over a node, repeated later: 1
  choria_provision#jwt: the nodes recorded 2 calls, the provisioner made 3
`
	if b.String() != want {
		t.Errorf("got:\n%s", b.String())
	}
}
