package main

import (
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/sirupsen/logrus"
)

// newLogger returns the logger for a logfile setting: stdout, stderr and
// discard are names, empty is stderr, and any other is a path that gets JSON
// lines, appended. done closes the file.
func newLogger(file, level string, stdout, stderr io.Writer) (logger *logrus.Logger, done func(), err error) {
	parsed, err := logrus.ParseLevel(level)
	if err != nil {
		return nil, nil, fmt.Errorf("loglevel: %w", err)
	}

	logger = logrus.New()
	logger.SetLevel(parsed)
	logger.SetFormatter(&logrus.TextFormatter{FullTimestamp: true})
	done = func() {}

	var out io.Writer
	switch file {
	case "", "stderr":
		out = stderr
	case "stdout":
		out = stdout
	case "discard":
		out = io.Discard
	default:
		f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640)
		if err != nil {
			return nil, nil, fmt.Errorf("logfile: %w", err)
		}
		logger.SetFormatter(&logrus.JSONFormatter{})
		out, done = f, func() { _ = f.Close() }
	}
	// More than one logger writes here: a logger's own lock is not enough.
	logger.SetOutput(&lockedWriter{out: out})

	return logger, done, nil
}

// lockedWriter writes one line at a time.
type lockedWriter struct {
	mu  sync.Mutex
	out io.Writer
}

func (w *lockedWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()

	return w.out.Write(p)
}
