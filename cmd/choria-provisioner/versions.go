package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/choria-io/fisk"

	"github.com/choria-provisioner/provisioner/deploy/versions"
)

// versionsCommand shows and changes the daemon's own versions on this machine.
type versionsCommand struct {
	cli      *cli
	launcher versions.Launcher
	json     bool

	version string
	names   []string
	keep    int
}

func addVersions(c *cli, app *fisk.Application) {
	cmd := &versionsCommand{cli: c, launcher: versions.FromEnvironment(os.Getenv)}

	v := app.Command("versions", "Shows and changes the versions of the provisioner itself on this machine (docs/own-versions.md)")
	for _, f := range []struct {
		name, help string
		value      *string
	}{
		{"state-dir", "The launcher's STATE_DIR", &cmd.launcher.StateDir},
		{"libexec", "The launcher's LIBEXEC", &cmd.launcher.Libexec},
		{"bin", "The launcher's BIN", &cmd.launcher.Bin},
	} {
		v.Flag(f.name, f.help).PlaceHolder("PATH").Default(*f.value).StringVar(f.value)
	}

	ls := v.Command("ls", "Lists versions, the newest first, and the verdicts that stand").Alias("list").Action(cmd.list)
	ls.Flag("json", "Print JSON").UnNegatableBoolVar(&cmd.json)

	pin := v.Command("pin", "Has the launcher start one version, whatever arrives").Action(cmd.changes(cmd.pin))
	pin.Arg("version", "The version, or "+versions.ByHand).Required().StringVar(&cmd.version)

	v.Command("unpin", "Removes the pin").Action(cmd.changes(cmd.unpin))

	release := v.Command("release", "Lifts a halt, and has versions started again that were rolled back, here or by another instance").Action(cmd.changes(cmd.release))
	release.Arg("versions", "Versions that were rolled back").StringsVar(&cmd.names)
	release.Flag("json", "Print JSON").UnNegatableBoolVar(&cmd.json)

	retire := v.Command("retire", "Removes old versions; never one that runs, is known to be good, pinned, on trial or newer than the one that runs").Action(cmd.changes(cmd.retire))
	retire.Flag("keep", "How many others to keep, the newest").Required().IntVar(&cmd.keep)
	retire.Flag("json", "Print JSON").UnNegatableBoolVar(&cmd.json)
}

// listedVersion is a version as ls prints it.
type listedVersion struct {
	Version string            `json:"version"`
	Path    string            `json:"path"`
	Marks   []string          `json:"marks"`
	Verdict *versions.Verdict `json:"verdict,omitempty"`
}

// listing is all that ls prints.
type listing struct {
	Versions []listedVersion `json:"versions"`
	// Gone are the standing verdicts on versions that are not there any more.
	Gone   []versions.Verdict `json:"gone"`
	Halted string             `json:"halted,omitempty"`
}

// changes is the action of a command that changes state files. In a place where
// no launcher ever was it would do nothing, and say that all is well.
func (cmd *versionsCommand) changes(do func() error) func(*fisk.ParseContext) error {
	return func(*fisk.ParseContext) error {
		if _, err := os.Stat(cmd.launcher.StateDir); err != nil {
			return fmt.Errorf("no launcher keeps its state here: %w; name the place with --state-dir", err)
		}
		return do()
	}
}

func (cmd *versionsCommand) list(*fisk.ParseContext) error {
	s, err := cmd.launcher.Read()
	if err != nil {
		return err
	}
	l := cmd.listing(s)
	if cmd.json {
		return cmd.printJSON(l)
	}

	return l.print(cmd.cli.stdout)
}

func (cmd *versionsCommand) listing(s *versions.Snapshot) listing {
	l := listing{Versions: []listedVersion{}, Gone: []versions.Verdict{}, Halted: s.Halted}
	listed := map[string]bool{}
	add := func(name string) {
		listed[name] = true
		v := listedVersion{Version: name, Path: cmd.launcher.Program(name), Marks: []string{}}
		for _, m := range []struct {
			is   bool
			mark string
		}{
			{s.Running == name, "running"},
			{s.KnownGood == name, "known-good"},
			{s.Pinned == name, "pinned"},
			{s.RollbackPinned == name, "gone-back-to"},
			{s.Trial == name, "on-trial"},
			{s.Next == name && s.Running != name, "next"},
			{s.RolledBackElsewhere(name), "rolled-back-elsewhere"},
		} {
			if m.is {
				v.Marks = append(v.Marks, m.mark)
			}
		}
		if verdict, barred := s.Barred(name); barred {
			v.Marks = append(v.Marks, versions.RolledBack)
			v.Verdict = &verdict
		} else if !s.Startable(name) {
			v.Marks = append(v.Marks, "same-as-rolled-back")
		}
		l.Versions = append(l.Versions, v)
	}
	for _, v := range s.Versions {
		add(v.Name)
	}
	if s.ByHand {
		add(versions.ByHand)
	}
	for _, v := range s.Standing() {
		if !listed[v.From] {
			l.Gone = append(l.Gone, v)
		}
	}

	return l
}

