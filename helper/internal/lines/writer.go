// Package lines cuts what a process writes into lines of a bounded length.
package lines

import "bytes"

// Writer is an io.Writer that hands on whole lines. It never fails and never
// blocks longer than its function. A line over the limit is cut there, and what
// remains of it is dropped. It is not safe for concurrent use.
type Writer struct {
	max  int
	emit func(line string, cut bool)
	buf  []byte
	cut  bool
}

// NewWriter returns a Writer that calls emit for each line, without its end,
// of at most max bytes.
func NewWriter(max int, emit func(line string, cut bool)) *Writer {
	return &Writer{max: max, emit: emit}
}

// Write implements io.Writer.
func (w *Writer) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		end := bytes.IndexByte(p, '\n')
		if end < 0 {
			w.keep(p)
			break
		}
		w.keep(p[:end])
		w.Flush()
		p = p[end+1:]
	}

	return n, nil
}

// Flush hands on a last line that has no end.
func (w *Writer) Flush() {
	if line := bytes.TrimRight(w.buf, "\r"); len(line) > 0 {
		w.emit(string(line), w.cut)
	}
	w.buf, w.cut = w.buf[:0], false
}

func (w *Writer) keep(p []byte) {
	if room := w.max - len(w.buf); len(p) > room {
		p, w.cut = p[:room], true
	}
	w.buf = append(w.buf, p...)
}
