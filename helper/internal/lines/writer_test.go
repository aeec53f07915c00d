package lines

import (
	"slices"
	"strings"
	"testing"
)

func TestWriter(t *testing.T) {
	cases := []struct {
		why    string
		writes []string
		want   []string
	}{
		{"one line", []string{"a\n"}, []string{"a"}},
		{"a pipe delivers in pieces", []string{"a", "b\nc", "\n"}, []string{"ab", "c"}},
		{"the last line has no end", []string{"a\nb"}, []string{"a", "b"}},
		{"empty lines say nothing", []string{"\n\na\n\r\n"}, []string{"a"}},
		{"windows line ends", []string{"a\r\n"}, []string{"a"}},
		{"exactly the limit is whole", []string{"12345678\n"}, []string{"12345678"}},
		{"a line over the limit is cut, the next is whole", []string{strings.Repeat("x", 20), "yy\nz\n"}, []string{"xxxxxxxx(cut)", "z"}},
	}

	for _, c := range cases {
		t.Run(c.why, func(t *testing.T) {
			var got []string
			w := NewWriter(8, func(line string, cut bool) {
				if cut {
					line += "(cut)"
				}
				got = append(got, line)
			})
			for _, p := range c.writes {
				if n, err := w.Write([]byte(p)); n != len(p) || err != nil {
					t.Fatalf("wrote %d, %v", n, err)
				}
			}
			w.Flush()
			if !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
