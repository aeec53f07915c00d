// Package version orders versions as RPM does: [epoch:]version[-release], with
// ~ for what comes before a version and ^ for what comes after it.
package version

import (
	"cmp"
	"math"
	"strconv"
	"strings"
)

// Version is a parsed version. The zero value is the empty version, which sorts
// before every one that holds a letter or a digit.
type Version struct {
	text string
	// epoch is digits without leading zeros, "" for none and for 0.
	epoch      string
	version    string
	release    string
	hasRelease bool
}

// Parse splits s and never fails. The epoch is what stands before the first
// colon, and 0 when that is no integer. The release is what stands behind the
// last dash, as in librpm (rpmio/rpmver.c), so a version may hold dashes.
func Parse(s string) Version {
	v := Version{text: s, version: s}
	if epoch, rest, found := strings.Cut(s, ":"); found {
		v.version = rest
		if isDigits(epoch) {
			v.epoch = strings.TrimLeft(epoch, "0")
		}
	}
	if i := strings.LastIndexByte(v.version, '-'); i >= 0 {
		v.version, v.release, v.hasRelease = v.version[:i], v.version[i+1:], true
	}

	return v
}

// Epoch is 0 when there is none, and the largest int when it does not fit;
// Compare knows no such limit.
func (v Version) Epoch() int {
	if v.epoch == "" {
		return 0
	}
	n, err := strconv.Atoi(v.epoch)
	if err != nil {
		return math.MaxInt
	}

	return n
}

// Version is the part between epoch and release.
func (v Version) Version() string { return v.version }

// Release is empty when there is none.
func (v Version) Release() string { return v.release }

// String is the text that was parsed.
func (v Version) String() string { return v.text }

// Compare is -1 when v is older than o, 0 when neither is, 1 when it is newer.
// A missing release is older than any. It allocates nothing.
func (v Version) Compare(o Version) int {
	if c := compareNumbers(v.epoch, o.epoch); c != 0 {
		return c
	}
	if c := compareSegments(v.version, o.version); c != 0 {
		return c
	}
	switch {
	case v.hasRelease && o.hasRelease:
		return compareSegments(v.release, o.release)
	case v.hasRelease:
		return 1
	case o.hasRelease:
		return -1
	default:
		return 0
	}
}

// Equal tells whether neither is newer; 1.0 and 1.00 are equal.
func (v Version) Equal(o Version) bool { return v.Compare(o) == 0 }

// LessThan tells whether v is older than o.
func (v Version) LessThan(o Version) bool { return v.Compare(o) < 0 }

// GreaterThan tells whether v is newer than o.
func (v Version) GreaterThan(o Version) bool { return v.Compare(o) > 0 }

// Compare is Parse(a).Compare(Parse(b)).
func Compare(a, b string) int { return Parse(a).Compare(Parse(b)) }

// segment is the kind of what a version goes on with, in the order in which
// the kinds sort.
type segment int

const (
	tilde segment = iota
	end
	caret
	letters
	digits
)

// compareSegments orders two versions, or two releases, segment by segment.
// What is neither letter, digit, ~ nor ^ only separates.
func compareSegments(a, b string) int {
	for {
		a, b = trimSeparators(a), trimSeparators(b)
		kind := segmentOf(a)
		if c := cmp.Compare(kind, segmentOf(b)); c != 0 {
			return c
		}

		var c int
		switch kind {
		case end:
			return 0
		case tilde, caret:
			a, b = a[1:], b[1:]
		case letters:
			i, j := run(a, isLetter), run(b, isLetter)
			c = strings.Compare(a[:i], b[:j])
			a, b = a[i:], b[j:]
		case digits:
			i, j := run(a, isDigit), run(b, isDigit)
			c = compareNumbers(a[:i], b[:j])
			a, b = a[i:], b[j:]
		}
		if c != 0 {
			return c
		}
	}
}

// compareNumbers orders digits by value, whatever their number.
func compareNumbers(a, b string) int {
	a, b = strings.TrimLeft(a, "0"), strings.TrimLeft(b, "0")
	if c := cmp.Compare(len(a), len(b)); c != 0 {
		return c
	}

	return strings.Compare(a, b)
}

func segmentOf(s string) segment {
	switch {
	case s == "":
		return end
	case s[0] == '~':
		return tilde
	case s[0] == '^':
		return caret
	case isDigit(s[0]):
		return digits
	default:
		return letters
	}
}

func trimSeparators(s string) string {
	return s[run(s, isSeparator):]
}

// run is the length of the start of s that holds nothing but what is wanted.
func run(s string, wanted func(c byte) bool) int {
	i := 0
	for i < len(s) && wanted(s[i]) {
		i++
	}

	return i
}

func isDigit(c byte) bool     { return c >= '0' && c <= '9' }
func isLetter(c byte) bool    { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }
func isSeparator(c byte) bool { return !isDigit(c) && !isLetter(c) && c != '~' && c != '^' }

func isDigits(s string) bool { return s != "" && run(s, isDigit) == len(s) }
