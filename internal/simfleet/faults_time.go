package simfleet

import (
	"strings"
	"time"

	"github.com/choria-io/go-choria/providers/agent/mcorpc"
)

// timeFaults are those of nodes that take their time, or end before theirs.
func timeFaults() []Fault {
	faults := []Fault{
		{Name: "silent", About: "a node that answers discovery alone", Apply: func(_ *Broker, o *NodeOptions) error {
			o.Intercept = func(*Node, Call) Override { return Override{Ignore: true} }

			return nil
		}},
		{Name: "silent-gencsr", About: "a node that does not answer gencsr", Feature: "pki", Apply: always(actionGenCSR, Override{Ignore: true})},
		{Name: "silent-restart", About: "a node that does not answer restart, and does not", Apply: always(actionRestart, Override{Ignore: true})},
		{Name: "slow", About: "a node that takes 19 of the 20 seconds it has for its configuration", Apply: always(actionConfigure, Override{Delay: 19 * time.Second})},
		{Name: "too-slow", About: "a node that takes 21 of the 20 seconds it has to restart", Apply: always(actionRestart, Override{Delay: 21 * time.Second})},
		{Name: "lost-configure", About: "a node whose first answer to configure is lost, after it did", Apply: onCall(actionConfigure, func(_ *Node, c Call) (Override, error) {
			return Override{Lose: c.Attempt == 1}, nil
		})},
		{Name: "lost-restart", About: "a node whose answer to restart is lost, after it did", Apply: always(actionRestart, Override{Lose: true})},
		{Name: "flaky-inventory", About: "a node that refuses its inventory four times", Apply: onCall(actionInventory, func(_ *Node, c Call) (Override, error) {
			if c.Attempt <= 4 {
				return Override{Status: mcorpc.Aborted, Message: "not yet"}, nil
			}

			return Override{}, nil
		})},
		{Name: "failing-inventory", About: "a node that refuses its inventory always", Apply: always(actionInventory, Override{Status: mcorpc.Aborted, Message: "never"})},
	}
	for _, death := range []struct{ action, feature string }{
		{actionJWT, "jwt"}, {actionGen25519, "ed25519"}, {actionInventory, ""}, {actionGenCSR, "pki"}, {actionConfigure, ""},
	} {
		_, name, _ := strings.Cut(death.action, "#")
		faults = append(faults, Fault{
			Name:    "dies-after-" + name,
			About:   "a node that dies once it has answered " + name,
			Feature: death.feature,
			Apply: onCall(death.action, func(_ *Node, c Call) (Override, error) {
				return Override{Die: c.Attempt == 1}, nil
			}),
		})
	}

	return faults
}
