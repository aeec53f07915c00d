package book

import (
	"fmt"
	"time"

	"github.com/choria-provisioner/provisioner/version/ledger"
)

// Advice is what a record means to a person.
type Advice struct {
	// Now is where the node stands, in a sentence.
	Now string `json:"now"`
	// Next are the ways in which it goes on by itself.
	Next []string `json:"next"`
	// Do is what a person can do.
	Do []string `json:"do,omitempty"`
}

// Advise reads a record for a person. A policy that is not known, because no
// daemon runs, leaves both ways open.
func Advise(rec ledger.Record, s Standing) Advice {
	r := reading{rec: &rec, standing: &s}
	a := r.state()
	switch {
	case rec.Pin == nil:
	case rec.State == ledger.Idle, rec.State == ledger.Unknown:
		a.Next = append(a.Next, fmt.Sprintf("it is pinned: no change but one to %s is allowed", rec.Pin.Version))
		a.Do = append(a.Do, "nodes unpin")
	}
	if !s.Live {
		a.Next = append(a.Next, "no daemon runs: nothing happens, and no bound runs, until one does")
	}

	return a
}

// reading is a record that is being read.
type reading struct {
	rec      *ledger.Record
	standing *Standing
}

// left is what is left of the bound, for people.
func (r *reading) left() string { return r.until(r.rec.Trial.Deadline) }

func (r *reading) until(o ledger.Observed) string {
	d := time.Duration(o - r.standing.Observed).Round(time.Second)
	if d <= 0 {
		return "at once"
	}

	return fmt.Sprintf("in %s of listening", d)
}

func (r *reading) state() Advice {
	t := r.rec.Trial
	switch r.rec.State {
	case ledger.Unknown:
		return Advice{
			Now:  "it was never met in provisioning mode",
			Next: []string{"the version it shows first is known as good, unless that is barred or quarantined"},
		}
	case ledger.Idle:
		return r.idle()
	case ledger.Intent:
		return Advice{
			Now:  fmt.Sprintf("%s is being sent, or was when the daemon ended", t.Version),
			Next: []string{"its reply settles it", "without one, or with a new leader, it is looked at, not sent again blindly", "not seen: dark, " + r.left()},
		}
	case ledger.Verify:
		return Advice{
			Now: fmt.Sprintf("it is open whether it took %s", t.Version),
			Next: []string{
				fmt.Sprintf("shows %s: it arrived", t.Version),
				fmt.Sprintf("shows %s, with its update lock free, twice: sent once more, then held", t.From),
				"shows another version: held",
				"not seen: dark, " + r.left(),
			},
		}
	case ledger.Swapped:
		old := fmt.Sprintf("shows %s: held, its restart failed", t.From)
		if !t.Confirmed {
			old = fmt.Sprintf("shows %s: only an event said that it took the update, so it is looked at as after a lost reply", t.From)
		}
		return Advice{
			Now:  fmt.Sprintf("it took %s and restarts", t.Version),
			Next: []string{fmt.Sprintf("shows %s: it arrived", t.Version), old, "shows another version: held", "not seen: dark, " + r.left()},
		}
	case ledger.Dark:
		return Advice{
			Now: fmt.Sprintf("it was sent %s and was not seen since", t.Version),
			Next: []string{
				fmt.Sprintf("shows %s: it arrived", t.Version),
				fmt.Sprintf("is seen in the main account with %s: proved; with another version: inconclusive", t.Version),
				"until then it counts against " + t.Version + " in max_dark and quarantine_after",
			},
			Do: []string{
				"look at the machine: is its server running, and what does its log say",
				"nodes expect, if it was repaired or installed anew with a version you know",
				"nodes release, to start afresh at what it shows",
				"nodes forget --force, if the machine is gone",
			},
		}
	case ledger.Arrived:
		return Advice{
			Now: fmt.Sprintf("it came back with %s and has to be configured", t.Version),
			Next: []string{
				"configured and restarted: on trial",
				"refuses that in two passes: convicted",
				"not configured: inconclusive, " + r.left(),
			},
		}
	case ledger.Trial:
		return r.trial()
	case ledger.Convicted:
		next := "the rollback is sent again when it shows up in provisioning mode; it is not provisioned before"
		if r.rec.Retry != nil {
			next = fmt.Sprintf("the rollback is sent again when it shows up in provisioning mode, %s at the earliest; it is not provisioned before", r.until(r.rec.Retry.NotBefore))
		}
		return Advice{
			Now:  fmt.Sprintf("it has to leave %s for %s, and could not yet", t.From, t.Version),
			Next: []string{next, fmt.Sprintf("shows %s: it arrived", t.Version)},
			Do: []string{
				"see that features.upgrades is on and that the repository has " + t.Version,
				"nodes expect, once a good version is installed by hand",
				"nodes release, to leave it at what it runs; the version stays barred",
			},
		}
	case ledger.Held:
		return r.held()
	default:
		return Advice{Now: "its state is not known to this build"}
	}
}

