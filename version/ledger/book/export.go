package book

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/choria-provisioner/provisioner/version/ledger"
)

// Line is a line of an export: a record as ledger.Encode writes it, and one
// field more.
type Line struct {
	ledger.Record
	// Observed is the observed time of the ledger at the export.
	Observed ledger.Observed `json:"observed"`
}

// Export writes all records as lines of JSON. unread is told of records that
// cannot be read; they are not part of it.
func Export(ctx context.Context, b Book, w io.Writer, unread func(identity string, err error)) error {
	standing, err := b.Standing(ctx)
	if err != nil {
		return err
	}
	out := json.NewEncoder(w)
	out.SetEscapeHTML(false)
	for rec, err := range b.List(ctx, Query{}) {
		switch {
		case errors.Is(err, ledger.ErrCorrupt):
			unread(rec.Identity, err)
		case err != nil:
			return err
		default:
			if err := out.Encode(Line{Record: rec, Observed: standing.Observed}); err != nil {
				return fmt.Errorf("writing: %w", err)
			}
		}
	}

	return nil
}

// ReadExport reads what Export wrote. All lines that are wrong are in the error,
// one line each.
func ReadExport(data []byte) ([]Line, error) {
	var lines []Line
	var errs []error
	seen := map[string]int{}
	number := 0
	for text := range bytes.Lines(data) {
		number++
		text = bytes.TrimSpace(text)
		if len(text) == 0 {
			continue
		}
		line, err := readLine(text)
		if err == nil && seen[line.Identity] > 0 {
			err = fmt.Errorf("%q stands on line %d already", line.Identity, seen[line.Identity])
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("line %d: %w", number, err))
			continue
		}
		seen[line.Identity] = number
		lines = append(lines, line)
	}

	return lines, errors.Join(errs...)
}

func readLine(text []byte) (Line, error) {
	rec, err := ledger.Decode("", text)
	if err != nil {
		return Line{}, err
	}
	if !validIdentity(rec.Identity) {
		return Line{}, fmt.Errorf("%w: %q", ErrInvalidIdentity, rec.Identity)
	}
	var extra struct {
		Observed *ledger.Observed `json:"observed"`
	}
	if err := json.Unmarshal(text, &extra); err != nil {
		return Line{}, err
	}
	line := Line{Record: rec}
	switch {
	case extra.Observed != nil:
		line.Observed = *extra.Observed
	case len(rec.Evidence) > 0:
		// A record that came another way is as old as its last change.
		line.Observed = rec.Evidence[len(rec.Evidence)-1].Observed
	}

	return line, nil
}

// CheckImport tells of every line that could not be imported, and writes
// nothing.
func CheckImport(ctx context.Context, b Book, lines []Line, force bool) error {
	byIdentity := make(map[string]*Line, len(lines))
	for i := range lines {
		byIdentity[lines[i].Identity] = &lines[i]
	}
	standing, err := b.Standing(ctx)
	if err != nil {
		return err
	}

	var errs []error
	for rec, err := range b.List(ctx, Query{}) {
		line := byIdentity[rec.Identity]
		switch {
		case errors.Is(err, ledger.ErrCorrupt):
		case err != nil:
			return err
		case line != nil:
			// A record may be of a later epoch than the standing read before.
			env := ledger.Env{Epoch: max(standing.Epoch, rec.Epoch), Observed: standing.Observed}
			if _, err := ledger.Step(rec, line.restore(force), env); err != nil {
				errs = append(errs, err)
			}
		}
	}

	return errors.Join(errs...)
}

// importAtOnce is how many records are imported at once: a file writes what it
// is given together with one wait for the disk.
const importAtOnce = 128

// Import restores lines, and returns how many were. It goes on after a line that
// is refused; all that were are in the error.
func Import(ctx context.Context, b Book, lines []Line, force bool) (int, error) {
	var mu sync.Mutex
	var errs []error
	done := 0

	next := make(chan *Line)
	var workers sync.WaitGroup
	for range min(importAtOnce, len(lines)) {
		workers.Go(func() {
			for line := range next {
				_, err := b.Apply(ctx, Order{Identity: line.Identity, Event: line.restore(force)})
				mu.Lock()
				if err != nil {
					errs = append(errs, err)
				} else {
					done++
				}
				mu.Unlock()
			}
		})
	}
	for i := range lines {
		if ctx.Err() != nil {
			break
		}
		next <- &lines[i]
	}
	close(next)
	workers.Wait()

	return done, errors.Join(append(errs, ctx.Err())...)
}

func (l *Line) restore(force bool) ledger.Restore {
	return ledger.Restore{Record: l.Record, Exported: l.Observed, Force: force}
}
