package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// parseDuration reads what go-choria's ParseDuration reads: Go's durations, or
// one number of weeks (w W), days (d D), months of 30 days (M) or years of 365
// days (y Y), cut to whole hours. Unlike it, a number too large for a
// time.Duration is refused and does not wrap around.
func parseDuration(s string) (time.Duration, error) {
	s = strings.TrimSpace(s)
	if s == "" {
		return 0, fmt.Errorf("empty duration")
	}

	var unit time.Duration
	last := len(s) - 1
	switch s[last] {
	case 'd', 'D':
		unit = 24 * time.Hour
	case 'w', 'W':
		unit = 7 * 24 * time.Hour
	case 'M':
		unit = 30 * 24 * time.Hour
	case 'y', 'Y':
		unit = 365 * 24 * time.Hour
	default:
		return time.ParseDuration(s)
	}

	n, err := strconv.ParseFloat(s[:last], 64)
	if err != nil {
		return 0, fmt.Errorf("%q is not a number", s[:last])
	}
	hours := n * unit.Hours()
	// Written so that NaN is refused too.
	if !(math.Abs(hours) < math.MaxInt64/float64(time.Hour)) {
		return 0, fmt.Errorf("%q is out of range", s)
	}

	return time.Duration(hours) * time.Hour, nil
}
