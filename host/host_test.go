package host

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/choria-io/go-choria/choria"
	"github.com/choria-io/tokens"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/choria-provisioner/provisioner/helper"
	"github.com/choria-provisioner/provisioner/helper/helperv1"
)

// The calls of every feature set, each exactly once and in order.
func TestSequence(t *testing.T) {
	for _, tc := range []struct {
		name     string
		features Features
		calls    []string
	}{
		{"none", Features{}, []string{ActionInventory, ActionConfigure, ActionRestart}},
		{"jwt", Features{JWT: true}, []string{ActionJWT, ActionInventory, ActionConfigure, ActionRestart}},
		{"ed25519", Features{JWT: true, ED25519: true}, []string{ActionJWT, ActionGen25519, ActionInventory, ActionConfigure, ActionRestart}},
		{"pki", Features{PKI: true}, []string{ActionInventory, ActionGenCSR, ActionConfigure, ActionRestart}},
		{"pki and jwt", Features{PKI: true, JWT: true}, []string{ActionJWT, ActionInventory, ActionGenCSR, ActionConfigure, ActionRestart}},
		{"upgrades", Features{Upgrades: true}, []string{ActionInventory, ActionConfigure, ActionRestart}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newSetup(t, tc.features)
			outcome, err := s.provision(t.Context())
			must(t, err)
			if outcome.Result != Provisioned || outcome.Version != "0.30.2" {
				t.Errorf("outcome %+v", outcome)
			}
			if got := s.caller.actions(); !slices.Equal(got, tc.calls) {
				t.Errorf("calls %v, want %v", got, tc.calls)
			}
			for _, call := range s.caller.calls {
				if call.Token != "s3cret" {
					t.Errorf("%s was sent without the provision token", call.Action)
				}
			}

			node := s.helper.asked[0].Node
			if (node.Csr != nil) != tc.features.PKI || (node.Ed25519 != nil) != tc.features.ED25519 || (len(node.ProvisioningClaimsJson) > 0) != tc.features.JWT {
				t.Errorf("the helper was given %v for features %+v", node, tc.features)
			}
			if node.Identity != testIdentity || node.Version != "0.30.2" || !node.Upgradable || string(node.FactsJson) != `{"site":"ldn1"}` {
				t.Errorf("the helper was given %v", node)
			}
		})
	}
}

func TestServerJWT(t *testing.T) {
	s := newSetup(t, Features{JWT: true, ED25519: true})
	_, err := s.provision(t.Context())
	must(t, err)

	key, err := hex.DecodeString(s.cfg.JWTVerifyCert) // the one issuer of this test
	must(t, err)
	claims, err := tokens.ParseServerToken(s.caller.last(ActionConfigure).Configure.ServerJWT, ed25519.PublicKey(key))
	must(t, err)
	if claims.ChoriaIdentity != testIdentity || !slices.Equal(claims.Collectives, []string{"mcollective"}) ||
		claims.OrganizationUnit != "choria" || claims.Issuer != "Choria Provisioner" ||
		claims.PublicKey != hex.EncodeToString(s.node.seed.Public().(ed25519.PublicKey)) {
		t.Errorf("claims %+v", claims)
	}
	if left := time.Until(claims.ExpiresAt.Time); left < 59*time.Minute || left > time.Hour {
		t.Errorf("valid for %v, want server_jwt_validity", left)
	}
}

