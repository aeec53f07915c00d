//go:build linux

package selfupdate

import (
	"slices"
	"testing"
	"time"

	"github.com/choria-provisioner/provisioner/e2e/harness"
	"github.com/choria-provisioner/provisioner/helper/helperv1"
	"github.com/choria-provisioner/provisioner/internal/choriaserver/trailer"
	"github.com/choria-provisioner/provisioner/internal/simfleet"
	"github.com/choria-provisioner/provisioner/version/ledger"
)

// shortTrial and shortTimeout are the daemon's bounds, as short as a busy machine
// keeps them. What a node may take to be found, updated and configured lies within
// updateLimit, to be given up for dark within darkLimit.
const (
	shortTrial   = 45 * time.Second
	shortTimeout = 20 * time.Second
	updateLimit  = 60 * time.Second
	darkLimit    = updateLimit + ledger.RestartSettles + shortTrial
)

// site is a network with a repository and a daemon.
type site struct {
	bin        harness.Binaries
	broker     *simfleet.Broker
	repository *harness.Repository
	daemon     *harness.Daemon
	// decider is the helper, nil where there is another one.
	decider  *harness.Decider
	stateDir string
	// trial and releaseTimeout are the daemon's settings of these names.
	trial, releaseTimeout time.Duration
	// linked are two programs that were really linked with their versions; all
	// others are made of the first.
	linked [2]harness.Release
}

// newSite starts what a daemon needs.
func newSite(t *testing.T) *site {
	t.Helper()

	return &site{
		bin:            harness.Build(t),
		broker:         harness.StartBroker(t, simfleet.Insecure),
		repository:     harness.StartRepository(t),
		stateDir:       t.TempDir(),
		trial:          shortTrial,
		releaseTimeout: shortTimeout,
		linked:         [2]harness.Release{harness.LinkRelease(t, "1.0.0"), harness.LinkRelease(t, "2.0.0")},
	}
}

// startDaemon starts the daemon with a helper.
func (s *site) startDaemon(t *testing.T, helper any) {
	t.Helper()

	s.daemon = harness.StartDaemon(t, s.bin, harness.DaemonOptions{
		Name:         "provisioner",
		ChoriaConfig: harness.ProvisionerConfig(t, s.broker, "provisioner.example.net"),
		Config: map[string]any{
			"choria_insecure":     true,
			"token":               s.broker.Token(),
			"jwt_verify_cert":     s.broker.VerifyCert(),
			"state_dir":           s.stateDir,
			"features":            map[string]bool{"jwt": true, "upgrades": true},
			"upgrades_repository": s.repository.URL,
			"upgrades_optional":   true,
			"versions":            map[string]string{"trial": s.trial.String(), "release_timeout": s.releaseTimeout.String()},
			"helper":              helper,
		},
	})
}

// restartDaemon ends the daemon and starts another one in its place.
func (s *site) restartDaemon(t *testing.T) {
	t.Helper()

	harness.TerminateDaemon(t, s.daemon)
	s.startDaemon(t, s.decider.Helper)
}

// release is one of the site's own, in its repository.
func (s *site) release(t *testing.T, version string, fault trailer.Fault) harness.Release {
	t.Helper()

	r := s.linked[0].As(t, version, fault)
	s.repository.Publish(t, r)

	return r
}

// startNode starts a server that runs a release.
func (s *site) startNode(t *testing.T, release harness.Release, identity string) *harness.Node {
	t.Helper()

	return harness.StartRelease(t, release, identity, harness.ProvisioningToken(t, s.broker))
}

// expectFetched checks how often nodes have taken a release so far.
func (s *site) expectFetched(t *testing.T, version string, times int) {
	t.Helper()

	ours := harness.Fetches(version)
	var got []string
	for _, path := range s.repository.Requests() {
		if slices.Contains(ours, path) {
			got = append(got, path)
		}
	}
	if !slices.Equal(got, slices.Repeat(ours, times)) {
		t.Errorf("of %s was fetched %v, not all of it %d times", version, got, times)
	}
}

// expectInFleet checks that a server was restarted into the fleet: in all so
// often, and it is connected.
func (s *site) expectInFleet(t *testing.T, node *harness.Node, starts ...harness.NodeStart) {
	t.Helper()

	// all who come over the network are in one account
	accounts := slices.Repeat([]string{"provisioning"}, len(starts))
	harness.Eventually(t, 5*time.Second, "connections of "+node.Identity, func() error {
		return harness.Connections(s.broker, node, accounts...)
	})
	node.ExpectStarts(t, starts...)
	node.ExpectConfiguration(t, harness.InsecureConfiguration(s.broker))
}

// waiting and inFleet are starts of a server.
func waiting(version string) harness.NodeStart {
	return harness.NodeStart{Provisioning: true, Version: version}
}

func inFleet(version string) harness.NodeStart { return harness.NodeStart{Version: version} }

func upgradeTo(release harness.Release, change func(*helperv1.Upgrade)) *helperv1.DecideReleaseResponse {
	u := &helperv1.Upgrade{Version: release.Version, Reason: "the test wants it"}
	if change != nil {
		change(u)
	}

	return &helperv1.DecideReleaseResponse{Decision: &helperv1.DecideReleaseResponse_Upgrade{Upgrade: u}}
}
