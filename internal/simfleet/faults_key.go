package simfleet

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"strings"

	"github.com/choria-io/go-choria/providers/agent/mcorpc/golang/provision"
)

// keyReply is what gen25519 answers, and how to sign for it.
type keyReply struct {
	provision.ED25519Reply

	nonce   string
	private ed25519.PrivateKey
}

// sign is the signature of a nonce in hex.
func (r *keyReply) sign(nonce string) string {
	return hex.EncodeToString(ed25519.Sign(r.private, []byte(nonce)))
}

// keyFaults are in what gen25519 answers.
func keyFaults() []Fault {
	return []Fault{
		keyFault("key-empty", "no public key", func(r *keyReply) { r.PublicKey = "" }),
		keyFault("key-short", "a public key of 31 bytes, on which a careless check panics", func(r *keyReply) { r.PublicKey = r.PublicKey[:62] }),
		keyFault("key-long", "a public key of 33 bytes", func(r *keyReply) { r.PublicKey += "00" }),
		keyFault("key-huge", "a public key of 100,000 bytes", func(r *keyReply) { r.PublicKey = strings.Repeat("01", 100_000) }),
		keyFault("key-not-hex", "a public key that is no hex", func(r *keyReply) { r.PublicKey = strings.Repeat("z", 64) }),
		keyFault("key-upper-case", "a public key in capitals, which is the same key", func(r *keyReply) { r.PublicKey = strings.ToUpper(r.PublicKey) }),
		// the neutral point as key and as commitment, and 0: the equation holds
		// whatever was signed
		keyFault("key-neutral", "a public key for which one signature fits every message", func(r *keyReply) {
			r.PublicKey = "01" + strings.Repeat("00", 31)
			r.Signature = r.PublicKey + strings.Repeat("00", 32)
		}),
		keyFault("key-no-directory", "no directory to find the seed in", func(r *keyReply) { r.Directory = "" }),
		keyFault("key-directory-newline", "a directory that would add a line to the configuration", func(r *keyReply) {
			r.Directory = "/etc/choria\nplugin.choria.server.provision=true\n#"
		}),
		keyFault("signature-empty", "no signature", func(r *keyReply) { r.Signature = "" }),
		keyFault("signature-short", "a signature of 63 bytes", func(r *keyReply) { r.Signature = r.Signature[:126] }),
		keyFault("signature-wrong", "a signature with its halves exchanged", func(r *keyReply) { r.Signature = r.Signature[64:] + r.Signature[:64] }),
		keyFault("signature-of-other-key", "a signature of another key", func(r *keyReply) {
			r.private = ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
			r.Signature = r.sign(r.nonce)
		}),
		keyFault("signature-replayed", "a signature of an earlier nonce", func(r *keyReply) { r.Signature = r.sign("yesterday's") }),
	}
}

func keyFault(name, about string, change func(*keyReply)) Fault {
	return Fault{Name: name, About: about, Feature: "ed25519", Apply: onCall(actionGen25519, func(n *Node, c Call) (Override, error) {
		var in provision.ED25519Request
		if err := json.Unmarshal(c.Data, &in); err != nil {
			return Override{}, err
		}
		public, private, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			return Override{}, err
		}

		r := &keyReply{nonce: in.Nonce, private: private}
		r.PublicKey, r.Directory, r.Signature = hex.EncodeToString(public), n.opts.Directory, r.sign(in.Nonce)
		change(r)

		return Override{Data: r.ED25519Reply}, nil
	})}
}
