package ownversion

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/choria-provisioner/provisioner/deploy/versions"
	"github.com/choria-provisioner/provisioner/status"
)

// cluster runs a test on some hosts that run v1, none of them in step.
func cluster(t *testing.T, size int, test func(t *testing.T, n *network, random *rand.Rand)) {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	synctest.Test(t, func(t *testing.T) {
		random := rand.New(rand.NewPCG(seed, 0))
		n := newNetwork(t)
		for i := range size {
			h := n.host(string(rune('a' + i)))
			h.leader = i == 0
			h.restart = time.Duration(random.IntN(20_000)) * time.Millisecond
			for _, version := range []string{"v1", "v2"} {
				h.does[version] = behaviour{proves: time.Duration(random.IntN(60_000)) * time.Millisecond}
			}
			h.deliver("v1", 1)
		}
		for _, h := range n.hosts {
			time.Sleep(time.Duration(random.IntN(5000)) * time.Millisecond)
			h.start("v1")
		}
		test(t, n, random)
		if t.Failed() {
			n.mu.Lock()
			defer n.mu.Unlock()
			t.Logf("seed %d:\n%s", seed, strings.Join(n.events, "\n"))
		}
	})
}

func (n *network) want(t *testing.T, versions ...string) {
	t.Helper()
	if got := n.versions(); !slices.Equal(got, versions) {
		t.Errorf("%v run, not %v", got, versions)
	}
}

// One at a time, whatever the moments at which each finds the new version; the
// leader last, so that the lease moves once.
func TestOneAtATime(t *testing.T) {
	for round := range 5 {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			cluster(t, 4, func(t *testing.T, n *network, random *rand.Rand) {
				time.Sleep(2 * time.Minute)
				for _, i := range random.Perm(4) {
					n.hosts[i].deliver("v2", 2)
					if random.IntN(2) == 0 {
						time.Sleep(time.Duration(random.IntN(3000)) * time.Millisecond)
					}
				}
				time.Sleep(15 * time.Minute)
				n.want(t, "v2", "v2", "v2", "v2")
				n.mu.Lock()
				defer n.mu.Unlock()
				if n.most != 1 || len(n.away) != 0 {
					t.Errorf("%d were away at once, and %v is", n.most, n.away)
				}
				for _, h := range n.hosts {
					if h.left != 1 {
						t.Errorf("%s ended %d times", h.name, h.left)
					}
				}
			})
		})
	}
}

func TestLeaderLast(t *testing.T) {
	cluster(t, 3, func(t *testing.T, n *network, _ *rand.Rand) {
		time.Sleep(2 * time.Minute)
		for _, h := range n.hosts {
			h.deliver("v2", 2)
		}
		time.Sleep(15 * time.Minute)
		n.want(t, "v2", "v2", "v2")
		n.mu.Lock()
		defer n.mu.Unlock()
		var order []string
		for _, e := range n.events {
			if strings.HasSuffix(e, "makes way") {
				order = append(order, strings.Fields(e)[1])
			}
		}
		if fmt.Sprint(order) != "[b c a]" {
			t.Errorf("they went in the order %v", order)
		}
	})
}

// What one goes back from, the others do not start, also when that one is gone
// and they are started anew, until a person says so: on that machine, or on each
// of the others.
func TestRolledBackOnOne(t *testing.T) {
	for _, tc := range []struct {
		why     string
		release func(n *network) error
		runs    []string
	}{
		{why: "nobody says anything", release: func(*network) error { return nil }, runs: []string{"v1", "v1", "v1"}},
		{
			why:     "released on one other",
			release: func(n *network) error { _, err := n.hosts[2].Release("v2"); return err },
			runs:    []string{"v1", "v1", "v2"},
		},
		{
			why: "released where it was rolled back",
			release: func(n *network) error {
				n.locked(func() { n.hosts[1].does["v2"] = behaviour{} })
				_, err := n.hosts[1].Release("v2")
				return err
			},
			runs: []string{"v2", "v2", "v2"},
		},
	} {
		t.Run(tc.why, func(t *testing.T) {
			cluster(t, 3, func(t *testing.T, n *network, _ *rand.Rand) {
				time.Sleep(2 * time.Minute)
				n.locked(func() { n.hosts[1].does["v2"] = behaviour{proves: time.Hour, crashes: 5 * time.Minute} })
				for _, h := range n.hosts {
					h.deliver("v2", 2)
				}
				time.Sleep(10 * time.Minute)
				n.want(t, "v1", "v1", "v1")
				for _, h := range []*host{n.hosts[0], n.hosts[2]} {
					own := h.own()
					if own.Successor != "v2" || own.Ready || !strings.HasPrefix(own.Waits, "it was rolled back by b (instance b-") {
						t.Errorf("%s: %+v", h.name, own)
					}
				}

				// Gone, with what it would say.
				n.locked(func() { n.hosts[1].running = "" })
				n.hosts[2].end()
				s, err := n.hosts[2].Read()
				if err != nil {
					t.Fatal(err)
				}
				n.hosts[2].start(s.Next)
				time.Sleep(Patience + time.Minute)
				n.want(t, "v1", "", "v1")
				n.locked(func() { n.hosts[1].running = "v1" })

				if err := tc.release(n); err != nil {
					t.Error(err)
				}
				time.Sleep(20 * time.Minute)
				n.want(t, tc.runs...)
				n.mu.Lock()
				defer n.mu.Unlock()
				if n.most != 1 {
					t.Errorf("%d were away at once", n.most)
				}
			})
		})
	}
}

