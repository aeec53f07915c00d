package helper

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/choria-provisioner/provisioner/helper/helperv1"
)

// Configure answers that the node gets this configuration. It must hold at
// least one entry.
func Configure(configuration map[string]string) *helperv1.ConfigureNodeResponse {
	return ConfigureWith(&helperv1.Configure{Configuration: configuration})
}

// ConfigureWith answers with a configuration and what goes with it:
// certificates, policies, claims.
func ConfigureWith(c *helperv1.Configure) *helperv1.ConfigureNodeResponse {
	return &helperv1.ConfigureNodeResponse{Decision: &helperv1.ConfigureNodeResponse_Configure{Configure: c}}
}

// Defer answers that the node waits, at least the time given; 0 waits for the
// next discovery. The reason stands in the host's log.
func Defer(reason string, after time.Duration) *helperv1.ConfigureNodeResponse {
	d := &helperv1.Defer{Reason: reason}
	if after > 0 {
		d.RetryAfter = durationpb.New(after)
	}

	return &helperv1.ConfigureNodeResponse{Decision: &helperv1.ConfigureNodeResponse_Defer{Defer: d}}
}

// Shutdown answers that the node's server process is told to exit.
func Shutdown(reason string) *helperv1.ConfigureNodeResponse {
	return &helperv1.ConfigureNodeResponse{Decision: &helperv1.ConfigureNodeResponse_Shutdown{Shutdown: &helperv1.Shutdown{Reason: reason}}}
}

// Keep decides that the node stays at its version.
func Keep(reason string) *helperv1.DecideReleaseResponse {
	return &helperv1.DecideReleaseResponse{Decision: &helperv1.DecideReleaseResponse_Keep{Keep: &helperv1.Keep{Reason: reason}}}
}

// Upgrade decides that the node goes to a newer version.
func Upgrade(version, reason string) *helperv1.DecideReleaseResponse {
	return &helperv1.DecideReleaseResponse{Decision: &helperv1.DecideReleaseResponse_Upgrade{Upgrade: &helperv1.Upgrade{Version: version, Reason: reason}}}
}

// Rollback decides that the node goes back to a version; an empty one is the
// version the host knows as good.
func Rollback(version, reason string) *helperv1.DecideReleaseResponse {
	return &helperv1.DecideReleaseResponse{Decision: &helperv1.DecideReleaseResponse_Rollback{Rollback: &helperv1.Rollback{Version: version, Reason: reason}}}
}
