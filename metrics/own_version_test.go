package metrics_test

import (
	"testing"
	"time"

	"github.com/choria-provisioner/provisioner/metrics"
)

// What is shown follows what is so: a verdict that was lifted is gone.
func TestMetrics_WatchOwnVersion(t *testing.T) {
	own := metrics.OwnVersion{Running: "v1", Verdicts: []metrics.OwnVerdict{
		{From: "v2", To: "v1", Outcome: "rolled-back", At: time.Unix(1_700_000_000, 0)},
		{From: "v3", Outcome: "rolled-back"},
	}}
	m := metrics.New("lon")
	m.WatchOwnVersion(func() metrics.OwnVersion { return own })
	want := prefix + `own_version_proved{site="lon",version="v1"} 0
` + prefix + `own_version_verdict_timestamp_seconds{from="v2",outcome="rolled-back",site="lon",to="v1"} 1.7e+09
` + prefix + `own_version_verdict_timestamp_seconds{from="v3",outcome="rolled-back",site="lon",to=""} 0
`
	if got := grep(text(t, m), "own_version"); got != want {
		t.Errorf("got %s, want %s", got, want)
	}

	own = metrics.OwnVersion{Running: "v1", Proved: true}
	want = prefix + `own_version_proved{site="lon",version="v1"} 1
`
	if got := grep(text(t, m), "own_version"); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestMetrics_Load(t *testing.T) {
	m := metrics.New("")
	m.WorkQueueEntries.Set(3)
	m.WaitingNodes.Set(5)
	m.BusyWorkers.Set(2)
	if queued, waiting, busy := m.Load(); queued != 3 || waiting != 5 || busy != 2 {
		t.Errorf("%d, %d, %d", queued, waiting, busy)
	}
}
