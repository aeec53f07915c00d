//go:build linux && long

package issuer

const (
	// longTests has testManyStarts wait until all are provisioned.
	longTests = true
	// inventedNodes are those of testInventedNodes, and inventedFactor is what
	// they may do to the time of the healthy ones: with ten times the promised
	// number, memory stays bounded, but a broker and a daemon on two cores have
	// a million messages to carry.
	inventedNodes  = 1_000_000
	inventedFactor = 4
)
