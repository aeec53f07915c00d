package ledger

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"unique"

	"github.com/choria-provisioner/provisioner/version"
)

// Candidate is how a version did in the fleet, in nodes.
type Candidate struct {
	Version string `json:"version"`
	// Proved and Presumed nodes have it as their known-good version.
	Proved   int `json:"proved"`
	Presumed int `json:"presumed"`
	// OnTrial nodes are on their way to it, or run it without a verdict.
	OnTrial int `json:"on_trial"`
	// RolledBack nodes left it for good, or could not.
	RolledBack int `json:"rolled_back"`
	// Dark nodes were sent it and not seen since.
	Dark int `json:"dark"`
	// Quarantined tells that no further node is sent to it.
	Quarantined bool `json:"quarantined"`
}

// Index counts records by version, and knows which of them wait for time to
// pass. It is kept by telling it of every record and every write. A leading v
// makes no other version.
type Index struct {
	quarantineAfter int

	mu      sync.RWMutex
	nodes   map[string]share
	counts  map[string]*Candidate
	onTrial int
	states  map[State]int
	// due holds the nodes whose bound runs.
	due map[string]Observed
}

// share is what one node adds to the counts. Most nodes of a fleet share it but
// for their names.
type share struct {
	revision uint64
	state    State
	good     unique.Handle[string]
	source   Source
	target   unique.Handle[string]
	barred   []string
}

// NewIndex returns an empty index. A version is quarantined when that many
// nodes left it or went dark with it; 0 is never.
func NewIndex(quarantineAfter int) *Index {
	return &Index{
		quarantineAfter: quarantineAfter,
		nodes:           map[string]share{},
		counts:          map[string]*Candidate{},
		states:          map[State]int{},
		due:             map[string]Observed{},
	}
}

// Put counts a record in the place of what was known of its node, unless that
// was of a later revision.
func (x *Index) Put(rec Record) {
	n := share{revision: rec.Revision, state: rec.State}
	var due Observed
	if rec.KnownGood != nil {
		n.good, n.source = handle(rec.KnownGood.Version), rec.KnownGood.Source
	}
	if rec.Trial != nil {
		n.target, due = handle(rec.Trial.Version), rec.Trial.due(rec.State)
	}
	for _, v := range rec.Barred() {
		n.barred = append(n.barred, handle(v).Value())
	}

	x.mu.Lock()
	defer x.mu.Unlock()

	if x.nodes[rec.Identity].revision > rec.Revision {
		return
	}
	x.count(rec.Identity, -1)
	x.nodes[rec.Identity] = n
	x.count(rec.Identity, 1)
	if due > 0 {
		x.due[rec.Identity] = due
	} else {
		delete(x.due, rec.Identity)
	}
}

// Remove forgets a node.
func (x *Index) Remove(identity string) {
	x.mu.Lock()
	defer x.mu.Unlock()

	x.count(identity, -1)
	delete(x.nodes, identity)
	delete(x.due, identity)
}

// Candidate implements Fleet.
func (x *Index) Candidate(v string) Candidate {
	x.mu.RLock()
	defer x.mu.RUnlock()

	v = version.Normalise(v)
	c := Candidate{Version: v}
	if counted := x.counts[v]; counted != nil {
		c = *counted
	}
	c.Quarantined = x.quarantines(&c)

	return c
}

// Candidates are the statistics of all versions of which anything is known,
// newest first.
func (x *Index) Candidates() []Candidate {
	x.mu.RLock()
	names := slices.Collect(maps.Keys(x.counts))
	x.mu.RUnlock()

	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(version.Compare(b, a), cmp.Compare(b, a))
	})
	var all []Candidate
	for _, v := range names {
		if c := x.Candidate(v); c != (Candidate{Version: v}) {
			all = append(all, c)
		}
	}

	return all
}

// OnTrial implements Fleet.
func (x *Index) OnTrial() int {
	x.mu.RLock()
	defer x.mu.RUnlock()

	return x.onTrial
}

// InState is how many nodes are in a state.
func (x *Index) InState(s State) int {
	x.mu.RLock()
	defer x.mu.RUnlock()

	return x.states[s]
}

// State is that of a node, Unknown without a record.
func (x *Index) State(identity string) State {
	x.mu.RLock()
	defer x.mu.RUnlock()

	if n, known := x.nodes[identity]; known {
		return n.state
	}

	return Unknown
}

// UnderWay are the nodes whose change has no verdict.
func (x *Index) UnderWay() []string {
	x.mu.RLock()
	defer x.mu.RUnlock()

	var open []string
	for identity, n := range x.nodes {
		if n.state.UnderWay() {
			open = append(open, identity)
		}
	}

	return open
}

// Awaited tells whether to see a node in the main account says anything new.
func (x *Index) Awaited(identity string) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()

	n, known := x.nodes[identity]

	return known && (n.state.UnderWay() || n.state == Idle && (n.source == FirstSeen || n.source == Presumed))
}

// Quarantined is how many versions are quarantined.
func (x *Index) Quarantined() int {
	x.mu.RLock()
	defer x.mu.RUnlock()

	count := 0
	for _, c := range x.counts {
		if x.quarantines(c) {
			count++
		}
	}

	return count
}

func (x *Index) quarantines(c *Candidate) bool {
	return x.quarantineAfter > 0 && c.RolledBack+c.Dark >= x.quarantineAfter
}

// Due are the nodes for which a Tick has something to do.
func (x *Index) Due(now Observed) []string {
	x.mu.RLock()
	defer x.mu.RUnlock()

	var due []string
	for identity, at := range x.due {
		if at <= now {
			due = append(due, identity)
		}
	}

	return due
}

// count adds a node's share to the counts, or takes it away.
func (x *Index) count(identity string, by int) {
	n, known := x.nodes[identity]
	if !known {
		return
	}
	x.states[n.state] += by
	if n.source == Proved {
		x.of(n.good.Value()).Proved += by
	}
	if n.source == Presumed {
		x.of(n.good.Value()).Presumed += by
	}
	if n.state == Dark {
		x.of(n.target.Value()).Dark += by
	} else if n.state.UnderWay() {
		x.of(n.target.Value()).OnTrial += by
		x.onTrial += by
	}
	for _, v := range n.barred {
		x.of(v).RolledBack += by
	}
}

func (x *Index) of(v string) *Candidate {
	c := x.counts[v]
	if c == nil {
		c = &Candidate{Version: v}
		x.counts[v] = c
	}

	return c
}

func handle(v string) unique.Handle[string] { return unique.Make(version.Normalise(v)) }

// due is when a Tick has something to do, 0 for never.
func (c *Change) due(s State) Observed {
	switch {
	case s == Dark, s == Convicted:
		return 0
	case s == Trial && c.SeenInMain:
		return min(c.healthyAt(), c.Deadline)
	default:
		return c.Deadline
	}
}
