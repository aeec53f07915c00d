package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/choria-io/fisk"

	"github.com/choria-provisioner/provisioner/version/ledger/book"
)

// ledgerCommand is the command "ledger": the whole of what is remembered.
type ledgerCommand struct {
	ledgerAccess

	file  string
	force bool
	json  bool
}

func addLedger(c *cli, app *fisk.Application) {
	l := &ledgerCommand{ledgerAccess: ledgerAccess{cli: c}}
	cmd := app.Command("ledger", "Works with all that is remembered of nodes (docs/upgrades.md)")
	l.addFlags(cmd)

	cmd.Command("export", "Prints all records, a JSON document on each line").Action(l.export)

	imp := cmd.Command("import", "Puts exported records back, all or, when anything is wrong, none").Action(l.importFile)
	imp.Arg("file", "What ledger export printed; standard input when not given").StringVar(&l.file)
	imp.Flag("force", "Replace also records that are newer, or have a change under way").UnNegatableBoolVar(&l.force)

	aside := cmd.Command("set-aside", "Prints records that could not be read and were set aside").Action(l.setAside)
	aside.Flag("json", "Print JSON, the records in base64").UnNegatableBoolVar(&l.json)
}

func (l *ledgerCommand) export(*fisk.ParseContext) error {
	return l.use(func(b book.Book, out io.Writer) error {
		if err := book.Export(l.cli.ctx, b, out, l.warnSetAside); err != nil {
			return err
		}
		aside, err := b.SetAside(l.cli.ctx)
		if err != nil {
			return err
		}
		if len(aside) > 0 {
			fmt.Fprintf(l.cli.stderr, "warning: not among them: %d records that could not be read (ledger set-aside)\n", len(aside))
		}

		return nil
	})
}

func (l *ledgerCommand) importFile(*fisk.ParseContext) error {
	data, err := await(l.cli.ctx, l.read)
	if err != nil {
		return err
	}
	lines, err := book.ReadExport(data)
	if err != nil {
		return fmt.Errorf("nothing is imported:\n%w", err)
	}

	l.create = true
	return l.use(func(b book.Book, out io.Writer) error {
		if err := book.CheckImport(l.cli.ctx, b, lines, l.force); err != nil {
			return fmt.Errorf("nothing is imported (--force replaces what is newer or under way):\n%w", err)
		}
		done, err := book.Import(l.cli.ctx, b, lines, l.force)
		if err != nil {
			return fmt.Errorf("%d of %d records were imported; the ledger changed meanwhile:\n%w", done, len(lines), err)
		}
		_, err = fmt.Fprintf(out, "%d records imported\n", done)

		return err
	})
}

func (l *ledgerCommand) read() ([]byte, error) {
	// The parser makes nothing of a dash, too.
	if l.file == "" {
		return io.ReadAll(l.cli.stdin)
	}

	return os.ReadFile(l.file)
}

func (l *ledgerCommand) setAside(*fisk.ParseContext) error {
	return l.use(func(b book.Book, out io.Writer) error {
		aside, err := b.SetAside(l.cli.ctx)
		if err != nil {
			return err
		}
		if l.json {
			if aside == nil {
				aside = map[string][]byte{}
			}
			return document(out, aside)
		}
		for _, identity := range slices.Sorted(maps.Keys(aside)) {
			if _, err := fmt.Fprintf(out, "%s\t%s\n", printable(identity), printable(string(aside[identity]))); err != nil {
				return err
			}
		}

		return nil
	})
}
