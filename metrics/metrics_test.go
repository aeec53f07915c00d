package metrics_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/choria-provisioner/provisioner/metrics"
)

// older are the metrics of the older provisioner: dashboards read these names
// and labels.
func older() map[string][]string {
	site, rpc := []string{"site"}, []string{"rpc", "site"}
	return map[string][]string{
		"discovered": site, "event_discovered": site, "discover_cycles": site, "discovery_errors": site,
		"provision_errors": site, "provisioned": site, "helper_errors": site, "helper_shutdown_requests": site,
		"paused": site, "busy_workers": site, "work_queue_entries": site, "waiting_nodes": site,
		"helper_time": site, "rpc_time": rpc, "rpc_errors": rpc,
	}
}

const prefix = "choria_provisioner_"

// everything is a Metrics on which all that only appears once used has been.
func everything(t *testing.T) (*metrics.Metrics, []*dto.MetricFamily) {
	t.Helper()

	m := metrics.New("lon")
	m.SetBuild("1.2.3")
	m.WatchHelper(func() (string, string) { return "localca", "1.2.3" })
	m.WatchOwnVersion(func() metrics.OwnVersion {
		return metrics.OwnVersion{Running: "v1", Verdicts: []metrics.OwnVerdict{{From: "v2", To: "v1", Outcome: "rolled-back"}}}
	})
	m.Judged("1.2.3", "proved") // a series of a version begins with its first verdict

	return m, gather(t, m.Gatherer())
}

func gather(t *testing.T, g prometheus.Gatherer) []*dto.MetricFamily {
	t.Helper()

	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}

	return families
}

func labels(m *dto.Metric) []string {
	var names []string
	for _, l := range m.GetLabel() {
		names = append(names, l.GetName())
	}
	slices.Sort(names)

	return names
}

func TestNew_keepsOlderNames(t *testing.T) {
	families := map[string]*dto.MetricFamily{}
	for _, f := range gather(t, metrics.New("lon").Gatherer()) {
		families[f.GetName()] = f
	}

	for name, want := range older() {
		f := families[prefix+name]
		if f == nil {
			t.Errorf("%s is not there before its first event", name)
			continue
		}
		for _, m := range f.GetMetric() {
			if got := labels(m); !slices.Equal(got, want) {
				t.Errorf("%s has labels %v, want %v", name, got, want)
			}
		}
		if strings.HasSuffix(name, "_time") && f.GetType() != dto.MetricType_HISTOGRAM {
			t.Errorf("%s is a %v: dashboards need its _sum and _count", name, f.GetType())
		}
	}
}

// A counter that appears with its first event hides that event from increase().
func TestNew_countersStartAtZero(t *testing.T) {
	actions := []string{
		"choria_provision#jwt", "choria_provision#gen25519", "choria_provision#gencsr", "choria_provision#configure",
		"choria_provision#restart", "choria_provision#shutdown", "choria_provision#release_update", "rpcutil#inventory",
	}

	for _, f := range gather(t, metrics.New("").Gatherer()) {
		for _, m := range f.GetMetric() {
			if m.GetCounter().GetValue() != 0 {
				t.Errorf("%s starts at %v", f.GetName(), m.GetCounter().GetValue())
			}
		}

		if f.GetName() != prefix+"rpc_errors" && f.GetName() != prefix+"rpc_time" {
			continue
		}
		var got []string
		for _, m := range f.GetMetric() {
			got = append(got, m.GetLabel()[0].GetValue())
		}
		slices.Sort(got)
		slices.Sort(actions)
		if !slices.Equal(got, actions) {
			t.Errorf("%s starts with %v, want %v", f.GetName(), got, actions)
		}
	}
}

