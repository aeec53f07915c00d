// Package trailer is what tests append to a copy of the server's program to
// make another release of it: a program that is appended to runs as before, and
// reads what it is from its own end. Linking one anew takes seconds.
package trailer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
)

// Fault is how a release is bad.
type Fault string

const (
	// CrashAtStart is a release that ends with an error as soon as it starts.
	CrashAtStart Fault = "crash-at-start"
	// CrashOnceConfigured is one that waits to be provisioned like any other,
	// and ends with an error when it starts with a configuration.
	CrashOnceConfigured Fault = "crash-once-configured"
	// LoseConfiguration is one that removes its configuration when it starts with
	// it, and waits to be provisioned again.
	LoseConfiguration Fault = "lose-configuration"
	// RefuseConfiguration is one that does not know where its configuration
	// belongs, and so takes none.
	RefuseConfiguration Fault = "refuse-configuration"
)

// Trailer is what a release is.
type Trailer struct {
	// Version is what the server says it runs; empty is what it was linked with.
	Version string `json:"version,omitempty"`
	// Fault is empty for a good release.
	Fault Fault `json:"fault,omitempty"`
}

// mark begins a trailer. The linker leaves the last limit bytes of a program to
// its section headers, in which no text stands.
const (
	mark  = "\nchoriaserver release "
	limit = 1 << 10
)

// Encode returns the bytes to append.
func (t Trailer) Encode() ([]byte, error) {
	data, err := json.Marshal(t)
	if err != nil {
		return nil, err
	}
	data = append([]byte(mark), data...)
	if len(data) > limit {
		return nil, fmt.Errorf("a trailer of %d bytes is longer than %d", len(data), limit)
	}

	return data, nil
}

// Read reads the trailer of a program; it is empty when there is none.
func Read(program string) (Trailer, error) {
	f, err := os.Open(program)
	if err != nil {
		return Trailer{}, err
	}
	defer f.Close()
	stat, err := f.Stat()
	if err != nil {
		return Trailer{}, err
	}

	end := make([]byte, min(stat.Size(), limit))
	if _, err := f.ReadAt(end, stat.Size()-int64(len(end))); err != nil {
		return Trailer{}, fmt.Errorf("the end of %s: %w", program, err)
	}
	i := bytes.LastIndex(end, []byte(mark))
	if i < 0 {
		return Trailer{}, nil
	}
	var t Trailer
	if err := json.Unmarshal(end[i+len(mark):], &t); err != nil {
		return Trailer{}, fmt.Errorf("trailer of %s: %w", program, err)
	}

	return t, nil
}
