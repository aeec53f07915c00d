//go:build linux

package issuer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/choria-provisioner/provisioner/e2e/harness"
	"github.com/choria-provisioner/provisioner/internal/simfleet"
)

// One after the other, for some measure time.
func TestFaults(t *testing.T) {
	site := faultSite{bin: harness.Build(t), plugin: harness.BuildExample(t, "localca")}

	for _, test := range []struct {
		name string
		run  func(*testing.T, faultSite)
	}{
		{"one of each", testOneOfEach},
		{"silent nodes", testSilentNodes},
		{"invented nodes", testInventedNodes},
		{"many starts", testManyStarts},
		{"broker restart", testBrokerRestart},
	} {
		t.Run(test.name, func(t *testing.T) {
			site.broker = harness.StartBroker(t, simfleet.Issuer)
			test.run(t, site)
		})
	}
}

// Nodes that misbehave, each beside 20 healthy ones, with the feature ed25519.
func testOneOfEach(t *testing.T, site faultSite) {
	// a call that is not answered ends after 22 seconds
	const oneSilence = 45 * time.Second

	harness.TestFaults(t, site.broker, func() *harness.Daemon { return site.startDaemon(t) }, []harness.FaultRow{
		{Fault: "key-empty", Says: "the public key has 0 characters"},
		{Fault: "key-short", Says: "the public key has 62 characters"},
		{Fault: "key-long", Says: "the public key has 66 characters"},
		{Fault: "key-huge", Says: "the public key has 200000 characters"},
		{Fault: "key-not-hex", Says: "the public key is no hex"},
		{Fault: "key-upper-case", Fate: harness.Provisioned},
		{Fault: "key-neutral", Says: "is weak: anybody could sign for it"},
		{Fault: "key-no-directory", Says: "the reply names no directory"},
		{Fault: "key-directory-newline", Says: "is no path"},
		{Fault: "signature-empty", Says: "the signature of the nonce has 0 characters"},
		{Fault: "signature-short", Says: "the signature of the nonce has 126 characters"},
		{Fault: "signature-wrong", Says: "the signature of the nonce is not that of the public key"},
		{Fault: "signature-of-other-key", Says: "the signature of the nonce is not that of the public key"},
		{Fault: "signature-replayed", Says: "the signature of the nonce is not that of the public key"},

		{Fault: "jwt-empty", Says: "the node sent no provisioning JWT"},
		{Fault: "jwt-junk", Says: "the node's provisioning JWT is refused"},
		{Fault: "jwt-huge", Says: "the node's provisioning JWT is refused"},
		{Fault: "jwt-truncated", Says: "the node's provisioning JWT is refused"},
		{Fault: "jwt-none", Says: "signing method none is invalid"},
		{Fault: "jwt-hs256-with-public-key", Says: "signing method HS256 is invalid"},
		{Fault: "jwt-hs256-with-hex-key", Says: "signing method HS256 is invalid"},
		{Fault: "jwt-rsa", Says: "rsa public key required"},
		{Fault: "jwt-other-issuer", Says: "signature is invalid"},
		{Fault: "jwt-server-purpose", Says: "not a provisioning token"},
		{Fault: "jwt-expired", Says: "token is expired"},
		{Fault: "jwt-not-yet-valid", Says: "token is not valid yet"},
		{Fault: "ecdh-empty", Says: "the ECDH public key has 0 characters"},
		{Fault: "ecdh-short", Says: "the ECDH public key has 62 characters"},
		{Fault: "ecdh-not-hex", Says: "the ECDH public key is no hex"},

		{Fault: "inventory-large", Fate: harness.Provisioned},
		{Fault: "inventory-deep", Says: "rpcutil#inventory failed: the reply cannot be read"},
		{Fault: "inventory-not-utf8", Fate: harness.Provisioned},

		{Fault: "reply-junk-body", Says: "choria_provision#jwt failed: the reply cannot be read", Limit: oneSilence},
		{Fault: "reply-nulls", Says: "choria_provision#jwt failed: the reply cannot be read", Limit: oneSilence},
		{Fault: "reply-empty-body", Says: "choria_provision#jwt failed: the reply cannot be read", Limit: oneSilence},
		{Fault: "reply-list", Says: "choria_provision#jwt failed: the node sent no provisioning JWT"},
		{Fault: "reply-number", Says: "choria_provision#jwt failed: invalid reply"},
		{Fault: "reply-unknown-fields", Fate: harness.Provisioned},
		{Fault: "reply-twice", Says: "two machines share this identity"},
		{Fault: "reply-often", Says: "two machines share this identity"},
		{Fault: "reply-twice-late", Fate: harness.ConfiguredOnce, Says: "two machines share this identity"},
		{Fault: "reply-from-another", Says: `answered by "somebody.example.net"`, Limit: oneSilence},
		{Fault: "reply-mute-error", Says: "choria_provision#jwt failed after 3 tries: status 1, without a reason"},
		{Fault: "reply-strange-status", Says: "choria_provision#jwt failed after 3 tries: well"},
		{Fault: "reply-long-error", Says: "choria_provision#jwt failed after 3 tries: no no"},
		{Fault: "reply-forged-log", Says: "choria_provision#jwt failed after 3 tries: no"},
		{Fault: "unknown-action", Says: "Unknown action jwt"},
		{Fault: "wrong-token", Says: "Incorrect provision token supplied"},
		{Fault: "locked", Says: "Another provisioner works on the node", Level: "info"},

		{Fault: "twin", Says: "two machines share this identity"},
		// no call waits for a second reply: the first may get all there is by then
		{Fault: "impostor-before", Fate: harness.AtMostOnce, Says: "two machines share this identity"},
		{Fault: "impostor-after", Fate: harness.AtMostOnce, Says: "two machines share this identity"},
		{Fault: "impostor-configure", Fate: harness.AtMostOnce, Says: "two machines share this identity"},

		{Fault: "identity-capitals", Fate: harness.Provisioned},
		{Fault: "identity-underscore", Fate: harness.Provisioned},
		{Fault: "identity-percent", Fate: harness.Provisioned},
		{Fault: "identity-dash", Fate: harness.Provisioned},
		{Fault: "identity-shell", Fate: harness.Provisioned},
		{Fault: "identity-slash", Fate: harness.Provisioned},
		{Fault: "identity-unicode", Fate: harness.Provisioned},
		{Fault: "identity-right-to-left", Fate: harness.Provisioned},
		{Fault: "identity-253", Fate: harness.Provisioned},
		{Fault: "identity-254", Says: `long."... has 254 bytes, more than 253`, Level: "warning", Nameless: true},
		{Fault: "identity-forged", Says: `identity ">" holds`, Level: "warning", Nameless: true},

		{Fault: "replay", Fate: harness.Provisioned},
		{Fault: "dies-after-gen25519", Fate: harness.Returning, Limit: oneSilence},
		{Fault: "too-slow", Fate: harness.Configured, Says: "choria_provision#restart failed: not answered", Limit: oneSilence},
	})
}

