package config

import (
	"testing"
	"time"

	"github.com/choria-io/go-choria/choria"
)

// TestParseDurationAsChoria compares with the parser that read these values
// before.
func TestParseDurationAsChoria(t *testing.T) {
	for _, s := range []string{
		"1s", "90s", "5m", "1h30m", "1.5h", "0s", "-5m", " 5m ",
		"1d", "1D", "2w", "2W", "1M", "1y", "1Y", "0.5d", "0.3d", "-1w", "100y",
		"1500ms", "10us",
	} {
		want, err := choria.ParseDuration(s)
		if err != nil {
			t.Fatalf("%q is not for this table: %v", s, err)
		}
		if got, err := parseDuration(s); err != nil || got != want {
			t.Errorf("%q is %v, %v, want %v", s, got, err, want)
		}
	}
}

func TestParseDuration(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want time.Duration // 0 is refused
	}{
		{in: "1M", want: 30 * 24 * time.Hour},
		{in: "1m", want: time.Minute},
		{in: "292y", want: 292 * 365 * 24 * time.Hour},
		{in: ""},
		{in: " "},
		{in: "5"},
		{in: "d"},
		{in: "1w2d"},      // one unit only, as before
		{in: "1h1d"},      // the same
		{in: "293y"},      // would wrap around to a negative duration
		{in: "1e300y"},    // would be undefined
		{in: "nany"},      // the same
		{in: "infw"},      // the same
		{in: "99999999h"}, // refused by Go itself
	} {
		got, err := parseDuration(tt.in)
		if got != tt.want || (err == nil) != (tt.want != 0) {
			t.Errorf("%q is %v, %v, want %v", tt.in, got, err, tt.want)
		}
	}
}