func TestServerJWTClaims(t *testing.T) {
	in10h := time.Now().Add(10 * time.Hour).Unix()
	for _, tc := range []struct {
		name string
		edit func(*helperv1.Configure)
		// want reads what is wrong with the claims.
		want func(*tokens.ServerClaims) bool
		err  string
	}{
		{
			name: "collectives of the configuration",
			edit: func(c *helperv1.Configure) { c.Configuration["collectives"] = "ldn, par" },
			want: func(c *tokens.ServerClaims) bool { return slices.Equal(c.Collectives, []string{"ldn", "par"}) },
		},
		{
			name: "provider choria",
			edit: func(c *helperv1.Configure) { c.Configuration["plugin.security.provider"] = "choria" },
			want: func(c *tokens.ServerClaims) bool { return slices.Equal(c.Collectives, []string{"choria"}) },
		},
		{
			name: "all of the helper's claims",
			edit: func(c *helperv1.Configure) {
				c.ServerClaims = &helperv1.ServerClaims{ExpiresAt: in10h, Ou: "acme", Collectives: []string{"a"}, PubSubjects: []string{"x.y"}, PermissionsJson: []byte(`{"streams":true,"service_host":true}`)}
			},
			want: func(c *tokens.ServerClaims) bool {
				left := time.Until(c.ExpiresAt.Time)
				return left > 9*time.Hour && left <= 10*time.Hour && c.OrganizationUnit == "acme" && slices.Equal(c.Collectives, []string{"a"}) &&
					slices.Equal(c.AdditionalPublishSubjects, []string{"x.y"}) && c.Permissions.Streams && c.Permissions.ServiceHost && !c.Permissions.Submission
			},
		},
		{
			name: "expired claims",
			edit: func(c *helperv1.Configure) { c.ServerClaims = &helperv1.ServerClaims{ExpiresAt: 1700000000} },
			err:  "could not sign the server JWT: the helper's server claims have expired: exp is 2023-11-14T22:13:20Z",
		},
		{
			name: "unreadable permissions",
			edit: func(c *helperv1.Configure) {
				c.ServerClaims = &helperv1.ServerClaims{PermissionsJson: []byte(`{"streams":"yes"}`)}
			},
			err: "the helper's answer is refused: server_claims: permissions_json is no JSON object of booleans",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newSetup(t, Features{JWT: true, ED25519: true})
			s.helper.configure = configureWith(tc.edit)
			_, err := s.provision(t.Context())
			if tc.err != "" {
				if err == nil || err.Error() != tc.err {
					t.Fatalf("error %v, want %q", err, tc.err)
				}
				if slices.Contains(s.caller.actions(), ActionConfigure) {
					t.Error("configure was sent all the same")
				}
				return
			}
			must(t, err)
			claims, err := tokens.ParseServerTokenUnverified(s.caller.last(ActionConfigure).Configure.ServerJWT)
			must(t, err)
			if !tc.want(claims) {
				t.Errorf("claims %+v", claims)
			}
		})
	}
}

// With a signing token the server JWT verifies against the organization issuer,
// and a token that cannot sign servers is named.
func TestServerJWTTrustChain(t *testing.T) {
	orgPub, orgKey, err := ed25519.GenerateKey(rand.Reader)
	must(t, err)
	signerPub, signerKey, err := ed25519.GenerateKey(rand.Reader)
	must(t, err)
	signer := func(t *testing.T, chained bool) string {
		claims, err := tokens.NewClientIDClaims("choria=signer", nil, "choria", nil, "", "", time.Hour, nil, signerPub)
		must(t, err)
		if chained {
			must(t, claims.AddOrgIssuerData(orgKey))
		}
		token, err := tokens.SignToken(claims, orgKey)
		must(t, err)
		file := filepath.Join(t.TempDir(), "signer.jwt")
		must(t, os.WriteFile(file, []byte(token+"\n"), 0o600))
		return file
	}
	seed := filepath.Join(t.TempDir(), "signer.seed")
	must(t, os.WriteFile(seed, []byte(hex.EncodeToString(signerKey.Seed())), 0o600))

	s := newSetup(t, Features{JWT: true, ED25519: true})
	s.cfg.JWTSigningKey, s.cfg.JWTSigningToken = seed, signer(t, true)
	_, err = s.provision(t.Context())
	must(t, err)
	claims, err := tokens.ParseServerToken(s.caller.last(ActionConfigure).Configure.ServerJWT, orgPub)
	if err != nil {
		t.Fatalf("the server JWT does not verify against the organization issuer: %v", err)
	}
	if claims.ChoriaIdentity != testIdentity {
		t.Errorf("claims %+v", claims)
	}

	s = newSetup(t, Features{JWT: true, ED25519: true})
	s.cfg.JWTSigningKey, s.cfg.JWTSigningToken = seed, signer(t, false)
	_, err = s.provision(t.Context())
	if err == nil || !strings.Contains(err.Error(), "jwt_signing_token: ") || !strings.Contains(err.Error(), "has no trust chain signature") {
		t.Errorf("error %v does not say that the signing token has no trust chain", err)
	}
}