// faultSite is a network and what a daemon on it needs.
type faultSite struct {
	bin    harness.Binaries
	plugin string
	broker *simfleet.Broker
}

// startDaemon starts a daemon with default settings that makes ed25519 keys.
func (s faultSite) startDaemon(t testing.TB) *harness.Daemon {
	t.Helper()

	return harness.StartDaemon(t, s.bin, harness.DaemonOptions{
		Name:         "provisioner",
		ChoriaConfig: harness.ProvisionerConfig(t, s.broker, "provisioner.example.net"),
		Config: map[string]any{
			"token":                        s.broker.Token(),
			"broker_provisioning_password": s.broker.Password(),
			"jwt_verify_cert":              s.broker.VerifyCert(),
			"jwt_signing_key":              s.broker.SigningKey(),
			"jwt_signing_token":            s.broker.SigningToken(),
			"features":                     map[string]bool{"ed25519": true},
			"logfile":                      harness.JSONLog,
			"loglevel":                     "info",
			"helper": map[string]any{"plugin": s.plugin, "config": map[string]any{
				"dir": t.TempDir(), "brokers": []string{s.broker.Addr()}, "issuer": s.broker.IssuerPublic(),
			}},
		},
	})
}

// finish is how long the healthy nodes of a fleet take, from the start of a
// daemon: what an operator sees. trouble is made as soon as the daemon runs.
func (s faultSite) finish(t *testing.T, healthy []*simfleet.Node, trouble func(*harness.Daemon)) time.Duration {
	t.Helper()

	began := time.Now()
	daemon := s.startDaemon(t)
	if trouble != nil {
		trouble(daemon)
	}
	harness.ExpectRestarted(t, daemon, healthy, time.Minute)
	took := harness.LastCall(healthy).Sub(began)
	_, most := daemon.Memory(t)
	t.Logf("%v and %d MiB of memory for %d healthy nodes", took.Round(time.Millisecond), most>>20, len(healthy))
	harness.TerminateDaemon(t, daemon)

	return took
}

// within compares a run with trouble to one without, in the better of two
// tries: the machine may have other things to do.
func within(t *testing.T, limit float64, quiet, troubled func() time.Duration) {
	t.Helper()

	for try := range 2 {
		base := quiet()
		took := troubled()
		t.Logf("%v without trouble, %v with it", base.Round(time.Millisecond), took.Round(time.Millisecond))
		if took.Seconds() <= limit*base.Seconds() {
			return
		}
		if try == 1 {
			t.Errorf("healthy nodes were done after %v, more than %v times the %v without trouble", took, limit, base)
		}
	}
}

// 200 silent nodes hold up 200 healthy ones by no more than as much again. The
// older provisioner waits 69 seconds on each.
func testSilentNodes(t *testing.T, site faultSite) {
	const count = 200
	run := func(silent int) time.Duration {
		fleet := harness.StartFleet(t, site.broker, count, simfleet.NodeOptions{})
		defer fleet.Close()
		healthy := fleet.Nodes()
		for i := range silent {
			harness.AddFaulty(t, fleet, fmt.Sprintf("silent-%03d.example.net", i), "silent")
		}

		return site.finish(t, healthy, nil)
	}
	within(t, 2, func() time.Duration { return run(0) }, func() time.Duration { return run(count) })
}

