package versions

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// ErrRunningUnknown is returned by Retire when it is not known which version
// runs.
var ErrRunningUnknown = errors.New("it is not known which version runs")

// Pin makes a version the one that is started, whatever arrives. It is an error
// to pin what the launcher would not start.
func (l Launcher) Pin(version string) error {
	s, err := l.Read()
	if err != nil {
		return err
	}
	if v, barred := s.Barred(version); barred {
		return fmt.Errorf("%s was rolled back: %s; release it first", version, v.Why)
	}
	switch {
	case s.Startable(version):
		return l.replace(pinned, version+"\n")
	case version == ByHand:
		return fmt.Errorf("there is no program at %s", l.Bin)
	case !ValidName(version):
		return fmt.Errorf("%q is not a version's name", version)
	case s.find(version) == nil:
		return fmt.Errorf("%s is not in %s", version, filepath.Join(l.Libexec, "versions"))
	default:
		return fmt.Errorf("%s is the same file as a version that was rolled back", version)
	}
}

// Unpin removes the pin and returns what was pinned, empty when nothing was. The
// daemon makes way again for what it made way for before.
func (l Launcher) Unpin() (string, error) {
	words, err := l.words(pinned)
	if err != nil {
		return "", err
	}

	return strings.Join(words, " "), errors.Join(l.remove(pinned), l.remove(stoodAside))
}

// Lifted is what a release has changed.
type Lifted struct {
	// Halted is why nothing was started, empty when that was not so.
	Halted string `json:"halted,omitempty"`
	// Verdicts are those that no longer stand.
	Verdicts []Verdict `json:"verdicts,omitempty"`
	// Elsewhere are versions that may be started although another instance
	// rolled them back.
	Elsewhere []string `json:"elsewhere,omitempty"`
}

// Release lifts a halt, and the verdicts on the versions named, which are then
// started again as if they had arrived now. It changes nothing when one of them
// is neither there nor was rolled back.
func (l Launcher) Release(names ...string) (Lifted, error) {
	var lifted Lifted
	s, err := l.Read()
	if err != nil {
		return lifted, err
	}
	text, err := l.read(rolledBack)
	if err != nil {
		return lifted, err
	}
	var errs []error
	for _, name := range names {
		named := slices.ContainsFunc(s.Verdicts, func(v Verdict) bool { return v.From == name })
		if !named && s.find(name) == nil {
			errs = append(errs, fmt.Errorf("%q is neither a version that is there nor one that was rolled back", name))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return lifted, err
	}

	var kept strings.Builder
	for text := range strings.Lines(text) {
		if v := readVerdict(line(text)); slices.Contains(names, v.From) {
			if v.bars(s.KnownGood) {
				lifted.Verdicts = append(lifted.Verdicts, v)
			}
			continue
		}
		kept.WriteString(text)
	}
	if kept.Len() != len(text) {
		if err := l.replace(rolledBack, kept.String()); err != nil {
			return lifted, err
		}
	}
	if len(lifted.Verdicts) > 0 {
		// Else what was gone back to would be held against it.
		if err := errors.Join(l.remove(rollbackPinned), l.remove(rollbackArrival), l.remove(rollbackSettled)); err != nil {
			return lifted, err
		}
	}
	if err := l.forget(names); err != nil {
		return lifted, err
	}
	for _, name := range names {
		if !slices.ContainsFunc(lifted.Verdicts, func(v Verdict) bool { return v.From == name }) {
			lifted.Elsewhere = append(lifted.Elsewhere, name)
		}
		if err := l.add(released, name); err != nil {
			return lifted, err
		}
	}
	lifted.Halted = s.Halted

	return lifted, l.remove(halted)
}

// forget has the daemon stand aside again for versions for which one has before.
func (l Launcher) forget(names []string) error {
	lines, err := l.lines(stoodAside)
	if err != nil || len(lines) == 0 {
		return err
	}

	return l.replaceLines(stoodAside, slices.DeleteFunc(lines, func(line string) bool {
		name, _, _ := strings.Cut(line, " ")
		return slices.Contains(names, name)
	}))
}

// Retire removes versions. It keeps the one that runs and all that arrived after
// it, the known-good one, those pinned by a person or a rollback, the one on
// trial, the one that is started next, and of the others the newest, as many as
// keep. It returns the names, the newest first. ErrRunningUnknown is returned,
// and nothing removed, when no version is known to run.
func (l Launcher) Retire(keep int) (removed, kept []string, err error) {
	s, err := l.Read()
	if err != nil {
		return nil, nil, err
	}
	if s.Running == "" || s.Running != ByHand && s.find(s.Running) == nil {
		return nil, nil, ErrRunningUnknown
	}

	since := s.Arrival(s.Running)
	needed := []string{s.Running, s.KnownGood, s.Pinned, s.RollbackPinned, s.Trial, s.Next}
	for _, v := range s.Versions {
		switch {
		case slices.Contains(needed, v.Name), v.Arrival >= since:
			kept = append(kept, v.Name)
		case keep > 0:
			keep--
			kept = append(kept, v.Name)
		default:
			if err := l.removeVersion(v.Name); err != nil {
				return removed, kept, err
			}
			removed = append(removed, v.Name)
		}
	}

	return removed, kept, nil
}

// removeVersion removes a version's folder, by a name first that is no version's:
// the launcher never sees half of it.
func (l Launcher) removeVersion(name string) error {
	hidden := l.folder(".retired-" + name)
	err := os.RemoveAll(hidden)
	if err == nil {
		err = os.Rename(l.folder(name), hidden)
	}
	if err == nil {
		err = os.RemoveAll(hidden)
	}
	if err != nil {
		return fmt.Errorf("retiring %s: %w", name, err)
	}

	return nil
}