// A private key of the helper arrives so that the node can decrypt it, in the
// one encoding that the agent writes.
func TestPrivateKey(t *testing.T) {
	key := testRSAKey(t)
	pkcs1 := string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}))
	der8, err := x509.MarshalPKCS8PrivateKey(key)
	must(t, err)
	pkcs8 := string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der8}))

	for name, sent := range map[string]string{"PKCS #1": pkcs1, "PKCS #8": pkcs8} {
		t.Run(name, func(t *testing.T) {
			s := newSetup(t, Features{PKI: true, JWT: true})
			s.helper.configure = configureWith(func(c *helperv1.Configure) {
				c.PrivateKeyPem, c.CertificatePem, c.CaPem, c.Ssldir = sent, "CERT", "CA", "/helper/ssl"
			})
			_, err := s.provision(t.Context())
			must(t, err)

			req := s.caller.last(ActionConfigure).Configure
			if req.SSLDir != "/etc/choria/ssl" || req.Certificate != "CERT" || req.CA != "CA" {
				t.Errorf("sent %+v; the node's own ssldir wins", req)
			}
			pub, err := hex.DecodeString(req.ECDHPublic)
			must(t, err)
			secret, err := choria.ECDHSharedSecret(s.node.ecdhPrivate, pub)
			must(t, err)
			block, _ := pem.Decode([]byte(req.Key))
			//lint:ignore SA1019 the agent decrypts nothing else
			der, err := x509.DecryptPEMBlock(block, secret)
			must(t, err)
			got, err := x509.ParsePKCS1PrivateKey(der)
			must(t, err)
			if !got.Equal(key) || block.Type != "RSA PRIVATE KEY" {
				t.Errorf("the node decrypts another key, in a block of type %q", block.Type)
			}
		})
	}

	s := newSetup(t, Features{PKI: true})
	s.helper.configure = configureWith(func(c *helperv1.Configure) { c.PrivateKeyPem = pkcs1 })
	if _, err := s.provision(t.Context()); err == nil || !strings.Contains(err.Error(), "the jwt feature must be on") {
		t.Errorf("error %v: a key cannot be sent without the jwt feature", err)
	}
}

// What the node would refuse, or take for more than it is, is found before
// anything is sent, with the key's name.
func TestRefusedAnswers(t *testing.T) {
	set := func(k, v string) func(*helperv1.Configure) {
		return func(c *helperv1.Configure) { c.Configuration[k] = v }
	}
	for _, tc := range []struct {
		name string
		edit func(*helperv1.Configure)
		err  string
	}{
		{"empty", func(c *helperv1.Configure) { c.Configuration = nil }, "it is empty"},
		{"line break in a value", set("a", "b\nplugin.choria.server.provision=1"), `key "a": a line break would add a line`},
		{"carriage return in a value", set("a", "b\rc"), `key "a": a line break`},
		{"line break in a key", set("a\nb", "c"), `key "a\nb": a line break`},
		{"equals sign in a key", set("a=b", "c"), `key "a=b": a key cannot hold an equals sign`},
		{"comment", set("#a", "c"), `key "#a": the node would read it as a comment`},
		{"line that ends the node's reading", set("a", strings.Repeat("x", 65534)), `key "a": its line would have 65536 bytes`},
		{"empty key", set(" ", "c"), "there is an empty key"},
		{"provisioning left on", set("plugin.choria.server.provision", "true"), `key "plugin.choria.server.provision": "true" leaves provisioning on`},
		{"provisioning left on, padded", set(" plugin.choria.server.provision", "Y"), "leaves provisioning on"},
		{"action policy without suffix", func(c *helperv1.Configure) { c.ActionPolicies = map[string]string{"rpcutil": "x"} }, `action_policies: "rpcutil" must end in .policy`},
		{"opa policy without suffix", func(c *helperv1.Configure) { c.OpaPolicies = map[string]string{"main.policy": "x"} }, `opa_policies: "main.policy" must end in .rego`},
		{"policy outside its folder", func(c *helperv1.Configure) { c.OpaPolicies = map[string]string{"../x.rego": "x"} }, "must be a file name without a folder"},
		{"all of them at once", func(c *helperv1.Configure) { c.Configuration["a"] = "\n"; c.Configuration["b"] = "\n" }, "key \"a\": a line break would add a line to the node's configuration\nconfiguration: key \"b\""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newSetup(t, Features{})
			s.helper.configure = configureWith(tc.edit)
			_, err := s.provision(t.Context())
			if err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("error %v, want %q in it", err, tc.err)
			}
			if got := s.caller.actions(); !slices.Equal(got, []string{ActionInventory}) {
				t.Errorf("calls %v, nothing may be sent", got)
			}
		})
	}
}

