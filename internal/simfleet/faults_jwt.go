package simfleet

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"encoding/hex"
	"strings"
	"time"

	"github.com/choria-io/go-choria/choria"
	"github.com/choria-io/go-choria/providers/agent/mcorpc/golang/provision"
	"github.com/choria-io/tokens"
	"github.com/golang-jwt/jwt/v5"
)

// jwtFaults are in what jwt answers.
func jwtFaults() []Fault {
	// claimed is a token of the issuer with changed claims
	claimed := func(change func(*tokens.ProvisioningClaims)) func(*Broker) (string, error) {
		return func(b *Broker) (string, error) { return b.NewProvisioningJWT(change) }
	}
	// signed is a token with the right claims and another signature
	signed := func(method jwt.SigningMethod, key func(*Broker) (any, error)) func(*Broker) (string, error) {
		return func(b *Broker) (string, error) {
			claims, err := tokens.ParseProvisionTokenUnverified(b.provisioningRaw)
			if err != nil {
				return "", err
			}
			k, err := key(b)
			if err != nil {
				return "", err
			}

			return jwt.NewWithClaims(method, claims).SignedString(k)
		}
	}
	edited := func(edit func(token string) string) func(*Broker) (string, error) {
		return func(b *Broker) (string, error) { return edit(b.provisioningRaw), nil }
	}

	return []Fault{
		jwtFault("jwt-empty", "no token", edited(func(string) string { return "" })),
		jwtFault("jwt-junk", "a token that is none", edited(func(string) string { return "junk" })),
		jwtFault("jwt-huge", "a token of 200,000 characters", edited(func(string) string { return strings.Repeat("x.", 100_000) })),
		jwtFault("jwt-truncated", "a token without its end", edited(func(t string) string { return t[:len(t)-10] })),
		jwtFault("jwt-none", "a token of algorithm none", signed(jwt.SigningMethodNone, func(*Broker) (any, error) {
			return jwt.UnsafeAllowNoneSignatureType, nil
		})),
		jwtFault("jwt-hs256-with-public-key", "a token signed with the bytes of the public key as a shared secret", signed(jwt.SigningMethodHS256, func(b *Broker) (any, error) {
			return []byte(b.credentials.issuer.Public().(ed25519.PublicKey)), nil
		})),
		jwtFault("jwt-hs256-with-hex-key", "a token signed with the text of jwt_verify_cert as a shared secret", signed(jwt.SigningMethodHS256, func(b *Broker) (any, error) {
			return []byte(b.VerifyCert()), nil
		})),
		jwtFault("jwt-rsa", "a token signed with an RSA key", signed(jwt.SigningMethodRS256, func(*Broker) (any, error) {
			return rsa.GenerateKey(rand.Reader, 2048)
		})),
		jwtFault("jwt-other-issuer", "a token of another issuer", signed(jwt.SigningMethodEdDSA, func(*Broker) (any, error) {
			_, key, err := ed25519.GenerateKey(rand.Reader)

			return key, err
		})),
		jwtFault("jwt-server-purpose", "another node's server token", func(b *Broker) (string, error) {
			public, _, err := ed25519.GenerateKey(rand.Reader)
			if err != nil {
				return "", err
			}
			claims, err := tokens.NewServerClaims("other.example.net", []string{organization}, organization, nil, nil, public, "", validity)
			if err != nil {
				return "", err
			}

			return tokens.SignToken(claims, b.credentials.issuer)
		}),
		jwtFault("jwt-expired", "a token that has expired", claimed(func(c *tokens.ProvisioningClaims) {
			c.ExpiresAt = jwt.NewNumericDate(time.Now().Add(-time.Hour))
		})),
		jwtFault("jwt-not-yet-valid", "a token that is not valid yet, or a clock that is wrong", claimed(func(c *tokens.ProvisioningClaims) {
			c.NotBefore = jwt.NewNumericDate(time.Now().Add(time.Hour))
		})),

		ecdhFault("ecdh-empty", "no ECDH key", func(string) string { return "" }),
		ecdhFault("ecdh-short", "an ECDH key of 31 bytes", func(key string) string { return key[:62] }),
		ecdhFault("ecdh-not-hex", "an ECDH key that is no hex", func(key string) string { return strings.Repeat("z", len(key)) }),
	}
}

func jwtFault(name, about string, token func(*Broker) (string, error)) Fault {
	return jwtReplyFault(name, about, func(b *Broker, r *provision.JWTReply) (err error) {
		r.JWT, err = token(b)

		return err
	})
}

func ecdhFault(name, about string, edit func(key string) string) Fault {
	return jwtReplyFault(name, about, func(_ *Broker, r *provision.JWTReply) error {
		r.ECDHPublic = edit(r.ECDHPublic)

		return nil
	})
}

func jwtReplyFault(name, about string, change func(*Broker, *provision.JWTReply) error) Fault {
	return Fault{Name: name, About: about, Feature: "jwt", Apply: func(b *Broker, o *NodeOptions) error {
		_, public, err := choria.ECDHKeyPair()
		if err != nil {
			return err
		}
		r := provision.JWTReply{JWT: b.provisioningRaw, ECDHPublic: hex.EncodeToString(public)}
		if err = change(b, &r); err != nil {
			return err
		}

		return always(actionJWT, Override{Data: r})(b, o)
	}}
}
