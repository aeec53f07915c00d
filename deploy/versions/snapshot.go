package versions

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// marked is added to the arrival of a version with a marker, so that it is newer
// than all that have only a time stamp.
const marked = 1_000_000_000_000_000

// Version is one that lies in the versions folder, whole.
type Version struct {
	Name string
	// Arrival is greater for a newer version.
	Arrival int64
	// Startable is false for one that was rolled back, and for the same file by
	// another name.
	Startable bool

	changed time.Time
	file    fs.FileInfo
}

// Snapshot is what there is and what the state files say, at one moment.
type Snapshot struct {
	// Versions are those in the folder, the newest first.
	Versions []Version
	// ByHand tells whether the hand-placed program is there.
	ByHand bool

	KnownGood string
	// Pinned is the version a person pinned, RollbackPinned the one gone back to.
	Pinned         string
	RollbackPinned string
	// Trial is the version on trial.
	Trial string
	// Running is the version of the daemon that runs; empty when none does, or
	// when it is not known.
	Running string
	// Halted is why nothing is started until a person says so; empty otherwise.
	Halted string
	// Verdicts are all that were recorded, the oldest first.
	Verdicts []Verdict
	// Next is what the launcher would start now; empty when there is nothing.
	Next string
	// HeldBack is what it would start instead if another instance had not rolled
	// that back; empty when it would start the same.
	HeldBack string

	// elsewhere are the versions that other instances rolled back and nobody
	// released here.
	elsewhere       []string
	rollbackArrival string
	hand            fs.FileInfo
	// barredFiles are the programs of the versions that were rolled back.
	barredFiles []fs.FileInfo
}

// Read reads everything.
func (l Launcher) Read() (*Snapshot, error) {
	s := &Snapshot{}
	var errs []error
	for name, version := range map[string]*string{
		knownGood: &s.KnownGood, pinned: &s.Pinned, rollbackPinned: &s.RollbackPinned, trial: &s.Trial,
	} {
		var err error
		*version, err = l.version(name)
		errs = append(errs, err)
	}
	text, err := l.read(rolledBack)
	errs = append(errs, err)
	s.Verdicts = readVerdicts(text)
	arrival, err := l.words(rollbackArrival)
	errs = append(errs, err)
	if len(arrival) > 0 {
		s.rollbackArrival = arrival[0]
	}
	s.elsewhere, err = l.heldBack()
	errs = append(errs, err)
	s.Running, err = l.runs()
	errs = append(errs, err)
	s.Halted, err = l.halt()
	errs = append(errs, err)
	errs = append(errs, l.look(s))
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	s.Next = s.choose(s.RolledBackElsewhere)
	if all := s.choose(func(string) bool { return false }); all != s.Next {
		s.HeldBack = all
	}

	return s, nil
}

// runs is the version of the daemon that was started last and still runs.
func (l Launcher) runs() (string, error) {
	version, err := l.version(running)
	if version == "" {
		return "", err
	}
	words, err := l.words(running)
	if err != nil || len(words) < 3 || !lives(words[1], words[2]) {
		return "", err
	}

	return version, nil
}

// halt is why nothing is started.
func (l Launcher) halt() (string, error) {
	if _, err := os.Lstat(filepath.Join(l.StateDir, halted)); err != nil {
		return "", nil
	}
	text, err := l.read(halted)

	return cmp.Or(line(text), "no reason given"), err
}

