//go:build long

package supervisor_test

// Crashes in TestCrashCycles.
const firstCycles, allCycles = 200, 1000
