//go:build long

package releases_test

// longTests kills the daemon of every node.
const longTests = true
