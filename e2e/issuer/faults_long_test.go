//go:build linux && long

package issuer

const (
	// longTests has testManyStarts wait until all are provisioned.
	longTests = true
	// inventedNodes are those of testInventedNodes.
	inventedNodes = 1_000_000
)
