package trailer_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/choria-provisioner/provisioner/internal/choriaserver/trailer"
)

func TestTrailer(t *testing.T) {
	program := slices.Repeat([]byte("program"), 1000)
	stamp := func(version string) []byte {
		end, err := trailer.Trailer{Version: version, Fault: trailer.CrashAtStart}.Encode()
		if err != nil {
			t.Fatal(err)
		}

		return end
	}

	for _, test := range []struct {
		why     string
		content []byte
		want    string
	}{
		{"a program as it was linked", program, ""},
		{"a program shorter than a trailer may be", []byte("#!"), ""},
		{"a trailer", slices.Concat(program, stamp("1.2.3")), "1.2.3"},
		{"a release that was made of another one", slices.Concat(program, stamp("1.2.3"), stamp("2")), "2"},
	} {
		t.Run(test.why, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "program")
			if err := os.WriteFile(path, test.content, 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := trailer.Read(path)
			if err != nil || got.Version != test.want || (got.Fault == "") != (test.want == "") {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
}

func TestTrailerTooLong(t *testing.T) {
	_, err := trailer.Trailer{Version: strings.Repeat("1", 2000)}.Encode()
	if err == nil {
		t.Error("a trailer that nobody would find was encoded")
	}
}
