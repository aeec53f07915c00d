//go:build !long

package supervisor_test

// Crashes in TestCrashCycles; -tags long has more of them.
const firstCycles, allCycles = 10, 60
