package fleet

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/choria-provisioner/provisioner/host"
)

// A drained fleet begins nothing, not even what is found later, and cancels
// nothing.
func TestDrain(t *testing.T) {
	for _, tc := range []struct {
		name string
		// paused is a standby, which has nothing to wait for.
		paused bool
		bound  time.Duration
		want   error
	}{
		{name: "what is in work ends by itself", bound: time.Minute},
		{name: "what does not end in time is left to the caller", bound: time.Second, want: context.DeadlineExceeded},
		{name: "paused", paused: true, bound: time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var completed atomic.Bool
				s := newSite(1, func(ctx context.Context, _ string, _ host.Slot) (host.Outcome, error) {
					select {
					case <-time.After(30 * time.Second):
						completed.Store(true)
						return host.Outcome{Result: host.Provisioned}, nil
					case <-ctx.Done():
						return host.Outcome{}, context.Cause(ctx)
					}
				})
				s.found = []string{"n1", "n2"}
				if !tc.paused {
					s.gate.Open()
				}
				ctx, stop := context.WithCancel(t.Context())
				go s.Run(ctx)
				synctest.Wait()

				bounded, cancel := context.WithTimeout(ctx, tc.bound)
				defer cancel()
				if err := s.Drain(bounded); !errors.Is(err, tc.want) {
					t.Errorf("drained with %v, not %v", err, tc.want)
				}
				s.Announced("n3")
				if tc.paused {
					s.gate.Open()
				}
				time.Sleep(5 * time.Minute)
				if want := !tc.paused; completed.Load() != want {
					t.Errorf("the node in work was completed: %v, not %v", !want, want)
				}
				begun := s.worked("n1") + s.worked("n2") + s.worked("n3")
				if want := map[bool]int{true: 0, false: 1}[tc.paused]; begun != want {
					t.Errorf("%d passes, not %d", begun, want)
				}
				stop()
				synctest.Wait()
			})
		})
	}
}