func TestHelperAnswers(t *testing.T) {
	t.Run("defer", func(t *testing.T) {
		s := newSetup(t, Features{})
		s.helper.configure = func(*helperv1.ConfigureNodeRequest) (*helperv1.ConfigureNodeResponse, error) {
			return &helperv1.ConfigureNodeResponse{Decision: &helperv1.ConfigureNodeResponse_Defer{Defer: &helperv1.Defer{Reason: "no rack yet", RetryAfter: durationpb.New(90 * time.Second)}}}, nil
		}
		outcome, err := s.provision(t.Context())
		must(t, err)
		if outcome.Result != Deferred || outcome.Reason != "no rack yet" || outcome.RetryAfter != 90*time.Second {
			t.Errorf("outcome %+v", outcome)
		}
		if got := s.caller.actions(); !slices.Equal(got, []string{ActionInventory}) {
			t.Errorf("calls %v", got)
		}
	})

	shutdown := func(*helperv1.ConfigureNodeRequest) (*helperv1.ConfigureNodeResponse, error) {
		return &helperv1.ConfigureNodeResponse{Decision: &helperv1.ConfigureNodeResponse_Shutdown{Shutdown: &helperv1.Shutdown{Reason: "decommissioned"}}}, nil
	}
	t.Run("shutdown", func(t *testing.T) {
		s := newSetup(t, Features{})
		s.helper.configure = shutdown
		outcome, err := s.provision(t.Context())
		must(t, err)
		if got := s.caller.actions(); outcome.Result != Shutdown || !slices.Equal(got, []string{ActionInventory, ActionShutdown}) {
			t.Errorf("outcome %+v, calls %v", outcome, got)
		}
	})
	t.Run("shutdown on an old agent", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSetup(t, Features{})
			s.helper.configure = shutdown
			s.node.replies[ActionShutdown] = func(context.Context, int) ([]Reply, error) {
				return refuse(2, "Unknown action shutdown for agent choria_provision"), nil
			}
			outcome, err := s.provision(t.Context())
			must(t, err)
			if outcome.Result != Shutdown || s.node.counts[ActionShutdown] != 3 {
				t.Errorf("outcome %+v after %d tries", outcome, s.node.counts[ActionShutdown])
			}
			if got := sample(t, s.cfg.Metrics, rpcErrors, ActionShutdown); got != 0 {
				t.Errorf("rpc_errors is %v, the warning is no error", got)
			}
			if !strings.Contains(s.log.String(), "Could not shut the node's server down") {
				t.Error("nobody was warned")
			}
		})
	})

	for code, unavailable := range map[codes.Code]bool{
		codes.Unavailable: true, codes.ResourceExhausted: true, codes.Aborted: true,
		codes.Internal: false, codes.InvalidArgument: false, codes.DeadlineExceeded: false, codes.PermissionDenied: false,
	} {
		t.Run(code.String(), func(t *testing.T) {
			s := newSetup(t, Features{})
			s.helper.configure = func(*helperv1.ConfigureNodeRequest) (*helperv1.ConfigureNodeResponse, error) {
				return nil, status.Error(code, "the CA is down")
			}
			_, err := s.provision(t.Context())
			if err == nil || errors.Is(err, ErrHelperUnavailable) != unavailable || !strings.Contains(err.Error(), "the CA is down") {
				t.Errorf("error %v", err)
			}
		})
	}
}

