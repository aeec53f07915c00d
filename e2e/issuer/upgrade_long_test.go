//go:build linux && long

package issuer

import (
	"testing"
	"time"

	"github.com/choria-provisioner/provisioner/e2e/harness"
	"github.com/choria-provisioner/provisioner/internal/simfleet"
	"github.com/choria-provisioner/provisioner/version/ledger"
)

// Without a connection to the main account a version is presumed good when its
// trial has passed.
func TestUpgradeUnseen(t *testing.T) {
	bin := harness.Build(t)
	broker := harness.StartBroker(t, simfleet.Issuer)
	s := startUpgrade(t, bin, broker, 30*time.Second, nil)

	s.expectKnownGood(t, ledger.Presumed)
}
