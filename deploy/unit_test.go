package deploy_test

import (
	"os"
	"strconv"
	"strings"
	"testing"
)

// The unit leaves the stopping to the launcher, and a halted one alone.
func TestUnit(t *testing.T) {
	text, err := os.ReadFile("choria-provisioner.service")
	if err != nil {
		t.Fatal(err)
	}
	settings := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			settings[name] = value
		}
	}
	const stopGrace = 20 // the launcher's default, in seconds
	if limit, err := strconv.Atoi(settings["TimeoutStopSec"]); err != nil || limit <= stopGrace {
		t.Errorf("TimeoutStopSec is %q, not more than STOP_GRACE", settings["TimeoutStopSec"])
	}
	for name, want := range map[string]string{"KillMode": "mixed", "Restart": "on-failure"} {
		if settings[name] != want {
			t.Errorf("%s is %q, not %s", name, settings[name], want)
		}
	}
}
