package version

import "strings"

// maxLength is how long a version may be, in bytes.
const maxLength = 128

// Valid tells whether s may be sent to a node, which puts it into a URL:
// [A-Za-z0-9][A-Za-z0-9._+~^:-]{0,127}.
func Valid(s string) bool {
	if s == "" || len(s) > maxLength || !isLetter(s[0]) && !isDigit(s[0]) {
		return false
	}
	for i := range len(s) {
		if c := s[i]; isSeparator(c) && strings.IndexByte("._+:-", c) < 0 {
			return false
		}
	}

	return true
}

// Normalise drops a v that stands before a digit. Decisions and the ledger
// compare normalised versions; Compare does not, as librpm does not.
func Normalise(s string) string {
	if len(s) > 1 && s[0] == 'v' && isDigit(s[1]) {
		return s[1:]
	}

	return s
}

// Same tells whether two versions are equal once normalised.
func Same(a, b string) bool { return Compare(Normalise(a), Normalise(b)) == 0 }

// Older tells whether a is older than b once both are normalised.
func Older(a, b string) bool { return Compare(Normalise(a), Normalise(b)) < 0 }

// Ambiguous tells whether a and b are different versions to RPM and yet likely
// to be one to a person: they differ by components of zero at the end, as 1.2
// and 1.2.0 do.
func Ambiguous(a, b string) bool {
	if Same(a, b) {
		return false
	}
	v, o := Parse(Normalise(a)), Parse(Normalise(b))
	v.version, o.version = dropZeros(v.version), dropZeros(o.version)

	return v.Equal(o)
}

// dropZeros removes components of zero before the end, a ~ and a ^.
func dropZeros(s string) string {
	i := strings.IndexAny(s, "~^")
	if i < 0 {
		return dropZerosAtEnd(s)
	}

	return dropZerosAtEnd(s[:i]) + s[i:i+1] + dropZeros(s[i+1:])
}

func dropZerosAtEnd(s string) string {
	for {
		i := strings.LastIndexByte(s, '.')
		if i <= 0 || i+1 == len(s) || strings.Trim(s[i+1:], "0") != "" {
			return s
		}
		s = s[:i]
	}
}
