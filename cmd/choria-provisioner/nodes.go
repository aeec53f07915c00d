package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/choria-io/fisk"

	"github.com/choria-provisioner/provisioner/version/ledger"
	"github.com/choria-provisioner/provisioner/version/ledger/book"
)

// nodesCommand is the command "nodes": what the ledger holds of nodes, for
// people.
type nodesCommand struct {
	ledgerAccess

	json bool
	// query and held are of ls.
	query book.Query
	held  bool

	identity string
	version  string
	why      string
	new      bool
	force    bool
}

func addNodes(c *cli, app *fisk.Application) {
	n := &nodesCommand{ledgerAccess: ledgerAccess{cli: c}}
	nodes := app.Command("nodes", "Shows and changes what is remembered of nodes (docs/upgrades.md)")
	n.addFlags(nodes)

	ls := nodes.Command("ls", "Lists nodes").Alias("list").Action(n.list)
	states := make([]string, 0, len(ledger.States()))
	for _, s := range ledger.States() {
		states = append(states, string(s))
	}
	var wanted []string
	ls.Flag("state", "Only nodes in this state; may be given again").PlaceHolder("STATE").EnumsVar(&wanted, states...)
	ls.Flag("at", "Only nodes that showed this version last, or are on their way to it").PlaceHolder("VERSION").StringVar(&n.query.Version)
	ls.Flag("held", "Only nodes that wait for a person; the same as --state held").UnNegatableBoolVar(&n.held)
	ls.Flag("json", "Print records, a JSON document on each line").UnNegatableBoolVar(&n.json)
	ls.PreAction(func(*fisk.ParseContext) error {
		for _, s := range wanted {
			n.query.States = append(n.query.States, ledger.State(s))
		}
		if n.held {
			n.query.States = append(n.query.States, ledger.Held)
		}
		return nil
	})

	for _, shown := range []struct {
		name, help string
		show       func(io.Writer, *nodesCommand, seen) error
	}{
		{"show", "Shows one node's record", showRecord},
		{"explain", "Shows why a node is where it is: the chain of evidence, what happens next, what a person can do", explain},
		{"history", "Shows a node's versions and verdicts over time", history},
	} {
		cmd := nodes.Command(shown.name, shown.help).Action(func(*fisk.ParseContext) error { return n.show(shown.show) })
		n.addIdentity(cmd)
		cmd.Flag("json", "Print JSON").UnNegatableBoolVar(&n.json)
	}

	pin := nodes.Command("pin", "Allows a node no version but one").Action(n.orders(func() ledger.Event { return ledger.SetPin{Version: n.version, Why: n.why} }))
	n.addIdentity(pin)
	pin.Arg("version", "The version").Required().StringVar(&n.version)
	pin.Flag("why", "Why, for whoever reads it later").Required().StringVar(&n.why)
	n.addNew(pin)

	unpin := nodes.Command("unpin", "Removes a pin").Action(n.orders(func() ledger.Event { return ledger.Unpin{Why: n.why} }))
	n.addIdentity(unpin)
	n.addWhy(unpin)

	release := nodes.Command("release", "Lets a node that is held, dark or convicted start afresh at what it shows").Action(n.orders(func() ledger.Event { return ledger.Release{Why: n.why} }))
	n.addIdentity(release)
	n.addWhy(release)

	expect := nodes.Command("expect", "Says that a node runs a version and that it is good; ends a hold").Action(n.orders(func() ledger.Event { return ledger.Expect{Version: n.version, Why: n.why} }))
	n.addIdentity(expect)
	expect.Arg("version", "The version").Required().StringVar(&n.version)
	n.addWhy(expect)
	n.addNew(expect)

	forget := nodes.Command("forget", "Removes all that is remembered of a node, its barred versions too; it is met anew").Action(n.forget)
	n.addIdentity(forget)
	forget.Flag("force", "Even while a change of it is under way").UnNegatableBoolVar(&n.force)
}

func (n *nodesCommand) addIdentity(cmd *fisk.CmdClause) {
	cmd.Arg("node", "The node's identity, in full").Required().StringVar(&n.identity)
}

