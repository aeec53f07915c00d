// Package status lets every instance of the provisioner be asked over NATS, in
// the provisioning account, how it is: people ask with "choria-provisioner
// status" or the nats client, instances ask one another before one makes way for
// its successor. It answers only; nothing can be changed through it.
package status

import (
	"strings"
	"time"
	"unicode/utf8"

	"github.com/choria-provisioner/provisioner/deploy/versions"
)

// Status is what one instance says of itself. Nothing in it is secret.
type Status struct {
	// Instance is the id of this one process.
	Instance string `json:"instance"`
	// Place is the id of where it runs, the same for each process that the
	// launcher there starts; two instances of one identity differ.
	Place    string `json:"place"`
	Identity string `json:"identity"`
	Site     string `json:"site"`
	// Build is the version that was built in, Digest the hex SHA-256 of the
	// program that runs.
	Build   string    `json:"build"`
	Digest  string    `json:"digest"`
	Started time.Time `json:"started"`

	Election Election `json:"election"`
	Gate     Gate     `json:"gate"`
	// Queue is how many nodes wait for a worker, Waiting how many are known and
	// not yet provisioned.
	Queue   int     `json:"queue"`
	Waiting int     `json:"waiting"`
	Workers Workers `json:"workers"`
	Helper  Helper  `json:"helper"`
	// Ledger is the kind of its store, "off" without one.
	Ledger string `json:"ledger"`

	// Version is about the daemon's own version, nil where no launcher started it.
	Version *Version `json:"version,omitempty"`
}

// Election is the part an instance has in the election.
type Election struct {
	// Enabled is false for an instance that always works.
	Enabled bool `json:"enabled"`
	Leader  bool `json:"leader"`
	// Epoch is that of its lease, 0 without one.
	Epoch uint64 `json:"epoch"`
}

// Gate tells whether anything is sent to nodes.
type Gate struct {
	Open bool `json:"open"`
	// Why is why not.
	Why string `json:"why,omitempty"`
}

// Workers are those with a node in hand, and how many there may be.
type Workers struct {
	Busy  int `json:"busy"`
	Limit int `json:"limit"`
}

// Helper is what the helper says it is, and its state.
type Helper struct {
	Name  string `json:"name"`
	Build string `json:"build"`
	State string `json:"state"`
}

// Version is what an instance knows of the daemon's versions where it runs.
type Version struct {
	// Running is the name of the version that answers.
	Running string `json:"running"`
	// Proved tells whether it has proved itself in this run, and Missing what it
	// lacks for that.
	Proved  bool   `json:"proved"`
	Missing string `json:"missing,omitempty"`
	// OnTrial tells whether it goes back if it does not.
	OnTrial   bool   `json:"on_trial"`
	KnownGood string `json:"known_good,omitempty"`
	// Pinned is the version a person has pinned.
	Pinned string `json:"pinned,omitempty"`
	// Successor is a newer version, or "a new launcher", for which the instance is
	// to end; Waits is why it has not yet.
	Successor string `json:"successor,omitempty"`
	Waits     string `json:"waits,omitempty"`
	// Ready is set while it would end for its successor if the others let it.
	Ready bool `json:"ready"`
	// StandsAside is set while it ends for its successor, or is about to.
	StandsAside bool `json:"stands_aside"`
	// Verdicts are the standing ones, the newest last.
	Verdicts []versions.Verdict `json:"verdicts"`
	// Halted is why the launcher would start nothing.
	Halted string `json:"halted,omitempty"`
}

const (
	// mostVerdicts are told; a message has a limit.
	mostVerdicts = 50
	// longestText is what a reason may have, in bytes.
	longestText = 300
	// longestAnswer is more than any answer has, in bytes: a text that has to be
	// escaped takes six times its length.
	longestAnswer = 512 << 10
)

// bounded is s small enough for one message, whoever made it.
func (s Status) bounded() Status {
	for _, text := range []*string{&s.Instance, &s.Place, &s.Identity, &s.Site, &s.Build, &s.Digest, &s.Gate.Why, &s.Helper.Name, &s.Helper.Build, &s.Helper.State, &s.Ledger} {
		*text = cut(*text)
	}
	if s.Version == nil {
		return s
	}
	v := *s.Version
	for _, text := range []*string{&v.Running, &v.Missing, &v.KnownGood, &v.Pinned, &v.Successor, &v.Waits, &v.Halted} {
		*text = cut(*text)
	}
	all := v.Verdicts[max(0, len(v.Verdicts)-mostVerdicts):]
	v.Verdicts = make([]versions.Verdict, 0, len(all))
	for _, verdict := range all {
		verdict.From, verdict.To, verdict.Why = cut(verdict.From), cut(verdict.To), cut(verdict.Why)
		verdict.Outcome = cut(verdict.Outcome)
		v.Verdicts = append(v.Verdicts, verdict)
	}
	s.Version = &v

	return s
}

func cut(text string) string {
	if len(text) > longestText {
		text = text[:longestText] + "..."
	}
	if !utf8.ValidString(text) {
		text = strings.ToValidUTF8(text, "?")
	}

	return text
}
