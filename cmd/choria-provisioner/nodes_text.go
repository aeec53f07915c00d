package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/choria-provisioner/provisioner/version/ledger"
)

// timestamp is a time for people, empty for none.
func timestamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}

	return t.UTC().Format(time.RFC3339)
}

// printable takes from a text what a terminal would obey: nodes and helpers
// write parts of it.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, s)
}

func knownGood(rec ledger.Record) string {
	if rec.KnownGood == nil {
		return ""
	}

	return fmt.Sprintf("%s (%s)", rec.KnownGood.Version, rec.KnownGood.Source)
}

func target(rec ledger.Record) string {
	if rec.Trial == nil {
		return ""
	}

	return rec.Trial.Version
}

// note is what a person should know of a record in a list.
func note(rec ledger.Record) string {
	var notes []string
	if rec.Hold != nil {
		notes = append(notes, string(rec.Hold.Reason))
	}
	if rec.Pin != nil {
		notes = append(notes, "pinned to "+rec.Pin.Version)
	}
	if barred := rec.Barred(); len(barred) > 0 {
		notes = append(notes, "barred "+strings.Join(barred, " "))
	}

	return strings.Join(notes, ", ")
}

// table prints rows in columns. It is told the rows one by one and keeps only
// the first of them, whose widths are those of all: a fleet's list is long.
type table struct {
	out    *bufio.Writer
	rows   [][]string
	widths []int
	fixed  bool
}

// measured is how many rows decide about the widths.
const measured = 1000

func newTable(out io.Writer, head ...string) *table {
	return &table{out: bufio.NewWriter(out), rows: [][]string{head}}
}

func (t *table) row(cells ...string) error {
	for i := range cells {
		cells[i] = printable(cells[i])
	}
	if t.fixed {
		return t.print(cells)
	}
	t.rows = append(t.rows, cells)
	if len(t.rows) <= measured {
		return nil
	}

	return t.fix()
}

