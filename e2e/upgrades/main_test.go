//go:build linux

package upgrades

import (
	"flag"
	"fmt"
	"os"
	"testing"
)

// Tests of bounds and restarts wait most of their time.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}
