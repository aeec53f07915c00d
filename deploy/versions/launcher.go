// Package versions reads and changes the files by which the launcher
// (deploy/launch) and the daemon tell one another about the daemon's own
// versions. It decides nothing: Snapshot.Next says what the launcher would
// start, by the same rules. docs/own-versions.md describes every file.
package versions

import (
	"path/filepath"
	"strings"
	"time"
)

const (
	// Binary is the name of the program in a version's folder.
	Binary = "choria-provisioner"
	// ByHand stands for the hand-placed program where a version is named.
	ByHand = "placed-by-hand"

	marker = ".arrived"
	prefix = "PROVISIONER_LAUNCH_"
)

// Launcher is where a launcher keeps its versions and its state.
type Launcher struct {
	// StateDir holds the state files.
	StateDir string
	// Libexec holds versions/NAME/choria-provisioner.
	Libexec string
	// Bin is the hand-placed program, used where there is no version.
	Bin string
}

// Default is where a launcher without settings keeps things.
func Default() Launcher {
	return Launcher{
		StateDir: "/var/lib/choria-provisioner/launch",
		Libexec:  "/usr/lib/choria-provisioner",
		Bin:      "/usr/sbin/choria-provisioner",
	}
}

// FromEnvironment is the launcher whose settings are in the environment that
// getenv reads.
func FromEnvironment(getenv func(string) string) Launcher {
	l := Default()
	for name, setting := range map[string]*string{"STATE_DIR": &l.StateDir, "LIBEXEC": &l.Libexec, "BIN": &l.Bin} {
		if value := getenv(prefix + name); value != "" {
			*setting = value
		}
	}

	return l
}

// Start is the start of a daemon by a launcher, as the launcher tells it.
type Start struct {
	Launcher
	// Version is what runs: the name of a version, or ByHand.
	Version string
	// Script is the path of the launcher.
	Script string
	// Tick is the time between two looks of the launcher at a version on trial.
	Tick time.Duration
}

// StartedBy returns the start that the environment tells of; ok is false for a
// daemon that no launcher started.
func StartedBy(getenv func(string) string) (start Start, ok bool) {
	start = Start{
		Launcher: FromEnvironment(getenv),
		Version:  getenv(prefix + "VERSION"),
		Script:   getenv(prefix + "SCRIPT"),
		Tick:     5 * time.Second,
	}
	if seconds, ok := digits(getenv(prefix+"TRIAL_TICK"), 9); ok && seconds > 0 {
		start.Tick = time.Duration(seconds) * time.Second
	}

	return start, ValidName(start.Version) || start.Version == ByHand
}

// ValidName tells whether a version may have this name:
// [A-Za-z0-9][A-Za-z0-9._+~^:-]{0,127}.
func ValidName(name string) bool {
	if name == "" || len(name) > 128 || name == ByHand || !alphanumeric(name[0]) {
		return false
	}
	for i := range len(name) {
		if !alphanumeric(name[i]) && !strings.ContainsRune("._+~^:-", rune(name[i])) {
			return false
		}
	}

	return true
}

func alphanumeric(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z'
}

// folder is where a version lies.
func (l Launcher) folder(name string) string { return filepath.Join(l.Libexec, "versions", name) }

// Program is the path of a version's program.
func (l Launcher) Program(name string) string {
	if name == ByHand {
		return l.Bin
	}

	return filepath.Join(l.folder(name), Binary)
}

// digits is a whole number of most digits or fewer, not counting leading zeros.
func digits(word string, most int) (n int64, ok bool) {
	if word == "" || strings.Trim(word, "0123456789") != "" {
		return 0, false
	}
	word = strings.TrimLeft(word, "0")
	if len(word) > most {
		return 0, false
	}
	for i := range len(word) {
		n = n*10 + int64(word[i]-'0')
	}

	return n, true
}
