// Package issuertest tests simulated networks in issuer mode.
package issuertest

import (
	"os"
	"testing"

	"github.com/choria-provisioner/provisioner/internal/simfleet"
	"github.com/choria-provisioner/provisioner/internal/simfleet/suite"
)

func TestMain(m *testing.M) {
	// go-choria's clients do not start without it
	if _, ok := os.LookupEnv("USER"); !ok {
		os.Setenv("USER", "root")
	}
	os.Exit(m.Run())
}

func TestBroker(t *testing.T) {
	suite.TestBroker(t, simfleet.Issuer)
}

func TestFleet(t *testing.T) {
	suite.TestFleet(t, simfleet.Issuer)
}
