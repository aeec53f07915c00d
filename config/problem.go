package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// Severity says whether a problem stops the program.
type Severity int

const (
	// Warning is worth a person's look, the file still loads.
	Warning Severity = iota
	// Error refuses the file, or the start of the daemon.
	Error
)

// String is the word that stands before a problem.
func (s Severity) String() string {
	if s == Error {
		return "error"
	}
	return "warning"
}

// Problem is one thing that is wrong with a configuration file.
type Problem struct {
	// File is the path as it was given, empty for a Config that no file made.
	File string
	// Line counts from 1; 0 is a problem without a line.
	Line int
	// Key is the full name of the key, such as features.pki; empty is a problem
	// of the whole file.
	Key string
	// Message says what is wrong and what to do. It never holds a secret.
	Message  string
	Severity Severity
}

// String is file:line: key: message, without the parts that are not known.
func (p Problem) String() string {
	s := p.Message
	if p.Key != "" {
		s = p.Key + ": " + s
	}
	switch {
	case p.File == "":
		return s
	case p.Line == 0:
		return p.File + ": " + s
	default:
		return fmt.Sprintf("%s:%d: %s", p.File, p.Line, s)
	}
}

// Problems are all problems of one file, in the order of its lines; those
// without a line come last.
type Problems []Problem

// Err is every problem of severity Error in one error, a line each, or nil.
func (ps Problems) Err() error {
	var errs []error
	for _, p := range ps {
		if p.Severity == Error {
			errs = append(errs, errors.New(p.String()))
		}
	}
	return errors.Join(errs...)
}

// Warnings are the problems that do not stop the program.
func (ps Problems) Warnings() Problems {
	var warnings Problems
	for _, p := range ps {
		if p.Severity == Warning {
			warnings = append(warnings, p)
		}
	}
	return warnings
}

func (ps Problems) sort() {
	slices.SortStableFunc(ps, func(a, b Problem) int {
		switch {
		case a.Line == b.Line:
			return 0
		case a.Line == 0:
			return 1
		case b.Line == 0:
			return -1
		default:
			return cmp.Compare(a.Line, b.Line)
		}
	})
}