// A plugin never sees the provision token; the exec adapter gets the claims as
// the node sent them.
func TestClaimsForTheHelper(t *testing.T) {
	s := newSetup(t, Features{JWT: true})
	_, err := s.provision(t.Context())
	must(t, err)
	node := s.helper.asked[0].Node
	claims := map[string]any{}
	must(t, json.Unmarshal(node.ProvisioningClaimsJson, &claims))
	if claims["cht"] != nil || strings.Contains(node.String(), "s3cret") || len(node.RawClaimsJson) > 0 || claims["purpose"] != "choria_provisioning" {
		t.Errorf("a plugin was given %v", node)
	}

	s = newSetup(t, Features{JWT: true})
	s.helper.capabilities = []helperv1.Capability{helperv1.Capability_CAPABILITY_RAW_CLAIMS}
	_, err = s.provision(t.Context())
	must(t, err)
	claims = map[string]any{}
	must(t, json.Unmarshal(s.helper.asked[0].Node.RawClaimsJson, &claims))
	if claims["cht"] != "s3cret" {
		t.Errorf("the exec adapter was given %v", claims)
	}
}

// What a token holds of secrets goes to no plugin, however its name is written.
func TestClaimsOf(t *testing.T) {
	claims := `{"cht":"a","CHT":"a","chusr":"b","ChUsr":"b","chpwd":"c","chPWD":"c","purpose":"p","extensions":{"cht":"kept"}}`
	token := "e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".x"
	raw, stripped, err := claimsOf(token)
	must(t, err)
	if string(raw) != claims {
		t.Errorf("the claims came out as %s", raw)
	}
	if want := `{"extensions":{"cht":"kept"},"purpose":"p"}`; string(stripped) != want {
		t.Errorf("stripped to %s, want %s", stripped, want)
	}
}

// A node that provisions by default must be told not to: without the key, or
// with a line without a value, it would restart into provisioning mode for ever.
func TestProvisioningByDefault(t *testing.T) {
	without := configureWith(func(c *helperv1.Configure) { delete(c.Configuration, helper.ProvisionKey) })
	empty := configureWith(func(c *helperv1.Configure) { c.Configuration[helper.ProvisionKey] = " " })
	for _, configure := range []func(*helperv1.ConfigureNodeRequest) (*helperv1.ConfigureNodeResponse, error){without, empty} {
		s := newSetup(t, Features{JWT: true})
		s.helper.configure = configure
		_, err := s.provision(t.Context())
		if err == nil || !strings.Contains(err.Error(), `key "plugin.choria.server.provision" is missing or empty`) {
			t.Errorf("error %v", err)
		}
		if s.node.counts[ActionConfigure] != 0 {
			t.Error("the node was configured")
		}
	}

	s := newSetup(t, Features{}) // nobody knows
	s.helper.configure = without
	_, err := s.provision(t.Context())
	must(t, err)
}

// A server whose configuration names it otherwise than its token is lost.
func TestConfigurationNamesTheNode(t *testing.T) {
	named := func(identity string) func(*helperv1.ConfigureNodeRequest) (*helperv1.ConfigureNodeResponse, error) {
		return configureWith(func(c *helperv1.Configure) { c.Configuration["identity"] = identity })
	}
	for _, tc := range []struct {
		why      string
		features Features
		identity string
		err      string
	}{
		{"its own name", Features{ED25519: true, JWT: true}, testIdentity, ""},
		{"another", Features{ED25519: true, JWT: true}, "N1.example.net", `configuration: key "identity": "N1.example.net" is not the name in the node's server token`},
		{"another without a token", Features{}, "n2.example.net", ""},
	} {
		t.Run(tc.why, func(t *testing.T) {
			s := newSetup(t, tc.features)
			s.helper.configure = named(tc.identity)
			_, err := s.provision(t.Context())
			if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("error %v, want %q", err, tc.err)
			}
			if (s.node.counts[ActionConfigure] == 0) != (tc.err != "") {
				t.Errorf("configured %d times", s.node.counts[ActionConfigure])
			}
		})
	}
}

