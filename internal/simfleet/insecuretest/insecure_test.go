// Package insecuretest tests simulated networks in insecure mode.
package insecuretest

import (
	"os"
	"testing"

	"github.com/choria-io/go-choria/protocol"

	"github.com/choria-provisioner/provisioner/internal/simfleet"
	"github.com/choria-provisioner/provisioner/internal/simfleet/suite"
)

func TestMain(m *testing.M) {
	// what a provisioner with choria_insecure does to its whole process
	protocol.Secure = "false"
	os.Exit(m.Run())
}

func TestBroker(t *testing.T) {
	suite.TestBroker(t, simfleet.Insecure)
}

func TestFleet(t *testing.T) {
	suite.TestFleet(t, simfleet.Insecure)
}
