//go:build !long

package releases_test

// -tags long kills the daemon of more nodes.
const longTests = false