// A waiting node that invents many others takes neither memory nor the place of those that are there.
func testInventedNodes(t *testing.T, site faultSite) {
	const (
		count = 200
		// 230 MiB for 200 healthy nodes, and 64 calls in flight of 1.6 MiB each,
		// doubled by what the collector leaves
		memory = 500 << 20
		// of 10,000 names that cannot be
		nonsense, linesOfNonsense = 10_000, 100
	)
	run := func(flood bool) time.Duration {
		fleet := harness.StartFleet(t, site.broker, count, simfleet.NodeOptions{})
		defer fleet.Close()
		if !flood {
			return site.finish(t, fleet.Nodes(), nil)
		}

		return site.finish(t, fleet.Nodes(), func(daemon *harness.Daemon) {
			names := make([]string, nonsense)
			for i := range names {
				names[i] = fmt.Sprintf("no name %d", i)
			}
			if err := errors.Join(fleet.Announce(t.Context(), names...), fleet.Invent(t.Context(), inventedNodes)); err != nil {
				t.Fatal(err)
			}

			late, err := fleet.Add(t.Context(), "late.example.net", nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if late.State() != simfleet.Restarted {
					t.Errorf("a node that started after the flood is %v", late.State())
				}
			})
			harness.ExpectRestarted(t, daemon, []*simfleet.Node{late}, 30*time.Second)

			now, most := daemon.Memory(t)
			t.Logf("the daemon has %d MiB of memory, %d at most", now>>20, most>>20)
			if most > memory {
				t.Errorf("the daemon took %d MiB of memory, more than %d", most>>20, memory>>20)
			}
			if lines := strings.Count(daemon.Log(), "A node is ignored"); lines > linesOfNonsense {
				t.Errorf("%d lines of the log are about names that cannot be", lines)
			}
		})
	}
	within(t, inventedFactor, func() time.Duration { return run(false) }, func() time.Duration { return run(true) })
}

// 5,000 nodes that start within a second are all queued, none of their events is
// lost; in the long form, all are provisioned. The older provisioner loses some
// from 2,000 on.
func testManyStarts(t *testing.T, site faultSite) {
	const count = 5000
	fleet := harness.StartFleet(t, site.broker, 0, simfleet.NodeOptions{})
	daemon := site.startDaemon(t)
	harness.Eventually(t, 20*time.Second, "first discovery", func() error {
		return daemon.ExpectMetric("choria_provisioner_discover_cycles", 1)
	})

	if err := fleet.AddMany(t.Context(), count); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, 20*time.Second, "all events", func() error {
		byEvent, err := daemon.Metric("choria_provisioner_event_discovered")
		if err != nil {
			return err
		}
		byDiscovery, err := daemon.Metric("choria_provisioner_discovered")
		if err != nil {
			return err
		}
		if byEvent+byDiscovery != count {
			return fmt.Errorf("%v nodes were queued by events and %v by discovery", byEvent, byDiscovery)
		}
		return nil
	})
	if log := strings.ToLower(daemon.Log()); strings.Contains(log, "slow consumer") {
		t.Error("events were lost")
	}
	if longTests {
		harness.ExpectProvisioned(t, fleet, 5*time.Minute)
		for action, calls := range fleet.Counts().Calls {
			if calls != count {
				t.Errorf("%s reached nodes %d times, not %d", action, calls, count)
			}
		}
	}
}

// The broker restarts while 300 nodes are worked on: all are provisioned in the
// end, and no node sees more calls than the tries there are.
func testBrokerRestart(t *testing.T, site faultSite) {
	const count = 300
	fleet := harness.StartFleet(t, site.broker, count, simfleet.NodeOptions{
		// long enough for nearly all to be in flight at once
		Intercept: func(_ *simfleet.Node, c simfleet.Call) simfleet.Override {
			if c.Action == "choria_provision#configure" && c.Attempt == 1 {
				return simfleet.Override{Delay: 4 * time.Second}
			}
			return simfleet.Override{}
		},
	})
	daemon := site.startDaemon(t)

	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	err := fleet.Wait(ctx, func(c simfleet.Counts) bool { return c.Calls["choria_provision#configure"] >= 200 })
	if err != nil {
		t.Fatal(err)
	}
	inFlight := fleet.Counts().Waiting
	if err := site.broker.Restart(ctx); err != nil {
		t.Fatal(err)
	}

	harness.ExpectRestarted(t, daemon, fleet.Nodes(), 90*time.Second)
	counts := fleet.Counts()
	t.Logf("%d nodes, of which %d waited when the broker restarted, saw %v", count, inFlight, counts.Calls)
	for _, n := range fleet.Nodes() {
		calls := map[string]int{}
		for _, c := range n.Calls() {
			calls[c.Action]++
		}
		for action, seen := range calls {
			if most := harness.Tries(action); seen > most {
				t.Errorf("%s saw %s %d times, more than %d", n.Identity(), action, seen, most)
			}
		}
	}
}
