//go:build linux

package harness

import (
	"errors"
	"testing"
	"time"
)

// errEnded is what a check of a process returns that has ended: there is
// nothing left to wait for.
var errEnded = errors.New("the process ended")

// pollInterval is the time between two looks at something that takes a while.
const pollInterval = 50 * time.Millisecond

// Eventually returns as soon as check finds nothing wrong; it ends the test
// with the last error when that takes longer than limit, or when a process that
// it looks at has ended.
func Eventually(t testing.TB, limit time.Duration, what string, check func() error) {
	t.Helper()

	deadline := time.Now().Add(limit)
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		if errors.Is(err, errEnded) {
			t.Fatalf("%s: %v", what, err)
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v: %v", what, limit, err)
		}
		<-ticker.C
	}
}