func TestMetrics_methods(t *testing.T) {
	for _, tc := range []struct {
		why  string
		do   func(*metrics.Metrics)
		name string
		want string
	}{
		{
			why:  "one observation an attempt, its sum in seconds",
			do:   func(m *metrics.Metrics) { m.ObserveRPC("rpcutil#inventory", 90*time.Second) },
			name: "rpc_time", want: `rpc_time_sum{rpc="rpcutil#inventory",site="lon"} 90`,
		},
		{
			why:  "the longest bucket holds a slow release_update",
			do:   func(m *metrics.Metrics) { m.ObserveRPC("rpcutil#inventory", 119*time.Second) },
			name: "rpc_time", want: `rpc_time_bucket{rpc="rpcutil#inventory",site="lon",le="120"} 1`,
		},
		{
			why:  "an error goes to its action alone",
			do:   func(m *metrics.Metrics) { m.RPCError("choria_provision#jwt") },
			name: "rpc_errors", want: `rpc_errors{rpc="choria_provision#jwt",site="lon"} 1`,
		},
		{
			why:  "paused before anyone said so: a gate starts paused",
			do:   func(*metrics.Metrics) {},
			name: "paused", want: `paused{site="lon"} 1`,
		},
		{
			why:  "and open afterwards",
			do:   func(m *metrics.Metrics) { m.SetPaused(false) },
			name: "paused", want: `paused{site="lon"} 0`,
		},
		{
			why:  "helper time of the dashboard",
			do:   func(m *metrics.Metrics) { m.ObserveHelper(1500 * time.Millisecond) },
			name: "helper_time", want: `helper_time_sum{site="lon"} 1.5`,
		},
		{
			why:  "fractions of a second stay",
			do:   func(m *metrics.Metrics) { m.DiscoverySucceeded(time.UnixMilli(1700000000250)) },
			name: "last_discovery_timestamp_seconds", want: `last_discovery_timestamp_seconds{site="lon"} 1.70000000025e+09`,
		},
		{
			why:  "plugin calls by method and code",
			do:   func(m *metrics.Metrics) { m.Helper().CallDone("ConfigureNode", "Unavailable", time.Second) },
			name: "helper_calls_total", want: `helper_calls_total{code="Unavailable",method="ConfigureNode",site="lon"} 1`,
		},
		{
			why:  "a restart",
			do:   func(m *metrics.Metrics) { m.Helper().Restarted() },
			name: "helper_restarts_total", want: `helper_restarts_total{site="lon"} 1`,
		},
		{
			why:  "a pass by its result",
			do:   func(m *metrics.Metrics) { m.PassDone("locked", 3*time.Second) },
			name: "pass_seconds", want: `pass_seconds_sum{result="locked",site="lon"} 3`,
		},
		{
			why:  "results without a pass are there, for increase()",
			do:   func(*metrics.Metrics) {},
			name: "pass_seconds", want: `pass_seconds_count{result="helper-unavailable",site="lon"} 0`,
		},
		{
			why:  "so are the codes of calls that never failed",
			do:   func(*metrics.Metrics) {},
			name: "helper_calls_total", want: `helper_calls_total{code="DeadlineExceeded",method="ConfigureNode",site="lon"} 0`,
		},
		{
			why:  "and the states the helper was never in",
			do:   func(*metrics.Metrics) {},
			name: "helper_state", want: `helper_state{site="lon",state="crash-loop"} 0`,
		},
		{
			why:  "expiry as a time, for an alert to subtract",
			do:   func(m *metrics.Metrics) { m.SigningTokenExpires(time.Unix(1700000000, 0)) },
			name: "signing_token_expiry_timestamp_seconds", want: `signing_token_expiry_timestamp_seconds{site="lon"} 1.7e+09`,
		},
		{
			why: "a token that cannot be read any longer must not look valid",
			do: func(m *metrics.Metrics) {
				m.SigningTokenExpires(time.Unix(1700000000, 0))
				m.SigningTokenExpires(time.Time{})
			},
			name: "signing_token_expiry_timestamp_seconds", want: `signing_token_expiry_timestamp_seconds{site="lon"} 0`,
		},
		{
			why:  "what the helper says it is, asked at each scrape",
			do:   func(m *metrics.Metrics) { m.WatchHelper(func() (string, string) { return "localca", "7" }) },
			name: "helper_info", want: `helper_info{build="7",name="localca",site="lon"} 1`,
		},
		{
			why:  "the state left behind goes to 0, also when said through another adapter",
			do:   func(m *metrics.Metrics) { m.Helper().StateChanged("running"); m.Helper().StateChanged("broken") },
			name: "helper_state", want: `helper_state{site="lon",state="running"} 0`,
		},
	} {
		t.Run(tc.why, func(t *testing.T) {
			m := metrics.New("lon")
			tc.do(m)

			if page := text(t, m); !strings.Contains(page, "\n"+prefix+tc.want+"\n") {
				t.Errorf("no line %q in\n%s", tc.want, grep(page, tc.name))
			}
		})
	}
}

