package config

import (
	"testing"
	"time"
)

func TestParseDuration(t *testing.T) {
	const day = 24 * time.Hour

	for _, tt := range []struct {
		in   string
		want time.Duration
	}{
		// What go-choria v0.30.2 makes of them.
		{"90s", 90 * time.Second},
		{" 5m ", 5 * time.Minute},
		{"1h30m", 90 * time.Minute},
		{"1500ms", 1500 * time.Millisecond},
		{"-5m", -5 * time.Minute},
		{"0s", 0},
		{"1d", day},
		{"1D", day},
		{"2w", 14 * day},
		{"2W", 14 * day},
		{"1m", time.Minute},
		{"1M", 30 * day},
		{"1y", 365 * day},
		{"1Y", 365 * day},
		{"0.5d", 12 * time.Hour},
		{"0.3d", 7 * time.Hour}, // cut to whole hours
		{"-1w", -7 * day},

		// The longest that a time.Duration holds.
		{"292y", 292 * 365 * day},
	} {
		if got, err := parseDuration(tt.in); err != nil || got != tt.want {
			t.Errorf("%q is %v, %v, want %v", tt.in, got, err, tt.want)
		}
	}
}

func TestParseDurationRefused(t *testing.T) {
	for _, in := range []string{
		"", " ", "5", "d", "soon",
		"1w2d", "1h1d", // one unit only, as in go-choria
		"293y",                   // would wrap around to less than nothing
		"1e300y", "nany", "infw", // would be undefined
		"99999999h", // refused by Go itself
	} {
		if got, err := parseDuration(in); err == nil {
			t.Errorf("%q is %v", in, got)
		}
	}
}
