//go:build linux

package upgrades

import (
	"testing"

	"github.com/choria-provisioner/provisioner/e2e/harness"
)

// All wait most of their time, and are run at once.
func TestSimulated(t *testing.T) {
	bin := harness.Build(t)

	for _, test := range []struct {
		name string
		run  func(*testing.T, harness.Binaries)
	}{
		{"fates", testFates},
		{"guards", testGuards},
		{"main account", testMainAccount},
		{"killed", testKilled},
		{"helper dies", testHelperDies},
		{"helper flaps", testHelperFlaps},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(t, bin)
		})
	}
}