// Two provisioners run in one process in tests and in the demo.
func TestNew_twice(t *testing.T) {
	a, b := metrics.New("a"), metrics.New("b")
	a.Provisioned.Inc()

	if got := testutil.ToFloat64(b.Provisioned); got != 0 {
		t.Errorf("the other provisioner counts %v", got)
	}
}

// promtool runs `promtool check args…`.
func promtool(t *testing.T, stdin string, args ...string) (string, error) {
	t.Helper()

	path, err := exec.LookPath("promtool")
	if err != nil {
		t.Fatalf("promtool is needed (Debian package prometheus): %v", err)
	}
	cmd := exec.Command(path, append([]string{"check"}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()

	return string(out), err
}

func TestNew_namesAreWellFormed(t *testing.T) {
	m, _ := everything(t)
	out, err := promtool(t, text(t, m), "metrics")
	if err != nil && out == "" {
		t.Fatal(err)
	}

	old := older()
	for line := range strings.Lines(out) {
		name, complaint, _ := strings.Cut(strings.TrimSpace(line), " ")
		// The older names stay, though they break today's rule for counters.
		if _, ok := old[strings.TrimPrefix(name, prefix)]; ok && strings.Contains(complaint, `"_total" suffix`) {
			continue
		}
		t.Errorf("promtool: %s", line)
	}
}

func TestDocumentation_agrees(t *testing.T) {
	page, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}

	// | `name` | type | labels | meaning |
	row := regexp.MustCompile("(?m)^\\| `(" + prefix + "[a-z0-9_]+)` \\| (\\w+) \\| ([^|]*) \\|")
	documented := map[string]string{}
	for _, r := range row.FindAllStringSubmatch(string(page), -1) {
		documented[r[1]] = r[2] + " " + r[3]
	}

	_, families := everything(t)
	for _, f := range families {
		var ls []string
		for _, l := range labels(f.GetMetric()[0]) {
			ls = append(ls, "`"+l+"`")
		}
		want := strings.ToLower(f.GetType().String()) + " " + strings.Join(ls, ", ")
		if got := documented[f.GetName()]; got != want {
			t.Errorf("docs/metrics.md says %q of %s, want %q", got, f.GetName(), want)
		}
		delete(documented, f.GetName())
	}
	for name := range documented {
		t.Errorf("docs/metrics.md describes %s, which does not exist", name)
	}
}

func TestDocumentation_alerts(t *testing.T) {
	page, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```yaml\n")
	rules, _, found := strings.Cut(rest, "```")
	if !found {
		t.Fatal("no alert rules in docs/metrics.md")
	}
	file := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := promtool(t, "", "rules", file); err != nil {
		t.Errorf("%v: %s", err, out)
	}

	_, families := everything(t)
	known := map[string]bool{}
	for _, f := range families {
		known[f.GetName()] = true
	}
	for _, name := range regexp.MustCompile(prefix+"[a-z0-9_]+").FindAllString(rules, -1) {
		if !known[name] && !known[strings.TrimSuffix(name, "_count")] {
			t.Errorf("an alert reads %s, which does not exist", name)
		}
	}
}

// text is the page as Prometheus reads it.
func text(t *testing.T, m *metrics.Metrics) string {
	t.Helper()

	var page bytes.Buffer
	for _, f := range gather(t, m.Gatherer()) {
		if _, err := expfmt.MetricFamilyToText(&page, f); err != nil {
			t.Fatal(err)
		}
	}

	return page.String()
}

func grep(page, name string) string {
	var lines strings.Builder
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, prefix+name) {
			lines.WriteString(line)
		}
	}

	return lines.String()
}