// fix decides about the widths and prints what waits.
func (t *table) fix() error {
	t.fixed = true
	t.widths = make([]int, len(t.rows[0]))
	for _, row := range t.rows {
		for i, cell := range row {
			t.widths[i] = max(t.widths[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range t.rows {
		if err := t.print(row); err != nil {
			return err
		}
	}
	t.rows = nil

	return nil
}

func (t *table) print(cells []string) error {
	var line strings.Builder
	for i, cell := range cells {
		line.WriteString(cell)
		if i+1 < len(cells) {
			line.WriteString(strings.Repeat(" ", max(t.widths[i]-utf8.RuneCountInString(cell), 0)+2))
		}
	}
	_, err := t.out.WriteString(strings.TrimRight(line.String(), " ") + "\n")

	return err
}

func (t *table) flush() error {
	if !t.fixed && len(t.rows) > 1 {
		if err := t.fix(); err != nil {
			return err
		}
	}

	return t.out.Flush()
}

// document prints one JSON document.
func document(out io.Writer, v any) error {
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")

	return enc.Encode(v)
}

// page is lines for people, with labels of one width.
type page struct{ strings.Builder }

func (p *page) line(format string, args ...any) {
	p.WriteString(printable(fmt.Sprintf(format, args...)) + "\n")
}

// field adds a line with a label, none for no value.
func (p *page) field(label, format string, args ...any) {
	p.line("  %-15s %s", label, fmt.Sprintf(format, args...))
}

func showRecord(out io.Writer, n *nodesCommand, s seen) error {
	rec := s.Record
	if n.json {
		return document(out, rec)
	}

	var p page
	p.line("%s", rec.Identity)
	p.field("state", "%s since %s", rec.State, timestamp(rec.Since))
	if rec.Hold != nil {
		p.field("held", "%s: %s", rec.Hold.Reason, rec.Hold.Why)
	}
	if rec.Seen.Version != "" {
		p.field("version", "%s, shown first at %s", rec.Seen.Version, timestamp(rec.Seen.At))
	}
	if rec.KnownGood != nil {
		p.field("known good", "%s", knownGood(rec))
	}
	if t := rec.Trial; t != nil {
		showChange(&p, t)
	}
	if rec.Pin != nil {
		p.field("pinned", "to %s since %s: %s", rec.Pin.Version, timestamp(rec.Pin.At), rec.Pin.Why)
	}
	for _, b := range rec.RolledBack {
		showLeft(&p, b)
	}
	if len(rec.NotReversible) > 0 {
		p.field("no way back", "from %s", strings.Join(rec.NotReversible, ", "))
	}
	if rec.Retry != nil {
		p.field("failed", "%d updates in a row", rec.Retry.Failures)
	}
	p.field("last written", "%s, in epoch %d", timestamp(rec.ChangedAt()), rec.Epoch)
	_, err := io.WriteString(out, p.String())

	return err
}

func showChange(p *page, t *ledger.Change) {
	p.field("change", "%s from %s to %s: %s", t.Direction, t.From, t.Version, t.Why)
	p.field("sent", "at %s, attempt %s, for the %s time", timestamp(t.SentAt), t.AttemptID, ordinal(t.Sends))
	var facts []string
	for _, fact := range []struct {
		is   bool
		text string
	}{
		{t.Confirmed, "the node confirmed it"},
		{t.Reached, "the node showed it"},
		{t.SeenInMain, "seen in the main account"},
		{t.Refusals > 0, fmt.Sprintf("refused to be configured %d times", t.Refusals)},
		{t.Returns > 0, fmt.Sprintf("came back to provisioning %d times", t.Returns)},
		{!t.Reversible, "there is no way back"},
		{t.Convicted, "the version it leaves is convicted"},
		{t.Orphaned, "its leader died while it was sent"},
	} {
		if fact.is {
			facts = append(facts, fact.text)
		}
	}
	if len(facts) > 0 {
		p.field("", "%s", strings.Join(facts, ", "))
	}
}

func showLeft(p *page, b ledger.RolledBack) {
	label, to := "left", "for "+b.To
	if b.Barred {
		label = "barred"
	}
	if b.To == "" {
		to = "with nothing to go back to"
	}
	p.field(label, "%s at %s, %s (%s): %s", b.From, timestamp(b.At), to, b.Outcome, b.Why)
}

// ordinal is a small number as a rank.
func ordinal(n int) string {
	switch n {
	case 1:
		return "first"
	case 2:
		return "second"
	case 3:
		return "third"
	default:
		return fmt.Sprintf("%dth", n)
	}
}

func explain(out io.Writer, n *nodesCommand, s seen) error {
	if n.json {
		return document(out, s)
	}

	rec := s.Record
	var p page
	p.line("%s is %s since %s: %s", rec.Identity, rec.State, timestamp(rec.Since), s.Advice.Now)
	p.line("")
	p.line("What led here")
	if len(rec.Evidence) == ledger.EvidenceLimit {
		p.line("  (the oldest of %d entries that are kept)", ledger.EvidenceLimit)
	}
	if _, err := io.WriteString(out, p.String()); err != nil {
		return err
	}
	chain := newTable(out, "  TIME", "KIND", "STATE", "WHAT")
	for _, e := range rec.Evidence {
		what := e.Text
		if e.Guard != "" {
			what += fmt.Sprintf(" (guard %s)", e.Guard)
		}
		if e.Outcome != "" {
			what = fmt.Sprintf("%s %s: %s", e.Version, e.Outcome, what)
		}
		if err := chain.row("  "+timestamp(e.At), string(e.Kind), string(e.State), what); err != nil {
			return err
		}
	}
	if err := chain.flush(); err != nil {
		return err
	}

	p.Reset()
	p.line("")
	p.line("What happens next")
	for _, next := range s.Advice.Next {
		p.line("  - %s", next)
	}
	if len(s.Advice.Do) > 0 {
		p.line("")
		p.line("What you can do")
		for _, do := range s.Advice.Do {
			p.line("  - %s", do)
		}
	}
	_, err := io.WriteString(out, p.String())

	return err
}

// chapter is an entry of a node's history.
type chapter struct {
	At      time.Time `json:"at"`
	Version string    `json:"version,omitempty"`
	What    string    `json:"what"`
	Why     string    `json:"why"`
}

func history(out io.Writer, n *nodesCommand, s seen) error {
	chapters := chaptersOf(s.Record)
	if n.json {
		if chapters == nil {
			chapters = []chapter{}
		}
		return document(out, chapters)
	}
	t := newTable(out, "TIME", "VERSION", "WHAT", "WHY")
	for _, c := range chapters {
		if err := t.row(timestamp(c.At), c.Version, c.What, c.Why); err != nil {
			return err
		}
	}

	return t.flush()
}

// chaptersOf are the versions and verdicts of a record over time. What the chain
// of evidence has lost is known of versions that were left.
func chaptersOf(rec ledger.Record) []chapter {
	var chapters []chapter
	var oldest time.Time
	if len(rec.Evidence) > 0 {
		oldest = rec.Evidence[0].At
	}
	for _, b := range rec.RolledBack {
		if b.At.Before(oldest) || oldest.IsZero() {
			chapters = append(chapters, chapter{At: b.At, Version: b.From, What: string(b.Outcome), Why: b.Why})
		}
	}
	slices.SortFunc(chapters, func(a, b chapter) int { return a.At.Compare(b.At) })

	shown := ""
	for _, e := range rec.Evidence {
		c := chapter{At: e.At, Version: e.Version, Why: e.Text}
		switch {
		case e.Kind == ledger.Judged:
			c.What = string(e.Outcome)
		case e.Kind == ledger.Intended:
			c.What = "sent"
		case e.Kind == ledger.Ordered:
			c.What = "ordered"
		case e.Kind == ledger.Observation && shows(e.State) && e.Version != "" && e.Version != shown:
			c.What, shown = "shown", e.Version
		case e.Kind == ledger.Observation && e.State == ledger.Dark:
			c.What = "dark"
		default:
			continue
		}
		chapters = append(chapters, c)
	}

	return chapters
}

// shows tells whether an observation in a state is of the version that the node
// ran: in the others it may be of the one it was sent.
func shows(s ledger.State) bool {
	return s == ledger.Idle || s == ledger.Arrived || s == ledger.Trial
}
