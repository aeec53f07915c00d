package ownversion

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/choria-provisioner/provisioner/deploy/versions"
	"github.com/choria-provisioner/provisioner/status"
)

const (
	// turn is how long an instance that goes first may take to begin.
	turn = 2 * time.Minute
	// mostPeers and mostElsewhere bound what is kept of those who answer in names
	// that they make up.
	mostPeers     = 1000
	mostElsewhere = 100
)

// peers are the other instances that a launcher started, as far as they have
// answered.
type peers struct {
	// instance and own are our id and our place.
	instance, own string
	now           func() time.Time
	known         map[string]*peer
	// asked is when all were asked last.
	asked  time.Time
	weLead bool
}

// peer is what was there, at a place, when it was asked last.
type peer struct {
	status.Status
	seen time.Time
	// unsettled is since when it has not been proved, at rest and there, ready
	// since when it has wanted to make way; zero when that is not so.
	unsettled, ready time.Time
}

func newPeers(instance, own string, now func() time.Time) *peers {
	return &peers{instance: instance, own: own, now: now, known: map[string]*peer{}}
}

// observe takes the answers of all instances.
func (p *peers) observe(list []status.Status) {
	now := p.now()
	p.asked = now
	taken := map[string]bool{p.own: true}
	for _, s := range list {
		if s.Instance == p.instance {
			p.weLead = s.Election.Leader
			continue
		}
		if s.Version == nil {
			continue
		}
		// Copies of a machine share its place; they are not one instance.
		if taken[s.Place] {
			s.Place += "." + s.Instance
		}
		taken[s.Place] = true
		one := p.known[s.Place]
		if one == nil {
			if len(p.known) >= mostPeers {
				continue
			}
			one = &peer{}
			p.known[s.Place] = one
		}
		one.Status, one.seen = s, now
		since(&one.unsettled, !s.Version.Proved || s.Version.StandsAside, now)
		since(&one.ready, s.Version.Ready && !s.Version.StandsAside, now)
	}
	for place, one := range p.known {
		if p.answers(one) {
			continue
		}
		// It may have gone without a word that was heard, and its successor may
		// not come as far as answering.
		since(&one.ready, false, now)
		since(&one.unsettled, true, now)
		if now.Sub(one.unsettled) >= Patience {
			delete(p.known, place)
		}
	}
}

// answers tells whether an instance answered when all were asked last.
func (p *peers) answers(one *peer) bool { return one.seen.Equal(p.asked) }

// since keeps in at when is became true.
func since(at *time.Time, is bool, now time.Time) {
	switch {
	case !is:
		*at = time.Time{}
	case at.IsZero():
		*at = now
	}
}

func (p *peers) sorted() []*peer {
	return slices.SortedFunc(maps.Values(p.known), func(a, b *peer) int { return a.seen.Compare(b.seen) })
}

// busy says which other instance is not settled; empty when all are, or when it
// has lasted for longer than anybody waits.
func (p *peers) busy() string {
	for _, one := range p.sorted() {
		if one.unsettled.IsZero() || p.now().Sub(one.unsettled) >= Patience {
			continue
		}
		switch {
		case one.Version.StandsAside:
			return fmt.Sprintf("%s makes way for its own successor", p.name(one.Place))
		case !p.answers(one):
			return fmt.Sprintf("%s does not answer", p.name(one.Place))
		default:
			return fmt.Sprintf("%s has not proved itself yet", p.name(one.Place))
		}
	}

	return ""
}

// inTheWay says what is to be waited for before we say that we make way: another
// instance that is not settled, or one whose turn it is. The leader goes last, so
// that the lease moves once; otherwise the order is that of the instances' ids.
func (p *peers) inTheWay(instance string) string {
	if busy := p.busy(); busy != "" {
		return busy
	}
	for _, one := range p.sorted() {
		if one.ready.IsZero() || p.now().Sub(one.ready) >= turn {
			continue
		}
		first := one.Instance < instance
		if one.Election.Leader != p.weLead {
			first = p.weLead
		}
		if first {
			return fmt.Sprintf("%s goes first", p.name(one.Place))
		}
	}

	return ""
}

// rolledBack is known, brought up to date: what an instance says that answers
// counts, and what it said while it does not.
func (p *peers) rolledBack(known []versions.Elsewhere) []versions.Elsewhere {
	list := slices.DeleteFunc(slices.Clone(known), func(e versions.Elsewhere) bool {
		one := p.known[e.Place]
		return one != nil && p.answers(one) &&
			!slices.ContainsFunc(one.Version.Verdicts, func(v versions.Verdict) bool { return v.From == e.Version })
	})
	for _, one := range p.sorted() {
		for _, v := range one.Version.Verdicts {
			e := versions.Elsewhere{Version: v.From, Place: one.Place}
			if v.Outcome == versions.RolledBack && versions.ValidName(v.From) && validPlace(one.Place) && len(list) < mostElsewhere && !slices.Contains(list, e) {
				list = append(list, e)
			}
		}
	}

	return list
}

// validPlace keeps what others say from being anything but a word in a file.
func validPlace(place string) bool { return versions.ValidName(place) }

// name is what a person knows an instance by.
func (p *peers) name(place string) string {
	if one := p.known[place]; one != nil {
		return fmt.Sprintf("%.100s (instance %.20s)", one.Identity, one.Instance)
	}

	return "another instance (place " + place + ")"
}
