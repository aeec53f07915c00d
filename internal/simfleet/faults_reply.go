package simfleet

import (
	"strings"

	"github.com/choria-io/go-choria/providers/agent/mcorpc"
)

// replyFaults are in how a node answers, whatever the action.
func replyFaults() []Fault {
	const ok = `{"statuscode":0,"statusmsg":"OK","data":`

	return []Fault{
		{Name: "reply-junk", About: "an answer that is no message", Feature: "jwt", Apply: always(actionJWT, Override{Raw: []byte("junk")})},
		{Name: "reply-junk-body", About: "a message that holds no answer", Feature: "jwt", Apply: always(actionJWT, Override{Body: []byte("junk")})},
		{Name: "reply-nulls", About: "a message with null where its parts should be", Feature: "jwt", Apply: always(actionJWT, Override{
			// "bnVsbA==" is null
			Raw: []byte(`{"protocol":"io.choria.protocol.v2.transport","data":"bnVsbA==","headers":null}`),
		})},
		{Name: "reply-empty-body", About: "a message that holds nothing", Feature: "jwt", Apply: always(actionJWT, Override{Body: []byte{}})},
		{Name: "reply-list", About: "an answer whose data is a list", Feature: "jwt", Apply: always(actionJWT, Override{Body: []byte(ok + `[]}`)})},
		{Name: "reply-number", About: "an answer with a number for a token", Feature: "jwt", Apply: always(actionJWT, Override{Body: []byte(ok + `{"jwt":1,"ecdh_public":[]}}`)})},
		{Name: "reply-unknown-fields", About: "an answer of a newer agent, with more in it", Apply: always(actionConfigure, Override{
			Body: []byte(`{"statuscode":0,"statusmsg":"OK","more":{"a":1},"data":{"message":"done","more":[1]}}`),
		})},
		{Name: "reply-twice", About: "an answer to the first call that comes twice", Feature: "jwt", Apply: always(actionJWT, Override{Extra: 1})},
		{Name: "reply-often", About: "an answer to the first call that comes 1,000 times", Feature: "jwt", Apply: always(actionJWT, Override{Extra: 999})},
		{Name: "reply-twice-late", About: "an answer to the last call that comes twice", Apply: always(actionRestart, Override{Extra: 1})},
		{Name: "reply-from-another", About: "an answer in another's name", Feature: "jwt", Apply: always(actionJWT, Override{Sender: "somebody.example.net"})},
		{Name: "reply-mute-error", About: "a refusal that gives no reason", Feature: "jwt", Apply: always(actionJWT, Override{Status: mcorpc.Aborted})},
		{Name: "reply-strange-status", About: "a status that does not exist", Feature: "jwt", Apply: always(actionJWT, Override{Status: 200, Message: "well"})},
		{Name: "reply-long-error", About: "a refusal of 200,000 characters", Feature: "jwt", Apply: always(actionJWT, Override{
			Status: mcorpc.Aborted, Message: strings.Repeat("no ", 200_000/3),
		})},
		{Name: "reply-forged-log", About: "a refusal with what looks like a line of the log", Feature: "jwt", Apply: always(actionJWT, Override{
			Status: mcorpc.Aborted, Message: "no\n{\"level\":\"fatal\",\"msg\":\"forged\"}\n\x1b[2J",
		})},
		{Name: "unknown-action", About: "an agent that lacks an action", Feature: "jwt", Apply: always(actionJWT, Override{
			Status: mcorpc.UnknownAction, Message: "Unknown action jwt for agent choria_provision",
		})},
		{Name: "wrong-token", About: "a node that demands another provisioning token", Apply: func(_ *Broker, o *NodeOptions) error {
			o.Token = "another"

			return nil
		}},
		{Name: "locked", About: "a node that another provisioner holds for ever", Apply: func(_ *Broker, o *NodeOptions) error {
			o.Intercept = func(_ *Node, c Call) Override { return Override{Locked: strings.HasPrefix(c.Action, provisionAgent)} }

			return nil
		}},
	}
}
