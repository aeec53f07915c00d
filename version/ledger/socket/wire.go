//go:build unix

// Package socket serves a ledger's book on a unix socket in the state directory,
// and asks one. It speaks HTTP with JSON, lists in JSON lines. Who may open the
// socket may do anything: only its owner can.
package socket

import (
	"errors"
	"path/filepath"
	"slices"

	"github.com/choria-provisioner/provisioner/version/ledger"
	"github.com/choria-provisioner/provisioner/version/ledger/book"
)

// FileName is the name of the socket within the state directory.
const FileName = "ledger.sock"

// Path is that of the socket in a state directory.
func Path(dir string) string { return filepath.Join(dir, FileName) }

// order is the wire form of a book.Order.
type order struct {
	Identity string        `json:"identity"`
	Kind     orderKind     `json:"kind"`
	Version  string        `json:"version,omitempty"`
	Why      string        `json:"why,omitempty"`
	New      bool          `json:"new,omitempty"`
	Record   ledger.Record `json:"record,omitzero"`
	// Exported and Force are those of a ledger.Restore.
	Exported ledger.Observed `json:"exported,omitempty"`
	Force    bool            `json:"force,omitempty"`
}

type orderKind string

const (
	pin     orderKind = "pin"
	unpin   orderKind = "unpin"
	release orderKind = "release"
	expect  orderKind = "expect"
	restore orderKind = "restore"
)

func encodeOrder(o book.Order) (order, error) {
	if err := o.Check(); err != nil {
		return order{}, err
	}
	w := order{Identity: o.Identity, New: o.New}
	switch ev := o.Event.(type) {
	case ledger.SetPin:
		w.Kind, w.Version, w.Why = pin, ev.Version, ev.Why
	case ledger.Unpin:
		w.Kind, w.Why = unpin, ev.Why
	case ledger.Release:
		w.Kind, w.Why = release, ev.Why
	case ledger.Expect:
		w.Kind, w.Version, w.Why = expect, ev.Version, ev.Why
	case ledger.Restore:
		w.Kind, w.Record, w.Exported, w.Force = restore, ev.Record, ev.Exported, ev.Force
	}

	return w, nil
}

// decode returns an order without an event for a kind that this build does not
// know.
func (w order) decode() book.Order {
	o := book.Order{Identity: w.Identity, New: w.New}
	switch w.Kind {
	case pin:
		o.Event = ledger.SetPin{Version: w.Version, Why: w.Why}
	case unpin:
		o.Event = ledger.Unpin{Why: w.Why}
	case release:
		o.Event = ledger.Release{Why: w.Why}
	case expect:
		o.Event = ledger.Expect{Version: w.Version, Why: w.Why}
	case restore:
		o.Event = ledger.Restore{Record: w.Record, Exported: w.Exported, Force: w.Force}
	}

	return o
}

// forgetting is what a removal is asked with.
type forgetting struct {
	Identity string `json:"identity"`
	Force    bool   `json:"force,omitempty"`
}

// item is a line of a list: a record, one that cannot be read, or the error that
// ended the list. The last line of a whole list is End.
type item struct {
	Record   *ledger.Record `json:"record,omitempty"`
	Identity string         `json:"identity,omitempty"`
	Error    *failure       `json:"error,omitempty"`
	End      bool           `json:"end,omitempty"`
}

// failure is an error on its way through the socket.
type failure struct {
	Text string `json:"text"`
	// Kind names what it wraps, empty for nothing that is known.
	Kind string `json:"kind,omitempty"`
}

// kind is an error that a caller tells from others.
type kind struct {
	name string
	err  error
}

// kinds are those that cross the socket.
func kinds() []kind {
	return []kind{
		{"not-found", ledger.ErrNotFound},
		{"conflict", ledger.ErrConflict},
		{"corrupt", ledger.ErrCorrupt},
		{"stale-epoch", ledger.ErrStaleEpoch},
		{"closed", ledger.ErrClosed},
		{"nothing-held", ledger.ErrNothingHeld},
		{"under-way", ledger.ErrUnderWay},
		{"invalid-version", ledger.ErrInvalidVersion},
		{"newer", ledger.ErrNewer},
		{"invalid-identity", book.ErrInvalidIdentity},
		{"not-for-people", book.ErrNotForPeople},
	}
}

func newFailure(err error) *failure {
	f := &failure{Text: err.Error()}
	if i := slices.IndexFunc(kinds(), func(k kind) bool { return errors.Is(err, k.err) }); i >= 0 {
		f.Kind = kinds()[i].name
	}

	return f
}

// Error and Unwrap make a failure the error that it was.
func (f *failure) Error() string { return f.Text }

func (f *failure) Unwrap() error {
	if i := slices.IndexFunc(kinds(), func(k kind) bool { return k.name == f.Kind }); i >= 0 {
		return kinds()[i].err
	}

	return nil
}