func (l listing) print(w io.Writer) error {
	if l.Halted != "" {
		fmt.Fprintf(w, "HALTED: %s\nRepair the cause, then: choria-provisioner versions release, and start the launcher.\n\n", plain(l.Halted))
	}
	if len(l.Versions) == 0 {
		fmt.Fprintln(w, "There are no versions.")
	} else {
		table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(table, "VERSION\tMARKS\tVERDICT")
		for _, v := range l.Versions {
			verdict := "-"
			if v.Verdict != nil {
				verdict = v.Verdict.At.Format(time.RFC3339) + " " + plain(v.Verdict.Why)
			}
			fmt.Fprintf(table, "%s\t%s\t%s\n", v.Version, cmp.Or(strings.Join(v.Marks, ","), "-"), verdict)
		}
		if err := table.Flush(); err != nil {
			return err
		}
	}
	if len(l.Gone) > 0 {
		fmt.Fprintln(w)
	}
	for _, v := range l.Gone {
		fmt.Fprintf(w, "Not there any more: %s\n", plain(verdictText(v)))
	}

	return nil
}

func (cmd *versionsCommand) pin() error {
	if err := cmd.launcher.Pin(cmd.version); err != nil {
		return err
	}
	fmt.Fprintf(cmd.cli.stdout, "%s is pinned: the launcher starts it from the daemon's next end on, whatever arrives. To change now, send the daemon TERM through its service manager.\n", cmd.version)

	return nil
}

func (cmd *versionsCommand) unpin() error {
	was, err := cmd.launcher.Unpin()
	switch {
	case err != nil:
		return err
	case was == "":
		fmt.Fprintln(cmd.cli.stdout, "Nothing was pinned.")
	default:
		fmt.Fprintf(cmd.cli.stdout, "%s is no longer pinned.\n", plain(was))
	}

	return nil
}

func (cmd *versionsCommand) release() error {
	lifted, err := cmd.launcher.Release(cmd.names...)
	if err != nil {
		return err
	}
	if cmd.json {
		return cmd.printJSON(lifted)
	}

	w := cmd.cli.stdout
	if lifted.Halted != "" {
		fmt.Fprintf(w, "No longer halted (%s): start the launcher.\n", plain(lifted.Halted))
	} else if len(cmd.names) == 0 {
		fmt.Fprintln(w, "Nothing was halted. Name the versions to be started again.")
	}
	for _, v := range lifted.Verdicts {
		fmt.Fprintf(w, "Lifted: %s\n", plain(verdictText(v)))
	}
	for _, name := range lifted.Elsewhere {
		fmt.Fprintf(w, "%s is started here even if another instance has rolled it back.\n", plain(name))
	}

	return nil
}

func (cmd *versionsCommand) retire() error {
	if cmd.keep < 0 {
		return fmt.Errorf("--keep is %d, less than 0", cmd.keep)
	}
	removed, kept, err := cmd.launcher.Retire(cmd.keep)
	if err != nil {
		for _, name := range removed {
			fmt.Fprintf(cmd.cli.stderr, "Removed %s\n", name)
		}
		return fmt.Errorf("retire: %w", err)
	}
	if cmd.json {
		return cmd.printJSON(map[string][]string{"removed": append([]string{}, removed...), "kept": append([]string{}, kept...)})
	}
	for _, name := range removed {
		fmt.Fprintf(cmd.cli.stdout, "Removed %s\n", name)
	}
	fmt.Fprintf(cmd.cli.stdout, "Removed %d versions, kept %d.\n", len(removed), len(kept))

	return nil
}

func (cmd *versionsCommand) printJSON(v any) error {
	enc := json.NewEncoder(cmd.cli.stdout)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")

	return enc.Encode(v)
}
