//go:build linux

package operators

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/choria-provisioner/provisioner/e2e/harness"
	"github.com/choria-provisioner/provisioner/internal/simfleet"
)

// A terminal that closes ends the daemon as in order as SIGTERM does; a second
// start by mistake leaves the first one's pid file alone.
func TestPIDFile(t *testing.T) {
	bin, broker := harness.Build(t), startBroker(t)
	for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGINT} {
		daemon := startDaemon(t, bin, broker, nil)
		harness.Eventually(t, limit, "first discovery", func() error {
			return daemon.ExpectMetric("choria_provisioner_discover_cycles", 1)
		})

		out, err := daemon.Again(limit)
		if err == nil || !strings.Contains(out, "address already in use") {
			t.Errorf("a second start ended with %v:\n%s", err, out)
		}
		if _, err := os.Stat(daemon.PIDFile); err != nil {
			t.Errorf("the pid file after a second start: %v", err)
		}

		family := daemon.Descendants()
		if _, err := daemon.End(sig, limit); err != nil {
			t.Error(err)
		}
		harness.ExpectGone(t, time.Second, family)
		if _, err := os.Stat(daemon.PIDFile); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the pid file after %v: %v", sig, err)
		}
	}
}

// While the helper is down no node is asked for anything, all of them count as
// waiting, and the daemon says that it is not ready.
func TestHelperDown(t *testing.T) {
	bin, broker := harness.Build(t), startBroker(t)
	down := filepath.Join(t.TempDir(), "down")
	script := harness.Script(t, fmt.Sprintf("#!/bin/sh\n[ -e %s ] && exit 9\nexec %s\n", down, bin.SiteHelper))
	daemon := startDaemon(t, bin, broker, map[string]any{
		"helper": map[string]any{"plugin": script, "config": map[string]any{"configuration": harness.IssuerConfiguration(broker)}},
	})
	harness.Eventually(t, limit, "readiness", func() error { return ready(daemon) })

	write(t, down, "")
	for _, id := range daemon.Descendants() {
		if strings.Contains(id.Command(), "sitehelper") {
			if err := syscall.Kill(id.PID, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
	}
	harness.Eventually(t, limit, "end of readiness", func() error {
		if err := ready(daemon); err == nil {
			return errors.New("it is ready")
		}
		return nil
	})

	fleet := harness.StartFleet(t, broker, 3, simfleet.NodeOptions{})
	harness.Eventually(t, limit, "three nodes that wait", func() error {
		return daemon.ExpectMetric("choria_provisioner_waiting_nodes", 3)
	})
	harness.Eventually(t, limit, "three passes without a helper", func() error {
		return daemon.ExpectMetric("choria_provisioner_deferred_total", 3)
	})
	if err := daemon.ExpectMetric("choria_provisioner_waiting_nodes", 3); err != nil {
		t.Error(err)
	}
	if calls := fleet.Counts().Calls; len(calls) > 0 {
		t.Errorf("nodes were called with nobody to decide on them: %v", calls)
	}
	if err := daemon.ExpectMetric("choria_provisioner_provision_errors", 0); err != nil {
		t.Error(err)
	}
}

// ready is an error unless /readyz says yes.
func ready(daemon *harness.Daemon) error {
	client := http.Client{Timeout: 2 * time.Second}
	response, err := client.Get(daemon.Monitor + "/readyz")
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}

	return nil
}

// The process answers that it lives while its helper still starts.
func TestHealthDuringAStart(t *testing.T) {
	bin, broker := harness.Build(t), startBroker(t)
	daemon := startDaemon(t, bin, broker, map[string]any{
		"helper": map[string]any{"plugin": harness.Script(t, "#!/bin/sh\nexec sleep 600\n"), "start_timeout": "60s"},
	})
	client := http.Client{Timeout: 2 * time.Second}
	harness.Eventually(t, 20*time.Second, "health", func() error {
		response, err := client.Get(daemon.Monitor + "/healthz")
		if err != nil {
			return err
		}
		return response.Body.Close()
	})
	if err := ready(daemon); err == nil {
		t.Error("it is ready without a helper")
	}
}
