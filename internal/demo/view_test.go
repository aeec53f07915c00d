package demo

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

func TestViewWithoutTerminal(t *testing.T) {
	var b bytes.Buffer
	v := newView(&b, &b)
	v.step("fleet", "%d nodes", 10)
	for _, p := range []progress{
		{total: 10, waiting: 10, elapsed: 100 * time.Millisecond}, // too early to tell
		{total: 10, provisioned: 5, waiting: 4, elapsed: 2 * time.Second},
		{total: 10, provisioned: 6, waiting: 3, elapsed: 3 * time.Second}, // too soon after
		{total: 10, provisioned: 10, errors: 1, elapsed: 3500 * time.Millisecond},
	} {
		v.progress(p)
	}
	v.end()

	const want = `  fleet        10 nodes
   5/10 nodes    150 a minute   4 waiting  0 errors    2.0s
  10/10 nodes    171 a minute   0 waiting  1 errors    3.5s
`
	if b.String() != want {
		t.Errorf("got:\n%s", b.String())
	}
}

func TestViewOnTerminal(t *testing.T) {
	var b bytes.Buffer
	v := &view{out: &b, width: func() int { return 80 }}
	v.progress(progress{total: 2, waiting: 2, elapsed: 100 * time.Millisecond})
	v.progress(progress{total: 2, provisioned: 1, waiting: 1, elapsed: 200 * time.Millisecond})
	v.say("done")

	const want = redraw + " [.....................] 0/2 nodes      0 a minute  2 waiting  0 errors    0.1s" +
		redraw + " [##########...........] 1/2 nodes    300 a minute  1 waiting  0 errors    0.2s" +
		"\ndone\n"
	if b.String() != want {
		t.Errorf("got:\n%q", b.String())
	}
}

// A line that wraps could not be drawn over.
func TestProgressFits(t *testing.T) {
	p := progress{total: 20000, provisioned: 10000, waiting: 9968, errors: 3, elapsed: time.Minute}
	for width := range 200 {
		line := p.fit(width)
		if len(line) > max(0, width-1) {
			t.Errorf("%d columns for a terminal of %d: %q", len(line), width, line)
		}
		if bar := strings.Contains(line, "#"); bar != (width >= len(p.text())+5+minBar) {
			t.Errorf("bar in a terminal of %d: %q", width, line)
		}
	}
}
