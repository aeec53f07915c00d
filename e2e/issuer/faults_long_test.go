//go:build linux && long

package issuer

const (
	// longTests has TestManyStarts wait until all are provisioned.
	longTests = true
	// inventedNodes are those of TestInventedNodes.
	inventedNodes = 1_000_000
)
