package simfleet

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"

	"github.com/choria-io/go-choria/inter"
	"github.com/choria-io/go-choria/protocol"
	v1 "github.com/choria-io/go-choria/protocol/v1"
	v2 "github.com/choria-io/go-choria/protocol/v2"
)

// nodeSecurity is the security of a node in provisioning mode: it verifies and
// signs nothing. go-choria's providers want keys and read the global that says
// whether the process is secure, which belongs to the provisioner under test.
// Only what encoding a reply needs is there; the rest panics.
type nodeSecurity struct {
	inter.SecurityProvider

	technology inter.SecurityTechnology
}

func newNodeSecurity(mode Mode) *nodeSecurity {
	if mode == Insecure {
		return &nodeSecurity{technology: inter.SecurityTechnologyX509}
	}

	return &nodeSecurity{technology: inter.SecurityTechnologyED25519JWT}
}

func (s *nodeSecurity) BackingTechnology() inter.SecurityTechnology { return s.technology }
func (s *nodeSecurity) ShouldSignReplies() bool                     { return false }

func (s *nodeSecurity) ChecksumBytes(data []byte) []byte {
	sum := sha256.Sum256(data)

	return sum[:]
}

// request is a message as a node sees it.
type request struct {
	protocol.Request

	// replyTo is the subject an answer goes to.
	replyTo string
	// payload is the body, without the base64 that some clients wrap it in.
	payload []byte
}

// decode reads a message. Those of the other mode's protocol are errors, as
// are those that are older than they may be. go-choria's constructors check
// each layer against a JSON schema, which takes most of two milliseconds; its
// clients have done that already.
func (s *nodeSecurity) decode(data []byte) (*request, error) {
	var (
		transport protocol.TransportMessage
		req       protocol.Request
		err       error
	)

	switch version := protocol.VersionFromJSON(data); {
	case version == protocol.TransportV1 && s.technology == inter.SecurityTechnologyX509:
		outer := &v1.TransportMessage{Headers: &v1.TransportHeaders{}}
		secure := &v1.SecureRequest{}
		inner := &v1.Request{Envelope: &v1.RequestEnvelope{}}
		err = unpack(
			layer{func() []byte { return data }, outer},
			layer{func() []byte { return outer.Data }, secure},
			layer{secure.Message, inner},
		)
		transport, req = outer, inner
	case version == protocol.TransportV2 && s.technology == inter.SecurityTechnologyED25519JWT:
		outer := &v2.TransportMessage{Headers: &v2.TransportHeaders{}}
		secure := &v2.SecureRequest{}
		inner := &v2.Request{}
		err = unpack(
			layer{func() []byte { return data }, outer},
			layer{func() []byte { return outer.Data }, secure},
			layer{secure.Message, inner},
		)
		transport, req = outer, inner
	default:
		err = fmt.Errorf("a node of this network does not speak protocol %s", version)
	}
	if err != nil {
		return nil, err
	}

	age := time.Since(req.Time())
	if ttl := time.Duration(req.TTL()) * time.Second; age > ttl || age < -ttl {
		return nil, fmt.Errorf("request %s was made %v ago, its TTL is %v", req.RequestID(), age, ttl)
	}

	payload, err := base64.StdEncoding.DecodeString(string(req.Message()))
	if err != nil {
		payload = req.Message()
	}

	return &request{Request: req, replyTo: transport.ReplyTo(), payload: payload}, nil
}

// layer is one of the documents that a message wraps in each other.
type layer struct {
	data func() []byte
	into any
}

func unpack(layers ...layer) error {
	for _, l := range layers {
		if err := json.Unmarshal(l.data(), l.into); err != nil {
			return err
		}
	}

	return nil
}

// encode makes the message that answers req as identity with body. The reply
// is built by hand, since go-choria's constructors first encode and validate
// the whole request again.
func (s *nodeSecurity) encode(req *request, identity, server string, body []byte) ([]byte, error) {
	var (
		secure    protocol.SecureReply
		transport protocol.TransportMessage
		err       error
	)

	switch req.Version() {
	case protocol.RequestV1:
		reply := &v1.Reply{Protocol: protocol.ReplyV1, MessageBody: string(body), Envelope: &v1.ReplyEnvelope{
			RequestID: req.RequestID(),
			SenderID:  identity,
			Agent:     req.Agent(),
			Time:      time.Now().Unix(),
		}}
		if secure, err = v1.NewSecureReply(reply, s); err != nil {
			return nil, err
		}
		transport, err = v1.NewTransportMessage(identity)
	default:
		reply := &v2.Reply{
			Protocol:     protocol.ReplyV2,
			MessageBody:  body,
			Request:      req.RequestID(),
			Sender:       identity,
			SendingAgent: req.Agent(),
			TimeStamp:    time.Now().UnixNano(),
		}
		if secure, err = v2.NewSecureReply(reply, s); err != nil {
			return nil, err
		}
		transport, err = v2.NewTransportMessage(identity)
	}
	if err != nil {
		return nil, err
	}

	if err = transport.SetReplyData(secure); err != nil {
		return nil, err
	}
	transport.RecordNetworkHop(server, identity, server)

	return transport.JSON()
}
