package ledger

import "time"

// The limits of design.md's table.
const (
	// refusalLimit is how often a node may refuse to be configured.
	refusalLimit = 2
	// returnLimit is how often it may come back during its trial.
	returnLimit = 2
	// changeLimit is how many changes may begin within the bound.
	changeLimit = 2
	// sendLimit is how often an update is sent however many leaders die with it:
	// the first, the one resend, and one in the place of an orphan.
	sendLimit = 3
	// patience is how many bounds a node that is heard, and never settles, has.
	patience = 3
)

// RestartSettles is how long a restart is given: the agent waits 2 s after an
// update and up to 3 s after its configuration (go-choria, provision agent).
const RestartSettles = 10 * time.Second

// A failed download is tried again after retryFirst, then twice as long each
// time.
const (
	retryFirst   = time.Minute
	retryLongest = time.Hour
)

// Policy is what the site configured.
type Policy struct {
	// Upgrades is features.upgrades.
	Upgrades bool
	// Optional is upgrades_optional: a node that a guard stops is provisioned at
	// its version instead of deferred.
	Optional bool
	// Repository tells that upgrades_repository is set.
	Repository bool
	// MainView tells that the main account is seen: a node that does not show up
	// there within its trial is dark, not presumed good.
	MainView bool
	// Trial is the bound of a trial, ReleaseTimeout that of an update.
	Trial          time.Duration
	ReleaseTimeout time.Duration
	// MaxInTrial is how many nodes may be on trial at once, MaxDark how many may
	// be dark at the target version; 0 is no limit.
	MaxInTrial int
	MaxDark    int
}

// Env is what Step judges a record by besides the event.
type Env struct {
	// Wall is for people only.
	Wall     time.Time
	Observed Observed
	// Epoch is that of the leader that asks.
	Epoch  uint64
	Policy Policy
	// Fleet may be nil: no other node is known.
	Fleet Fleet
}

// Fleet is what is known of all nodes.
type Fleet interface {
	// Candidate are the statistics of one version.
	Candidate(version string) Candidate
	// OnTrial is how many nodes are on trial at any version.
	OnTrial() int
}

func (e *Env) candidate(v string) Candidate {
	if e.Fleet == nil {
		return Candidate{Version: v}
	}

	return e.Fleet.Candidate(v)
}

func (e *Env) onTrial() int {
	if e.Fleet == nil {
		return 0
	}

	return e.Fleet.OnTrial()
}

// maySend tells whether any version may be sent.
func (p Policy) maySend() bool { return p.Upgrades && p.Repository }

func (p Policy) hasBudgets() bool { return p.MaxInTrial > 0 || p.MaxDark > 0 }

// skip is what becomes of a node whose change was stopped or failed.
func (p Policy) skip() Next {
	if p.Optional {
		return NextContinue
	}

	return NextDefer
}
