//go:build linux

package ownversions

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/choria-provisioner/provisioner/e2e/harness"
	"github.com/choria-provisioner/provisioner/internal/simfleet"
)

// insecure are the keys of a daemon without TLS.
func insecure(bin programs, broker *simfleet.Broker) map[string]any {
	return map[string]any{
		"choria_insecure": true,
		"helper":          harness.SiteHelper(bin.Binaries, harness.InsecureConfiguration(broker)),
	}
}

// The life of an installation: each version that works takes over from the one
// before, each that does not is left for it, once.
func TestVersionsComeAndGo(t *testing.T) {
	bin, broker := build(t), harness.StartBroker(t, simfleet.Insecure)
	m := newMachine(t, bin, broker, "provisioner.example.net", insecure(bin, broker))
	m.env["TRIAL_BOUND"] = "15"
	m.deliver("v1", bin.first)
	m.start()
	s := m.runs("v1")
	m.want("build", s.Build, "1.0.0")

	m.deliver("v2", bin.second)
	s = m.runs("v2")
	m.want("build", s.Build, "2.0.0")

	m.deliverScript("v3", "exit 7")
	harness.Eventually(t, limit, "v3 is left", func() error {
		if got := fmt.Sprint(m.verdicts()); got != "[v3 rolled-back v2]" {
			return fmt.Errorf("verdicts %s", got)
		}
		return nil
	})
	s = m.runs("v2")
	m.want("verdicts in the status", len(s.Version.Verdicts), 1)

	// It works, but reports to nobody.
	m.deliverScript("v4", "PROVISIONER_LAUNCH_STATE_DIR="+t.TempDir()+" exec "+filepath.Join(filepath.Dir(bin.second), "provisioner-2.0.0")+` "$@"`)
	harness.Eventually(t, limit, "v4 is left", func() error {
		if got := fmt.Sprint(m.verdicts()); got != "[v3 rolled-back v2 v4 rolled-back v2]" {
			return fmt.Errorf("verdicts %s", got)
		}
		return nil
	})
	m.runs("v2")

	m.deliver("v5", bin.second)
	s = m.runs("v5")
	m.want("verdicts in the status", len(s.Version.Verdicts), 2)
	m.stop()
}