func (r *reading) idle() Advice {
	a := Advice{Now: "nothing is under way", Next: []string{"it is provisioned at its version; what the helper decides goes through the guards"}}
	if retry := r.rec.Retry; retry != nil {
		a.Next = append(a.Next, fmt.Sprintf("the last update failed on the node, %d in a row: the next is allowed %s", retry.Failures, r.until(retry.NotBefore)))
	}

	return a
}

func (r *reading) trial() Advice {
	t := r.rec.Trial
	proved := fmt.Sprintf("seen in the main account with %s: proved", t.Version)
	if t.MinHealthy > 0 {
		proved = fmt.Sprintf("seen in the main account with %s, and healthy for %s after its restart: proved", t.Version, t.MinHealthy)
	}
	unseen := "not seen there: dark where the main account is seen, else presumed good, " + r.left()
	switch {
	case !r.standing.Live:
	case r.standing.Policy.MainView:
		unseen = "not seen there: dark, " + r.left()
	default:
		proved = "this daemon does not see the main account: it cannot be proved"
		unseen = "not back in provisioning mode: presumed good, " + r.left()
	}

	return Advice{
		Now:  fmt.Sprintf("it was configured with %s, which has not proved itself", t.Version),
		Next: []string{proved, fmt.Sprintf("comes back to provisioning: counted, %d so far; at the second time convicted", t.Returns), unseen},
	}
}

// held tells what to do about each reason.
func (r *reading) held() Advice {
	h := r.rec.Hold
	a := Advice{Now: "it waits for a person: " + h.Why}
	if h.Blocks() {
		a.Next = []string{"nothing: it is neither changed nor provisioned, whatever upgrades_optional says"}
	} else {
		a.Next = []string{"its version is not changed; it is provisioned as it is, unless the helper asks for a change and upgrades_optional is off"}
	}
	switch h.Reason {
	case ledger.HeldBroken:
		a.Do = []string{
			"do not restart its server: what lies on its disk may not start. Put a good binary in place first (the updater left a .backup beside it, if it could)",
			"then: nodes release, or nodes expect with the version you put there",
		}
	case ledger.HeldExecFailed:
		a.Do = []string{
			fmt.Sprintf("its disk holds %s, which did not start, while %s still runs: see its log, and put a good binary in place before anything restarts it", h.Version, h.From),
			"then: nodes release, or nodes expect with the version you put there",
		}
	case ledger.HeldUnsettled:
		a.Do = []string{
			"see its log: why does it not take the update (the repository, the disk, the time a download takes)",
			"then: nodes release; the helper may ask for the change again",
		}
	case ledger.HeldThirdVersion:
		a.Do = []string{
			"find out who else changes its version: a package manager, another provisioner, a twin",
			"nodes expect, if what it shows is right; nodes release, to start afresh at what it shows",
		}
	case ledger.HeldThirdChange:
		a.Do = []string{"find out why the helper changes its mind, and correct that", "then: nodes release; or nodes pin, and nodes release"}
	case ledger.HeldConvicted:
		a.Do = []string{
			"install a good version by hand, then: nodes expect",
			"or nodes release, to leave it at what it runs; the version stays barred, and the node is provisioned with it",
		}
	}

	return a
}
