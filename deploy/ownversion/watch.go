// Package ownversion looks after the version of the daemon that it runs in, when
// a launcher (deploy/launch) started that: it reports to the launcher once the
// daemon has proved itself, and ends the daemon, between nodes, for a newer
// version or a launcher that was replaced.
package ownversion

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/choria-provisioner/provisioner/deploy/versions"
	"github.com/choria-provisioner/provisioner/status"
)

const (
	// Patience is how long is waited for another instance to prove itself, and
	// for a broker over which the others can be asked.
	Patience = 15 * time.Minute
	// maxRetry is how soon at the latest one tries again that began at the same
	// time as another.
	maxRetry = 10 * time.Second
	// mostSaid bounds what is logged: others have a part in the words.
	mostSaid = 100
)

// Config is what a Watch needs; every field is required.
type Config struct {
	Start versions.Start
	// Instance and Place are those of our status.
	Instance, Place string
	// Build and Digest are what our own status must come back with.
	Build, Digest string

	// Reachable is false while there is no connection to a broker at all.
	Reachable func() bool
	// Healthy is nil when there is nothing that keeps this instance from its work
	// but that it is paused: it is connected, its helper answers, and with election
	// on somebody is known to lead.
	Healthy func() error
	// AskSelf asks our own status service through the broker, AskAll all. Both
	// fail at once when there is no connection.
	AskSelf func(ctx context.Context) (status.Status, error)
	AskAll  func(ctx context.Context) ([]status.Status, error)
	// Leave lets the nodes in work end and then ends the daemon with exit status
	// 0. It returns when that is under way.
	Leave func(ctx context.Context)
	Log   *logrus.Entry
	Now   func() time.Time
}

// Watch looks after the daemon's own version.
type Watch struct {
	cfg   Config
	peers *peers
	// script is the launcher's digest at the start, empty where it could not be
	// read.
	script string
	// first is what the launcher would have started in our place when we began,
	// with its arrival; candidate is the successor found at the last look.
	first, candidate successor
	// arrival is that of our own version, also when its folder is gone.
	arrival int64
	// looks counts those that found the same candidate, with nothing against it.
	looks int
	// unasked is since when the others cannot be asked, retry when another try to
	// make way is due.
	unasked, retry time.Time
	said           map[string]bool

	mu  sync.Mutex
	own status.Version
}

// successor is what the daemon may end for: a version, a launcher that was
// replaced, or both.
type successor struct {
	version string
	arrival int64
	// launcher is a digest.
	launcher string
}

// none tells whether there is nothing to end for.
func (s successor) none() bool { return s == successor{} }

// name is what people are told.
func (s successor) name() string {
	if s.version == "" && s.launcher != "" {
		return "a new launcher"
	}

	return s.version
}

// New makes a Watch, and reads what the launcher was when the daemon began.
func New(cfg Config) *Watch {
	w := &Watch{cfg: cfg, said: map[string]bool{}, peers: newPeers(cfg.Instance, cfg.Place, cfg.Now)}
	w.own = status.Version{Running: cfg.Start.Version, Missing: "it has just begun", Verdicts: []versions.Verdict{}}
	w.script, _ = versions.ScriptDigest(cfg.Start.Script)
	if s := w.look(); s != nil {
		w.first = w.successor(s)
	}

	return w
}

// Status is what is known of the daemon's version.
func (w *Watch) Status() *status.Version {
	w.mu.Lock()
	defer w.mu.Unlock()
	own := w.own
	own.Verdicts = slices.Clone(own.Verdicts)

	return &own
}

func (w *Watch) set(change func(*status.Version)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change(&w.own)
}

