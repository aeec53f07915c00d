//go:build linux

package harness

import (
	"fmt"
	"testing"
	"time"

	"github.com/choria-provisioner/provisioner/version/ledger"
	"github.com/choria-provisioner/provisioner/version/ledger/socket"
)

// Record asks the daemon of a state directory, over its socket, for what it
// remembers of a node.
func Record(t testing.TB, stateDir, identity string) (ledger.Record, error) {
	t.Helper()

	client, err := socket.Dial(t.Context(), stateDir)
	if err != nil {
		return ledger.Record{}, err
	}
	defer client.Close()

	return client.Get(t.Context(), identity)
}

// AwaitRecord waits until what is remembered of a node is as it should be, and
// returns it. The daemon may be another one meanwhile.
func AwaitRecord(t testing.TB, limit time.Duration, stateDir, identity, what string, ok func(ledger.Record) bool) ledger.Record {
	t.Helper()

	var rec ledger.Record
	Eventually(t, limit, identity+" "+what, func() (err error) {
		rec, err = Record(t, stateDir, identity)
		switch {
		case err != nil:
			return err
		case ok(rec):
			return nil
		case len(rec.Evidence) == 0:
			return fmt.Errorf("it is %s", rec.State)
		default:
			return fmt.Errorf("it is %s with %+v, %+v", rec.State, rec.KnownGood, rec.Evidence[len(rec.Evidence)-1])
		}
	})

	return rec
}