func TestRefusedNodes(t *testing.T) {
	otherPub, otherKey, err := ed25519.GenerateKey(rand.Reader)
	must(t, err)
	for _, tc := range []struct {
		name   string
		spoil  func(t *testing.T, n *fakeNode)
		action string
		err    string
	}{
		{
			name: "JWT of another issuer", action: ActionJWT, err: "the node's provisioning JWT is refused: ",
			spoil: func(t *testing.T, n *fakeNode) {
				claims, err := tokens.NewProvisioningClaims(true, true, "", "", "", []string{"x:1"}, "", "", "", "", "", time.Hour)
				must(t, err)
				n.provisioningJWT, err = tokens.SignToken(claims, otherKey)
				must(t, err)
			},
		},
		{
			name: "no JWT", action: ActionJWT, err: "the node sent no provisioning JWT",
			spoil: func(_ *testing.T, n *fakeNode) { n.provisioningJWT = "" },
		},
		{
			name: "short ECDH key", action: ActionJWT, err: "the ECDH public key has 4 characters",
			spoil: func(_ *testing.T, n *fakeNode) { n.ecdhPublic = []byte{1, 2} },
		},
		{
			name: "signature of another key", action: ActionGen25519, err: "the signature of the nonce is not that of the public key",
			spoil: func(_ *testing.T, n *fakeNode) {
				n.replies[ActionGen25519] = func(context.Context, int) ([]Reply, error) {
					return ok(map[string]any{"public_key": hex.EncodeToString(otherPub), "signature": strings.Repeat("00", 64), "directory": "/etc"}), nil
				}
			},
		},
		{
			name: "public key of another type", action: ActionGen25519, err: "invalid reply: ",
			spoil: func(_ *testing.T, n *fakeNode) {
				n.replies[ActionGen25519] = func(context.Context, int) ([]Reply, error) { return ok(map[string]any{"public_key": 5}), nil }
			},
		},
		{
			name: "inventory that is a list", action: ActionInventory, err: "invalid inventory: ",
			spoil: func(_ *testing.T, n *fakeNode) {
				n.replies[ActionInventory] = func(context.Context, int) ([]Reply, error) {
					return []Reply{{Sender: testIdentity, Data: []byte(`[]`)}}, nil
				}
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newSetup(t, Features{JWT: true, ED25519: true})
			tc.spoil(t, s.node)
			_, err := s.provision(t.Context())
			if err == nil || !strings.HasPrefix(err.Error(), tc.action+" failed: "+tc.err) {
				t.Errorf("error %v, want %q", err, tc.action+" failed: "+tc.err)
			}
			if got := s.node.counts[tc.action]; got != 1 {
				t.Errorf("asked %d times, the same answer would come again", got)
			}
			if s.node.counts[ActionConfigure] != 0 {
				t.Error("the node was configured")
			}
		})
	}
}

// Parsers quote what they could not read, and a version is any text: neither may
// put all that a node sends into the log, at every pass.
func TestWhatANodeSendsIsSaidInBounds(t *testing.T) {
	const limit = 2 * maxShown
	long := strings.Repeat("9", 200_000)

	s := newSetup(t, Features{JWT: true})
	encode := base64.RawURLEncoding.EncodeToString
	s.node.provisioningJWT = encode([]byte(`{"alg":"EdDSA"}`)) + "." + encode([]byte(`{"exp":`+long+`}`)) + ".AA"
	_, err := s.provision(t.Context())
	if err == nil || len(err.Error()) > limit || !strings.Contains(err.Error(), "provisioning JWT is refused") {
		t.Errorf("an error of %d bytes", len(err.Error()))
	}

	s = newSetup(t, Features{})
	s.node.inventory["version"] = long
	outcome, err := s.provision(t.Context())
	must(t, err)
	if len(outcome.Version) > limit {
		t.Errorf("a version of %d bytes", len(outcome.Version))
	}
}

func TestReadSigningKey(t *testing.T) {
	key := testRSAKey(t)
	file := filepath.Join(t.TempDir(), "key.pem")
	must(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}), 0o600))
	got, err := readSigningKey(file)
	must(t, err)
	if !got.(*rsa.PrivateKey).Equal(key) {
		t.Error("read another key")
	}

	must(t, os.WriteFile(file, []byte("hello"), 0o600))
	if _, err := readSigningKey(file); err == nil || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), "ed25519 seed has 5 characters") {
		t.Errorf("error %v does not say what is wrong and where", err)
	}
	if _, err := readSigningKey(file + ".gone"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v", err)
	}
}