// look finds the versions in the folder.
func (l Launcher) look(s *Snapshot) error {
	if info, err := os.Stat(l.Bin); err == nil && isProgram(l.Bin, info) {
		s.ByHand, s.hand = true, info
	}

	entries, err := os.ReadDir(filepath.Join(l.Libexec, "versions"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("versions: %w", err)
	}
	for _, entry := range entries {
		name := entry.Name()
		if !ValidName(name) || !entry.IsDir() {
			continue
		}
		file, err := os.Lstat(l.Program(name))
		if err != nil || !isProgram(l.Program(name), file) {
			continue
		}
		v := Version{Name: name, file: file}
		if info, err := os.Stat(l.folder(name)); err == nil {
			v.changed = info.ModTime()
		}
		v.Arrival = l.arrival(name, v.changed)
		s.Versions = append(s.Versions, v)
	}
	for _, v := range s.Standing() {
		if info, err := os.Stat(l.Program(v.From)); err == nil && ValidName(v.From) {
			s.barredFiles = append(s.barredFiles, info)
		}
	}
	for i := range s.Versions {
		s.Versions[i].Startable = s.Startable(s.Versions[i].Name)
	}
	slices.SortStableFunc(s.Versions, func(a, b Version) int {
		return cmp.Or(cmp.Compare(b.Arrival, a.Arrival), b.changed.Compare(a.changed))
	})

	return nil
}

// isProgram tells whether the file may be executed and is not empty.
func isProgram(path string, info fs.FileInfo) bool {
	return info.Mode().IsRegular() && info.Size() > 0 && unix.Access(path, unix.X_OK) == nil
}

// arrival is when a version arrived, by its marker, else by the time stamp of
// its folder; a marker that cannot be read makes it the oldest.
func (l Launcher) arrival(name string, changed time.Time) int64 {
	path := filepath.Join(l.folder(name), marker)
	if _, err := os.Lstat(path); err != nil {
		return max(changed.Unix(), 0)
	}
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() {
		return 0
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	words := splitWords(line(string(text)))
	if len(words) == 0 {
		return 0
	}
	number, ok := digits(words[0], 15)
	if !ok {
		return 0
	}

	return marked + number
}

// find is the version of that name, nil when it is not there.
func (s *Snapshot) find(name string) *Version {
	i := slices.IndexFunc(s.Versions, func(v Version) bool { return v.Name == name })
	if i < 0 {
		return nil
	}

	return &s.Versions[i]
}

// Arrival is when a version arrived, 0 for the hand-placed program and for one
// that is not there.
func (s *Snapshot) Arrival(name string) int64 {
	if v := s.find(name); v != nil {
		return v.Arrival
	}

	return 0
}

// Barred tells whether the version was rolled back, and by which verdict.
func (s *Snapshot) Barred(name string) (Verdict, bool) {
	for _, v := range slices.Backward(s.Verdicts) {
		if v.From == name && v.bars(s.KnownGood) {
			return v, true
		}
	}

	return Verdict{}, false
}

// Standing are the verdicts that keep a version from being started, the newest
// of each.
func (s *Snapshot) Standing() []Verdict {
	var list []Verdict
	for _, v := range s.Verdicts {
		if v.From == "" || !v.bars(s.KnownGood) {
			continue
		}
		list = slices.DeleteFunc(list, func(old Verdict) bool { return old.From == v.From })
		list = append(list, v)
	}

	return list
}

// Startable tells whether the launcher would start a version, or the hand-placed
// program, if nothing else were there.
func (s *Snapshot) Startable(name string) bool {
	if _, barred := s.Barred(name); barred {
		return false
	}
	file := s.hand
	if name != ByHand {
		v := s.find(name)
		if v == nil {
			return false
		}
		file = v.file
	}
	if file == nil {
		return false
	}

	return !slices.ContainsFunc(s.barredFiles, func(barred fs.FileInfo) bool { return os.SameFile(file, barred) })
}

// OnTrial tells whether a version has to prove itself: it is not the known-good
// one, and that is there to go back to.
func (s *Snapshot) OnTrial(name string) bool {
	return name != ByHand && s.KnownGood != "" && name != s.KnownGood && s.Startable(s.KnownGood)
}

// RolledBackElsewhere tells whether a version waits because another instance
// rolled it back: only while the known-good version is there, which itself waits
// for nothing that others say.
func (s *Snapshot) RolledBackElsewhere(name string) bool {
	return slices.Contains(s.elsewhere, name) && name != s.KnownGood && s.KnownGood != "" && s.Startable(s.KnownGood)
}

// choose finds what the launcher would start, empty when there is nothing.
func (s *Snapshot) choose(waits func(name string) bool) string {
	var newest *Version
	var barredArrival int64
	byName := slices.SortedFunc(slices.Values(s.Versions), func(a, b Version) int { return cmp.Compare(a.Name, b.Name) })
	for _, v := range byName {
		switch _, barred := s.Barred(v.Name); {
		case barred:
			barredArrival = max(barredArrival, v.Arrival)
		case v.Startable && !waits(v.Name) && s.precedes(&v, newest):
			newest = &v
		}
	}

	if s.Pinned != "" && s.Startable(s.Pinned) {
		return s.Pinned
	}
	next := ByHand
	var newestArrival int64
	if newest != nil {
		next, newestArrival = newest.Name, newest.Arrival
	}
	if s.RollbackPinned != "" && s.Startable(s.RollbackPinned) {
		held, ok := digits(s.rollbackArrival, 16)
		if !ok {
			held = max(barredArrival, s.Arrival(s.RollbackPinned))
		}
		if newestArrival <= held {
			next = s.RollbackPinned
		}
	}
	if !s.Startable(next) {
		return ""
	}

	return next
}

// precedes tells whether v is started rather than the newest of those before it.
func (s *Snapshot) precedes(v, newest *Version) bool {
	switch {
	case newest == nil:
		return true
	case v.Arrival != newest.Arrival:
		return v.Arrival > newest.Arrival
	case !v.changed.Equal(newest.changed):
		return v.changed.After(newest.changed)
	default:
		// Nothing tells them apart: stay with the proved one.
		return newest.Name != s.KnownGood
	}
}