func (n *nodesCommand) addWhy(cmd *fisk.CmdClause) {
	cmd.Flag("why", "Why, for whoever reads it later").StringVar(&n.why)
}

func (n *nodesCommand) addNew(cmd *fisk.CmdClause) {
	cmd.Flag("new", "The node may be one of which nothing is remembered").UnNegatableBoolVar(&n.new)
}

func (n *nodesCommand) list(*fisk.ParseContext) error {
	return n.use(func(b book.Book, out io.Writer) error {
		n.query.Brief = !n.json
		table := newTable(out, "IDENTITY", "STATE", "VERSION", "KNOWN GOOD", "TARGET", "SINCE", "NOTE")
		lines := json.NewEncoder(out)
		lines.SetEscapeHTML(false)
		found := false
		for rec, err := range b.List(n.cli.ctx, n.query) {
			switch {
			case errors.Is(err, ledger.ErrCorrupt):
				n.warnSetAside(rec.Identity, err)
				continue
			case err != nil:
				return err
			case n.json:
				err = lines.Encode(rec)
			default:
				err = table.row(rec.Identity, string(rec.State), rec.Seen.Version, knownGood(rec), target(rec), timestamp(rec.Since), note(rec))
			}
			if err != nil {
				return err
			}
			found = true
		}
		if !found && !n.json {
			fmt.Fprintln(n.cli.stderr, "No nodes.")
			return nil
		}

		return table.flush()
	})
}

// seen is a record with what it is judged by.
type seen struct {
	Record   ledger.Record `json:"record"`
	Standing book.Standing `json:"standing"`
	Advice   book.Advice   `json:"advice"`
}

func (n *nodesCommand) show(print func(io.Writer, *nodesCommand, seen) error) error {
	return n.use(func(b book.Book, out io.Writer) error {
		rec, err := b.Get(n.cli.ctx, n.identity)
		if err != nil {
			return n.missing(b, err)
		}
		standing, err := b.Standing(n.cli.ctx)
		if err != nil {
			return err
		}

		return print(out, n, seen{Record: rec, Standing: standing, Advice: book.Advise(rec, standing)})
	})
}

// orders is the action of a command that changes a record.
func (n *nodesCommand) orders(event func() ledger.Event) fisk.Action {
	return func(*fisk.ParseContext) error {
		return n.use(func(b book.Book, out io.Writer) error {
			rec, err := b.Apply(n.cli.ctx, book.Order{Identity: n.identity, Event: event(), New: n.new})
			if err != nil {
				return n.missing(b, err)
			}
			_, err = fmt.Fprintf(out, "%s is %s\n", printable(rec.Identity), standsAt(rec))

			return err
		})
	}
}

func (n *nodesCommand) forget(*fisk.ParseContext) error {
	return n.use(func(b book.Book, out io.Writer) error {
		err := b.Forget(n.cli.ctx, n.identity, n.force)
		if errors.Is(err, ledger.ErrUnderWay) {
			return fmt.Errorf("%w: to forget it now may have it sent the version again; --force does it all the same", err)
		}
		if err != nil {
			return n.missing(b, err)
		}
		_, err = fmt.Fprintf(out, "%s is forgotten\n", printable(n.identity))

		return err
	})
}

// missing says more of a node without a record.
func (n *nodesCommand) missing(b book.Book, err error) error {
	switch {
	case errors.Is(err, ledger.ErrCorrupt):
		return fmt.Errorf("%w: it is set aside (ledger set-aside), and the node is met anew", err)
	case !errors.Is(err, ledger.ErrNotFound):
		return err
	}
	if aside, asideErr := b.SetAside(n.cli.ctx); asideErr == nil && aside[n.identity] != nil {
		return fmt.Errorf("%w: the one it had could not be read and is set aside (ledger set-aside)", err)
	}

	return fmt.Errorf("%w: nodes ls lists all", err)
}

// standsAt is a record in a few words.
func standsAt(rec ledger.Record) string {
	words := []string{string(rec.State)}
	if rec.KnownGood != nil {
		words = append(words, "known good is "+knownGood(rec))
	}
	if rec.Pin != nil {
		words = append(words, "pinned to "+rec.Pin.Version)
	}

	return strings.Join(words, ", ")
}
