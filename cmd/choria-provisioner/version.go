package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/choria-io/fisk"

	versions "github.com/choria-provisioner/provisioner/version"
)

// versionCommand compares versions as the daemon does.
type versionCommand struct {
	cli   *cli
	a, b  string
	stdin bool
}

func addVersion(c *cli, app *fisk.Application) {
	cmd := &versionCommand{cli: c}

	version := app.Command("version", "Works with the versions of nodes")
	compare := version.Command("compare", "Prints -1 when A is older than B to RPM, 0 when they are equal, 1 when A is newer").Action(cmd.compare)
	compare.Arg("a", "A version: [epoch:]version[-release]").StringVar(&cmd.a)
	compare.Arg("b", "The version to compare it with").StringVar(&cmd.b)
	compare.Flag("stdin", "Read pairs instead, a line each, separated by a tab; print a line for each").UnNegatableBoolVar(&cmd.stdin)
}

func (cmd *versionCommand) compare(*fisk.ParseContext) error {
	switch {
	case cmd.stdin && (cmd.a != "" || cmd.b != ""):
		return errors.New("version compare: name two versions or use --stdin, not both")
	case cmd.stdin:
		return cmd.compareLines()
	case cmd.a == "" || cmd.b == "":
		return errors.New("version compare: two versions are needed, or --stdin")
	}
	_, err := fmt.Fprintln(cmd.cli.stdout, versions.Compare(cmd.a, cmd.b))

	return err
}

// compareLines answers every line as soon as nothing more waits to be read, so
// that a program can ask one pair after the other.
func (cmd *versionCommand) compareLines() error {
	in, out := bufio.NewReader(cmd.cli.stdin), bufio.NewWriter(cmd.cli.stdout)

	bad := false
	for number := 1; ; number++ {
		line, err := in.ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return errors.Join(fmt.Errorf("version compare: reading line %d: %w", number, err), out.Flush())
		}
		if line != "" {
			a, b, found := strings.Cut(strings.TrimRight(line, "\r\n"), "\t")
			if !found || strings.Contains(b, "\t") {
				bad = true
				fmt.Fprintf(cmd.cli.stderr, "choria-provisioner: version compare: line %d is not two versions separated by a tab\n", number)
			} else {
				fmt.Fprintln(out, versions.Compare(a, b))
			}
		}
		if in.Buffered() == 0 {
			if err := out.Flush(); err != nil {
				return fmt.Errorf("version compare: writing the answer to line %d: %w", number, err)
			}
		}
		if err != nil {
			break
		}
	}
	if bad {
		return silentError{}
	}

	return nil
}
