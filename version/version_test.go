package version_test

import (
	"bufio"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/choria-provisioner/provisioner/version"
)

// vector is a pair and librpm's answer.
type vector struct {
	a, b string
	want int
}

func vectors(t testing.TB) []vector {
	t.Helper()
	f, err := os.Open("testdata/rpm-evr-vectors.tsv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()

	var vs []vector
	for scanner := bufio.NewScanner(f); scanner.Scan(); {
		fields := strings.Split(scanner.Text(), "\t")
		want, err := strconv.Atoi(fields[2])
		if err != nil {
			t.Fatal(err)
		}
		vs = append(vs, vector{a: fields[0], b: fields[1], want: want})
	}
	if len(vs) < 100 {
		t.Fatalf("only %d vectors", len(vs))
	}

	return vs
}

func TestCompareAnswersAsLibrpm(t *testing.T) {
	for _, v := range vectors(t) {
		if got := version.Compare(v.a, v.b); got != v.want {
			t.Errorf("Compare(%q, %q) = %d, librpm says %d", v.a, v.b, got, v.want)
		}
		if got := version.Compare(v.b, v.a); got != -v.want {
			t.Errorf("Compare(%q, %q) = %d, librpm says %d", v.b, v.a, got, -v.want)
		}
	}
}

// What rpmver.c says and the vectors do not hold.
func TestCompareAtTheEdges(t *testing.T) {
	for _, row := range []struct {
		why  string
		a, b string
		want int
	}{
		{"a missing release is older than one that sorts before the empty one", "1.0", "1.0-~1", -1},
		{"a missing release is older than an empty one", "1.0", "1.0-", -1},
		{"the last dash begins the release", "1.0-9-1", "1.0-10-1", -1},
		{"an epoch of zero is no epoch", "0:1.0", "1.0", 0},
		{"an empty epoch is no epoch", ":1.0", "1.0", 0},
		{"an epoch that is no integer is 0", "x:1.0", "1.0", 0},
		{"epochs are compared by value", "010:1", "9:1", 1},
		{"an epoch too large for any integer type is still larger", "18446744073709551617:1", "18446744073709551616:1", 1},
		{"the first colon ends the epoch", "1:2:3", "1:2:4", -1},
		{"a colon within a version separates", "1:2:3", "1:2.3", 0},
		{"a v is a letter here", "v1.0", "1.0", -1},
		{"letters outside ASCII separate", "1é2", "1.2", 0},
		{"separators only are the empty version", "...", "", 0},
		{"a tilde is older than nothing", "~", "", -1},
		{"a caret is newer than nothing", "^", "", 1},
	} {
		if got := version.Compare(row.a, row.b); got != row.want {
			t.Errorf("%s: Compare(%q, %q) = %d, want %d", row.why, row.a, row.b, got, row.want)
		}
	}
}

func TestParse(t *testing.T) {
	for _, row := range []struct {
		in               string
		epoch            int
		version, release string
	}{
		{"1:2.0-3.el9", 1, "2.0", "3.el9"},
		{"2.0", 0, "2.0", ""},
		{"x:2.0", 0, "2.0", ""},
		{"-1:2.0", 0, "2.0", ""},
		{"99999999999999999999:1", math.MaxInt, "1", ""},
		{"1.0-2-3", 0, "1.0-2", "3"},
		{"", 0, "", ""},
	} {
		v := version.Parse(row.in)
		if v.Epoch() != row.epoch || v.Version() != row.version || v.Release() != row.release || v.String() != row.in {
			t.Errorf("Parse(%q) = epoch %d, version %q, release %q, text %q", row.in, v.Epoch(), v.Version(), v.Release(), v)
		}
	}
}

func TestOrderIsSaidAlike(t *testing.T) {
	for _, v := range vectors(t) {
		a, b := version.Parse(v.a), version.Parse(v.b)
		if a.LessThan(b) != (v.want < 0) || a.GreaterThan(b) != (v.want > 0) || a.Equal(b) != (v.want == 0) {
			t.Errorf("%q and %q: less %v, greater %v, equal %v; librpm says %d", v.a, v.b, a.LessThan(b), a.GreaterThan(b), a.Equal(b), v.want)
		}
	}
}

func TestCompareAllocatesNothing(t *testing.T) {
	vs := vectors(t)
	allocations := testing.AllocsPerRun(10, func() {
		for _, v := range vs {
			version.Compare(v.a, v.b)
		}
	})
	if allocations != 0 {
		t.Errorf("%v allocations for %d comparisons", allocations, len(vs))
	}
}

func BenchmarkCompare(b *testing.B) {
	vs := vectors(b)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		v := vs[i%len(vs)]
		version.Compare(v.a, v.b)
	}
}

func FuzzOrder(f *testing.F) {
	vs := vectors(f)
	for i, v := range vs {
		f.Add(v.a, v.b, vs[(i+1)%len(vs)].a)
	}
	f.Fuzz(func(t *testing.T, a, b, c string) {
		ab, bc, ac := version.Compare(a, b), version.Compare(b, c), version.Compare(a, c)
		if version.Compare(a, a) != 0 {
			t.Errorf("%q does not equal itself", a)
		}
		if ab != -version.Compare(b, a) {
			t.Errorf("%q and %q compare alike both ways: %d", a, b, ab)
		}
		if ab <= 0 && bc <= 0 && ac > 0 || ab >= 0 && bc >= 0 && ac < 0 {
			t.Errorf("%q, %q, %q: %d, %d, but %d", a, b, c, ab, bc, ac)
		}
		if ab == 0 && ac != bc {
			t.Errorf("%q equals %q, but %q tells them apart: %d, %d", a, b, c, ac, bc)
		}
		if version.Parse(a).Equal(version.Parse(b)) != (ab == 0) {
			t.Errorf("Equal(%q, %q) is not what Compare says: %d", a, b, ab)
		}
		if version.Ambiguous(a, b) != version.Ambiguous(b, a) {
			t.Errorf("Ambiguous(%q, %q) depends on the order", a, b)
		}
		if version.Ambiguous(a, b) && version.Same(a, b) {
			t.Errorf("%q and %q are both the same and ambiguous", a, b)
		}
	})
}