// Run watches until ctx ends or the daemon was told to end.
func (w *Watch) Run(ctx context.Context) {
	w.sayVerdicts()
	// Twice a tick: the launcher wants to see a change in each.
	ticker := time.NewTicker(min(w.cfg.Start.Tick/2, 2500*time.Millisecond))
	defer ticker.Stop()
	for {
		s := w.look()
		if !w.Status().Proved {
			w.prove(ctx)
		}
		if s != nil && w.succeed(ctx, s) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// sayVerdicts logs what must not be forgotten, at the start.
func (w *Watch) sayVerdicts() {
	own := w.Status()
	for _, v := range own.Verdicts {
		w.cfg.Log.Warnf("Version %s was rolled back to %s at %s and is not started: %s", v.From, v.To, v.At.Format(time.RFC3339), v.Why)
	}
	if own.Halted != "" {
		w.cfg.Log.Warnf("The launcher is halted: %s", own.Halted)
	}
}

// say logs a message once.
func (w *Watch) say(format string, values ...any) {
	message := fmt.Sprintf(format, values...)
	if !w.said[message] && len(w.said) < mostSaid {
		w.said[message] = true
		w.cfg.Log.Warn(message)
	}
}

// look reads the launcher's state into our status; nil when it cannot be read.
func (w *Watch) look() *versions.Snapshot {
	s, err := w.cfg.Start.Read()
	if err != nil {
		w.say("The state of the launcher cannot be read: %v", err)
		return nil
	}
	w.set(func(own *status.Version) {
		own.OnTrial = s.OnTrial(own.Running)
		own.KnownGood, own.Pinned, own.Halted = s.KnownGood, s.Pinned, s.Halted
		own.Verdicts = s.Standing()
	})

	return s
}

// prove reports to the launcher when the daemon has shown, through the broker,
// that it works.
func (w *Watch) prove(ctx context.Context) {
	missing := w.missing(ctx)
	if ctx.Err() != nil {
		return
	}
	if missing == nil {
		missing = w.cfg.Start.Prove(w.cfg.Start.Version)
	}
	w.set(func(own *status.Version) {
		own.Missing = ""
		if missing != nil {
			own.Missing = missing.Error()
		}
		own.Proved = missing == nil
	})
	switch {
	case missing == nil:
		w.cfg.Log.Warnf("Version %s has proved itself and is known to be good", w.cfg.Start.Version)
		w.look()
	case !w.cfg.Reachable():
		if err := w.cfg.Start.Blind(); err != nil {
			w.say("The launcher cannot be told that no broker is reached: %v", err)
		}
	}
}

// missing is what the proof lacks.
func (w *Watch) missing(ctx context.Context) error {
	if err := w.cfg.Healthy(); err != nil {
		return err
	}
	s, err := w.cfg.AskSelf(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("our own status does not come back through the broker: %w", err)
	case s.Instance != w.cfg.Instance || s.Build != w.cfg.Build || s.Digest != w.cfg.Digest:
		return fmt.Errorf("our own status comes back as build %.40q of instance %.40q", s.Build, s.Instance)
	}

	return nil
}

// successor is what the launcher would start in our place, or would if another
// instance had not rolled it back: nothing when that is us, what arrived before
// us, or the program placed by hand.
func (w *Watch) successor(s *versions.Snapshot) successor {
	w.arrival = cmp.Or(s.Arrival(w.cfg.Start.Version), w.arrival)
	name := cmp.Or(s.HeldBack, s.Next)
	next := successor{version: name, arrival: s.Arrival(name)}
	if name == "" || name == versions.ByHand || name == w.cfg.Start.Version || next.arrival <= w.arrival {
		return successor{}
	}

	return next
}

// wanted is what the daemon should end for, and why it must not yet.
func (w *Watch) wanted(s *versions.Snapshot) (next successor, wait string) {
	replaced := successor{launcher: w.replaced(s)}
	next = w.successor(s)
	if next.none() {
		return replaced, ""
	}
	passedOver := next == w.first
	next.launcher = replaced.launcher

	aside, err := w.cfg.Start.StoodAside(next.version, next.arrival)
	switch {
	case err != nil:
		return next, err.Error()
	case aside:
		w.say("The launcher did not stay with %s when this daemon made way for it: it is not done again. choria-provisioner versions release %s tries once more", next.version, next.version)
		return replaced, ""
	case passedOver && !w.Status().Proved:
		// The launcher had a reason to start us all the same. It would take our
		// end, while on trial, for a stop without one.
		return next, "it was there when this daemon was started; this daemon has to prove itself first"
	}
	if where := w.rolledBackElsewhere(next.version); where != "" {
		return next, fmt.Sprintf("it was rolled back by %s; choria-provisioner versions release %s starts it here all the same", where, next.version)
	}

	return next, ""
}

// replaced is the digest of the launcher on disk, when it is another one than at
// the start, no daemon has ended for it before, and we may; else empty.
func (w *Watch) replaced(s *versions.Snapshot) string {
	// On trial our end would be taken for a stop without a reason.
	if w.script == "" || !w.Status().Proved || s.KnownGood != w.cfg.Start.Version {
		return ""
	}
	digest, err := versions.ScriptDigest(w.cfg.Start.Script)
	if err != nil || digest == w.script {
		return ""
	}
	if left, err := w.cfg.Start.LauncherLeft(digest); err != nil || left {
		return ""
	}

	return digest
}

// rolledBackElsewhere says where a version was rolled back, empty when nowhere
// or when a person released it here.
func (w *Watch) rolledBackElsewhere(version string) string {
	list, err := w.cfg.Start.RolledBackElsewhere()
	if err != nil {
		return "an instance, as far as can be read"
	}
	i := slices.IndexFunc(list, func(e versions.Elsewhere) bool { return e.Version == version })
	if i < 0 {
		return ""
	}
	if released, err := w.cfg.Start.Released(version); err == nil && released {
		return ""
	}

	return w.peers.name(list[i].Place)
}

// succeed makes way for a successor when there is one and it is our turn. It
// returns true when the daemon was told to end.
func (w *Watch) succeed(ctx context.Context, s *versions.Snapshot) bool {
	// Also while nothing is to come of it: one that has made way is missed only by
	// those that knew it, and what it rolled back is remembered.
	err := w.ask(ctx)
	if ctx.Err() != nil {
		return false
	}
	next, wait := w.wanted(s)
	if !next.none() && err != nil && w.cfg.Now().Sub(w.unasked) < Patience {
		wait = cmp.Or(wait, fmt.Sprintf("the others cannot be asked: %v", err))
	}
	ready := !next.none() && wait == ""
	// What has just arrived is looked at once more, whole, and the others hear that
	// we are ready; the leader, who goes last, gives them time for that.
	if next != w.candidate || !ready {
		w.candidate, w.looks = next, 0
	}
	w.looks++
	if !ready || w.looks < 2 || w.peers.weLead && len(w.peers.known) > 0 && w.looks < 4 {
		w.show(next, ready, wait)
		if wait != "" {
			w.say("This daemon does not make way for %s yet: %s", next.name(), wait)
		}
		return false
	}
	w.show(next, true, "")

	if wait = w.myTurn(ctx); wait == "" && w.still(next) {
		wait = w.record(next)
	} else if wait == "" {
		wait = "it is gone, or a person has pinned another"
	}
	if wait != "" {
		w.set(func(own *status.Version) { own.StandsAside = false })
		w.show(next, true, wait)
		return false
	}
	w.set(func(own *status.Version) { own.StandsAside = true })
	w.cfg.Log.Warnf("This daemon makes way for %s: nodes in work are finished, no more are begun", next.name())
	w.cfg.Leave(ctx)

	return true
}

// still tells whether nothing has changed while the others were asked: on trial,
// an end for a successor that is gone is an end for nothing.
func (w *Watch) still(next successor) bool {
	s := w.look()
	if s == nil {
		return false
	}
	now, wait := w.wanted(s)

	return now == next && wait == ""
}

// show tells of a successor in our status.
func (w *Watch) show(next successor, ready bool, wait string) {
	w.set(func(own *status.Version) { own.Successor, own.Ready, own.Waits = next.name(), ready, wait })
}

// myTurn says what keeps us from making way now; empty when we may.
func (w *Watch) myTurn(ctx context.Context) (wait string) {
	if !w.unasked.IsZero() {
		return "" // there is nobody to ask, and has not been for long
	}
	if wait := w.peers.inTheWay(w.cfg.Instance); wait != "" {
		return wait
	}
	if w.cfg.Now().Before(w.retry) {
		return "another instance began at the same time"
	}

	return w.claim(ctx)
}

// claim says to the others that we make way, and takes it back when one of them
// says so too: of two that ask after they said so, one at least hears of the
// other.
func (w *Watch) claim(ctx context.Context) (wait string) {
	w.set(func(own *status.Version) { own.StandsAside = true })
	err := w.ask(ctx)
	if err == nil {
		wait = w.peers.busy()
	} else {
		wait = err.Error()
	}
	if wait != "" {
		// Not the same for all, so that they do not meet again.
		w.retry = w.cfg.Now().Add(rand.N(maxRetry))
	}

	return wait
}

// record remembers what the daemon ends for, or says why it cannot: nobody would
// know then not to do it again and again.
func (w *Watch) record(next successor) (wait string) {
	var errs []error
	if next.launcher != "" {
		errs = append(errs, w.cfg.Start.RecordLauncherLeft(next.launcher))
	}
	if next.version != "" {
		errs = append(errs, w.cfg.Start.RecordStandAside(next.version, next.arrival))
	}
	if err := errors.Join(errs...); err != nil {
		w.say("This daemon cannot make way for %s: %v", next.name(), err)
		return err.Error()
	}

	return ""
}

// ask asks all instances, and remembers what those beside us say.
func (w *Watch) ask(ctx context.Context) error {
	list, err := w.cfg.AskAll(ctx)
	if err == nil && !slices.ContainsFunc(list, func(s status.Status) bool { return s.Instance == w.cfg.Instance }) {
		// Nor would those of others come, where the broker lets none through.
		err = errors.New("our own answer does not come back")
	}
	if err != nil {
		if w.unasked.IsZero() {
			w.unasked = w.cfg.Now()
		}
		return err
	}
	w.unasked = time.Time{}
	w.peers.observe(list)
	for _, s := range list {
		if s.Place == w.cfg.Place && s.Instance != w.cfg.Instance {
			w.say("%.100s (instance %.20s) has the same place as this daemon, as copies of a machine do: remove the file place in the state directory of one of them, and start its daemon anew", s.Identity, s.Instance)
		}
	}

	known, err := w.cfg.Start.RolledBackElsewhere()
	if err != nil {
		return err
	}
	if now := w.peers.rolledBack(known); !slices.Equal(now, known) {
		if err := w.cfg.Start.RecordElsewhere(now); err != nil {
			w.say("What others rolled back cannot be remembered: %v", err)
		}
	}

	return nil
}
