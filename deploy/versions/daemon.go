package versions

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Prove writes a version into known-good and clears the count of its failures.
// The file is written anew even if it names the version already: that is how the
// launcher knows that this run has reported.
func (l Launcher) Prove(version string) error {
	if err := l.replace(knownGood, version+"\n"); err != nil {
		return err
	}

	return l.remove(startAttempts)
}

// Blind tells the launcher that no broker is reached, by something new in
// trial-blind.
func (l Launcher) Blind() error { return l.replace(trialBlind, rand.Text()+"\n") }

// Place is an id of this state directory, which one launcher has for itself. It is
// made by the first call.
func (l Launcher) Place() (string, error) {
	words, err := l.words(place)
	if err != nil {
		return "", err
	}
	if len(words) > 0 && ValidName(words[0]) {
		return words[0], nil
	}
	made := strings.ToLower(rand.Text()[:16])

	return made, l.replace(place, made+"\n")
}

// remembered bounds what is kept of versions past.
const remembered = 100

// StoodAside tells whether a daemon ended for a version before, as it arrived
// then.
func (l Launcher) StoodAside(version string, arrival int64) (bool, error) {
	lines, err := l.lines(stoodAside)
	return slices.Contains(lines, asideLine(version, arrival)), err
}

// RecordStandAside records that the daemon ends for a version.
func (l Launcher) RecordStandAside(version string, arrival int64) error {
	return l.add(stoodAside, asideLine(version, arrival))
}

func asideLine(version string, arrival int64) string {
	return version + " " + strconv.FormatInt(arrival, 10)
}

// add adds a line to a file of the daemon's, once, and forgets the oldest.
func (l Launcher) add(name, text string) error {
	lines, err := l.lines(name)
	if err != nil || slices.Contains(lines, text) {
		return err
	}
	lines = append(lines, text)

	return l.replaceLines(name, lines[max(0, len(lines)-remembered):])
}

// replaceLines writes a file of lines, or removes it when there are none.
func (l Launcher) replaceLines(name string, lines []string) error {
	if len(lines) == 0 {
		return l.remove(name)
	}

	return l.replace(name, strings.Join(lines, "\n")+"\n")
}

// LauncherLeft tells whether a daemon ended before for the launcher of that
// digest.
func (l Launcher) LauncherLeft(digest string) (bool, error) {
	words, err := l.words(launcherLeft)
	return len(words) > 0 && words[0] == digest, err
}

// RecordLauncherLeft records that the daemon ends for the launcher of that
// digest.
func (l Launcher) RecordLauncherLeft(digest string) error {
	return l.replace(launcherLeft, digest+"\n")
}

// Elsewhere is a version that was rolled back by another instance.
type Elsewhere struct {
	Version string
	// Place is where: see package status.
	Place string
}

// RolledBackElsewhere are those that were recorded.
func (l Launcher) RolledBackElsewhere() ([]Elsewhere, error) {
	lines, err := l.lines(rolledBackByPeer)
	var list []Elsewhere
	for _, line := range lines {
		if words := splitWords(line); len(words) == 2 {
			list = append(list, Elsewhere{words[0], words[1]})
		}
	}

	return list, err
}

// heldBack are the versions that other instances rolled back and nobody released
// here.
func (l Launcher) heldBack() ([]string, error) {
	list, err := l.RolledBackElsewhere()
	let, letErr := l.lines(released)
	var names []string
	for _, e := range list {
		if !slices.Contains(let, e.Version) {
			names = append(names, e.Version)
		}
	}

	return names, errors.Join(err, letErr)
}

// RecordElsewhere replaces what is recorded of other instances.
func (l Launcher) RecordElsewhere(list []Elsewhere) error {
	var lines []string
	for _, e := range list {
		lines = append(lines, e.Version+" "+e.Place)
	}

	return l.replaceLines(rolledBackByPeer, lines)
}

// Released tells whether a person said that the version may be started here
// although another instance rolled it back.
func (l Launcher) Released(version string) (bool, error) {
	lines, err := l.lines(released)
	return slices.Contains(lines, version), err
}

// Digest is the hex SHA-256 of a file.
func Digest(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}

	return hex.EncodeToString(h.Sum(nil)), nil
}

// ScriptDigest is the Digest of a launcher that could be run; it is an error
// where the launcher would not be run either, as far as can be seen from here.
func ScriptDigest(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if !isProgram(path, info) {
		return "", fmt.Errorf("%s is empty or may not be executed", filepath.Base(path))
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	if !strings.HasPrefix(string(text), "#!") {
		return "", errors.New("it does not name its shell")
	}
	sum := sha256.Sum256(text)

	return hex.EncodeToString(sum[:]), nil
}
