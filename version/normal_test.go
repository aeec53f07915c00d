package version_test

import (
	"strings"
	"testing"

	"github.com/choria-provisioner/provisioner/version"
)

func TestValid(t *testing.T) {
	for _, row := range []struct {
		why  string
		in   string
		want bool
	}{
		{"as Choria names its releases", "0.30.2", true},
		{"every character that is allowed", "aZ0._+~^:-", true},
		{"one character", "1", true},
		{"as long as may be", strings.Repeat("1", 128), true},
		{"one too long", strings.Repeat("1", 129), false},
		{"nothing", "", false},
		{"a way out of the repository", "../1", false},
		{"another path", "1/2", false},
		{"an option", "-1", false},
		{"starts with a tilde", "~1", false},
		{"another host", "1@host", false},
		{"a query", "1?x", false},
		{"an escape", "1%2f", false},
		{"a blank", "1 2", false},
		{"a line break at the end", "1\n", false},
		{"a digit that is none in ASCII", "1٢", false},
		{"NUL", "1\x00", false},
	} {
		if got := version.Valid(row.in); got != row.want {
			t.Errorf("%s: Valid(%q) = %v", row.why, row.in, got)
		}
	}
}

func TestNormalise(t *testing.T) {
	for in, want := range map[string]string{
		"v1.2": "1.2", "1.2": "1.2", "v": "v", "version1": "version1", "V1": "V1", "vv1": "vv1", "": "",
	} {
		if got := version.Normalise(in); got != want {
			t.Errorf("Normalise(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestSameAndOlderIgnoreALeadingV(t *testing.T) {
	if !version.Same("v1.2", "1.2") || version.Same("v1.2", "1.3") {
		t.Error("a leading v is not ignored by Same")
	}
	if !version.Older("v1.2", "1.3") || version.Older("v1.3", "1.2") || version.Older("v1.2", "1.2") {
		t.Error("a leading v is not ignored by Older")
	}
}

func TestAmbiguous(t *testing.T) {
	for _, row := range []struct {
		why  string
		a, b string
		want bool
	}{
		{"the case of the issue", "1.2", "1.2.0", true},
		{"behind a v", "v1.2", "1.2.0", true},
		{"more than one", "1", "1.0.0", true},
		{"longer zeros", "1.2", "1.2.00", true},
		{"before a tilde", "1.2~rc1", "1.2.0~rc1", true},
		{"before a release", "1.2-1", "1.2.0-1", true},
		{"equal is not ambiguous", "1.2", "1.2", false},
		{"equal but for a v is not ambiguous", "v1.2", "1.2", false},
		{"equal to RPM is not ambiguous", "1.2", "1.02", false},
		{"another version", "1.2", "1.2.1", false},
		{"ends in zero, but no component of it", "1.2", "1.20", false},
		{"another release", "1.2-1", "1.2.0-2", false},
		{"another epoch", "1:1.2", "1.2.0", false},
		{"a pre-release is no release", "1.2", "1.2.0~rc1", false},
	} {
		if got := version.Ambiguous(row.a, row.b); got != row.want {
			t.Errorf("%s: Ambiguous(%q, %q) = %v", row.why, row.a, row.b, got)
		}
		if got := version.Ambiguous(row.b, row.a); got != row.want {
			t.Errorf("%s: Ambiguous(%q, %q) = %v", row.why, row.b, row.a, got)
		}
	}
}
