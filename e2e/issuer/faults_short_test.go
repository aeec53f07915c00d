//go:build linux && !long

package issuer

// -tags long has more of these.
const (
	longTests      = false
	inventedNodes  = 100_000
	inventedFactor = 2
)