// Nobody waits for ever: for one that has made way and does not come back, nor
// for one that does not prove itself.
func TestPatience(t *testing.T) {
	for _, tc := range []struct {
		why string
		do  func(h *host)
	}{
		{"it does not come back", func(h *host) { h.restart = 24 * time.Hour }},
		{"it does not prove itself", func(h *host) { h.does["v2"] = behaviour{proves: 24 * time.Hour} }},
	} {
		t.Run(tc.why, func(t *testing.T) {
			cluster(t, 2, func(t *testing.T, n *network, _ *rand.Rand) {
				time.Sleep(2 * time.Minute)
				// The one that is no leader goes first.
				n.locked(func() { tc.do(n.hosts[1]) })
				for _, h := range n.hosts {
					h.deliver("v2", 2)
				}
				time.Sleep(14 * time.Minute)
				if running, _ := n.hosts[0].now(); running != "v1" {
					t.Errorf("the other did not wait, %s runs", running)
				}
				if own := n.hosts[0].own(); own.Waits == "" {
					t.Error("it does not say what it waits for")
				}
				time.Sleep(4 * time.Minute)
				if running, _ := n.hosts[0].now(); running != "v2" {
					t.Errorf("the other still waits: %+v", n.hosts[0].own())
				}
			})
		})
	}
}

// Copies of a machine have its place too, and are other instances all the same.
func TestPlaceShared(t *testing.T) {
	p := newPeers("us", "here", time.Now)
	of := func(instance, place string, leads, aside bool) status.Status {
		s := statusOf(place, "v1")
		s.Instance, s.Election.Leader, s.Version.StandsAside = instance, leads, aside
		return s
	}
	p.observe([]status.Status{of("us", "here", true, true), of("copy", "here", false, false), of("x", "there", false, false), of("y", "there", false, false)})
	if !p.weLead || p.busy() != "" || len(p.known) != 3 {
		t.Errorf("we lead: %v, waits: %q, %d are known", p.weLead, p.busy(), len(p.known))
	}
	p.observe([]status.Status{of("us", "here", true, true), of("copy", "here", false, true), of("x", "there", false, false), of("y", "there", false, false)})
	if p.busy() == "" {
		t.Error("a copy that makes way is not waited for")
	}
	p.observe([]status.Status{of("us", "here", true, true), of("copy", "here", false, false), of("x", "there", false, true), of("y", "there", false, false)})
	if p.busy() == "" {
		t.Error("one of two copies elsewhere is not waited for")
	}
}

// What others say is not trusted with more than a word in a file.
func TestPeersSayAnything(t *testing.T) {
	p := newPeers("us", "here", time.Now)
	s := statusOf("there\nv1 x", "v1", versions.Verdict{From: "v2", Outcome: versions.RolledBack})
	p.observe([]status.Status{s, statusOf("fine", "v1", versions.Verdict{From: "v 3", Outcome: versions.RolledBack}, versions.Verdict{From: "v4", Outcome: versions.Halted})})
	if got := p.rolledBack(nil); len(got) != 0 {
		t.Errorf("remembered: %v", got)
	}
	if busy := p.busy(); busy != "" {
		t.Errorf("waits: %s", busy)
	}

	var list []status.Status
	for i := range 2 * mostPeers {
		list = append(list, statusOf(fmt.Sprint(i), "v1", versions.Verdict{From: fmt.Sprintf("v%d", i), Outcome: versions.RolledBack}))
	}
	p.observe(list)
	if len(p.known) != mostPeers || len(p.rolledBack(nil)) != mostElsewhere {
		t.Errorf("%d instances and %d verdicts are kept", len(p.known), len(p.rolledBack(nil)))
	}
}
