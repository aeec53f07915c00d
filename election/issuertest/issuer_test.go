// Package issuertest holds elections in the provisioning account of go-choria's
// broker. It is a test binary of its own because go-choria keeps the security
// mode in a global.
package issuertest

import (
	"os"
	"testing"

	"github.com/choria-provisioner/provisioner/election/internal/suite"
	"github.com/choria-provisioner/provisioner/internal/simfleet"
)

func TestMain(m *testing.M) {
	// go-choria's clients do not start without it.
	if os.Getenv("USER") == "" {
		os.Setenv("USER", "root")
	}
	os.Exit(m.Run())
}

func TestElection(t *testing.T) {
	t.Parallel()
	suite.Simulated(t, simfleet.Issuer).TestHandOver(t)
}

func TestElection_older(t *testing.T) {
	t.Parallel()
	suite.Simulated(t, simfleet.Issuer).TestOlder(t)
}
