package versions

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// The state files that are read or written here.
const (
	knownGood        = "known-good"
	startAttempts    = "start-attempts"
	trial            = "trial"
	trialBlind       = "trial-blind"
	pinned           = "pinned"
	rollbackPinned   = "rollback-pinned"
	rollbackArrival  = "rollback-arrival"
	rollbackSettled  = "rollback-settled"
	rolledBack       = "rolled-back"
	halted           = "halted"
	running          = "running"
	stoodAside       = "stood-aside"
	launcherLeft     = "launcher-left"
	rolledBackByPeer = "rolled-back-elsewhere"
	released         = "released"
	place            = "place"
)

// read returns a state file's text, empty when there is no such file.
func (l Launcher) read(name string) (string, error) {
	path := filepath.Join(l.StateDir, name)
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("state file: %w", err)
	case !info.Mode().IsRegular():
		return "", nil
	}
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("state file: %w", err)
	}

	return string(text), nil
}

// line is the first line of a text without its end, of either kind.
func line(text string) string {
	text, _, _ = strings.Cut(text, "\n")
	return strings.TrimSuffix(text, "\r")
}

// words are those of a state file's first line.
func (l Launcher) words(name string) ([]string, error) {
	text, err := l.read(name)
	return splitWords(line(text)), err
}

// splitWords splits as the launcher does.
func splitWords(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ' ' || r == '\t' || r == '\n' })
}

// version is the version that a state file names, empty when it names none.
func (l Launcher) version(name string) (string, error) {
	words, err := l.words(name)
	if len(words) == 0 || words[0] != ByHand && !ValidName(words[0]) {
		return "", err
	}

	return words[0], nil
}

// lines are the whole lines of a state file that the daemon writes.
func (l Launcher) lines(name string) ([]string, error) {
	text, err := l.read(name)
	if err != nil {
		return nil, err
	}
	var list []string
	for text := range strings.Lines(text) {
		if strings.HasSuffix(text, "\n") && strings.TrimSpace(text) != "" {
			list = append(list, line(text))
		}
	}

	return list, nil
}

// replace writes a state file by rename, so that nobody reads half of it.
func (l Launcher) replace(name, text string) (err error) {
	path := filepath.Join(l.StateDir, name)
	f, err := os.CreateTemp(l.StateDir, "."+name+".")
	if err != nil {
		return fmt.Errorf("state file %s: %w", name, err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
			err = fmt.Errorf("state file %s: %w", name, err)
		}
	}()
	_, err = f.WriteString(text)
	// The launcher may run as another user than the one who uses this command.
	err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close())
	if err != nil {
		return err
	}

	return os.Rename(f.Name(), path)
}

// remove removes a state file; one that is not there is no error.
func (l Launcher) remove(name string) error {
	err := os.Remove(filepath.Join(l.StateDir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("state file: %w", err)
	}

	return nil
}
