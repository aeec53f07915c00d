package demo

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/term"
)

const (
	// lineInterval is the time between two lines of progress where there is no
	// terminal.
	lineInterval = 2 * time.Second

	// fallbackWidth is that of a terminal that does not tell its own.
	fallbackWidth = 80

	// minBar and maxBar are the columns of the bar; a terminal with less room
	// gets none.
	minBar, maxBar = 10, 40

	// redraw goes to the start of the line and empties it.
	redraw = "\r\x1b[K"
)

// progress is the state of the fleet at one moment.
type progress struct {
	total, provisioned, waiting, errors int

	elapsed time.Duration
}

// text is the progress in words, its length the same from first to last.
func (p progress) text() string {
	perMinute := 0.0
	if p.elapsed > 0 {
		perMinute = float64(p.provisioned) / p.elapsed.Minutes()
	}

	digits := len(strconv.Itoa(p.total))
	return fmt.Sprintf("%*d/%d nodes  %5.0f a minute  %*d waiting  %d errors  %5.1fs",
		digits, p.provisioned, p.total, perMinute, digits, p.waiting, p.errors, p.elapsed.Seconds())
}

// bar is the progress as a bar of so many columns.
func (p progress) bar(columns int) string {
	full := columns * p.provisioned / p.total

	return "[" + strings.Repeat("#", full) + strings.Repeat(".", columns-full) + "]"
}

// fit is what a terminal of width columns shows: a line that is too long would
// wrap, and could not be drawn over.
func (p progress) fit(width int) string {
	text := p.text()
	// two brackets, a space before and one after, and the last column stays
	// free: some terminals wrap as soon as it is used
	room := min(width-len(text)-5, maxBar)
	if room >= minBar {
		return " " + p.bar(room) + " " + text
	}

	return text[:max(0, min(len(text), width-1))]
}

// view is what people see of the demo.
type view struct {
	out io.Writer
	// width is the number of columns of the terminal; nil where there is none.
	width func() int
	// drawn is whether there is a line that is drawn over.
	drawn bool
	// last is the progress shown last.
	last progress
}

// newView writes to out. It draws over its lines if to, which stands behind
// out, is a terminal that can do that.
func newView(to, out io.Writer) *view {
	v := &view{out: out}
	f, ok := to.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) || os.Getenv("TERM") == "dumb" {
		return v
	}

	v.width = func() int {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 0 {
			return width
		}
		return fallbackWidth
	}

	return v
}

// say writes a line. What cannot be written is the business of out.
func (v *view) say(format string, args ...any) {
	v.end()
	fmt.Fprintf(v.out, format+"\n", args...)
}

// step says that a part of the demo is there.
func (v *view) step(part, format string, args ...any) {
	v.say("  %-12s %s", part, fmt.Sprintf(format, args...))
}

// progress shows how far the fleet is. Where there is no terminal it shows the
// end, and what comes long enough after the last.
func (v *view) progress(p progress) {
	if v.width != nil {
		fmt.Fprint(v.out, redraw+p.fit(v.width()))
		v.drawn = true

		return
	}

	if p.provisioned == p.total || p.elapsed-v.last.elapsed >= lineInterval {
		v.last = p
		fmt.Fprintln(v.out, "  "+p.text())
	}
}

// end leaves the line that is drawn over as it stands.
func (v *view) end() {
	if v.drawn {
		fmt.Fprintln(v.out)
		v.drawn = false
	}
}

// table writes the report.
func (v *view) table(r report) {
	v.say("")
	r.write(v.out)
}
