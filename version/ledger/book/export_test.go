package book_test

import (
	"strings"
	"testing"
	"time"

	"github.com/choria-provisioner/provisioner/version/ledger"
	"github.com/choria-provisioner/provisioner/version/ledger/book"
)

const idle = `{"format":1,"identity":"NODE","state":"idle","since":"2026-01-02T03:04:05Z","epoch":1,"seen":{"version":"1.0"}}`

func node(identity string) string { return strings.Replace(idle, "NODE", identity, 1) }

// Everything that is wrong is said at once.
func TestReadExportNamesEveryLine(t *testing.T) {
	lines, err := book.ReadExport([]byte(strings.Join([]string{
		node("a"),
		"",
		"{",
		node("b c"),
		node("a"),
		strings.Replace(node("d"), `"format":1`, `"format":2`, 1),
		strings.Replace(node("e"), "idle", "trial", 1),
		strings.Replace(node("f"), `"epoch":1`, `"epoch":1,"observed":"soon"`, 1),
		node("g"),
	}, "\n")))
	want := []string{
		"line 3: the record cannot be read: unexpected end of JSON input",
		`line 4: not an identity: "b c"`,
		`line 5: "a" stands on line 1 already`,
		"line 6: the record cannot be read: format 2, this build reads 1",
		"line 7: the record cannot be read: state trial and trial do not fit",
		`line 8: observed time: time: invalid duration "soon"`,
	}
	if err == nil || err.Error() != strings.Join(want, "\n") {
		t.Errorf("%v", err)
	}
	if len(lines) != 2 {
		t.Errorf("%d lines are good", len(lines))
	}
}

// A record that was not exported, as `nodes show --json` prints it, is as old as
// its last change.
func TestReadExportWithoutObservedTime(t *testing.T) {
	bare := strings.TrimSuffix(node("a"), "}") + `,"evidence":[{"at":"2026-01-02T03:04:05Z","observed":"2h0m0s","epoch":1,"kind":"event","text":"first met","state":"idle"}]}`
	lines, err := book.ReadExport([]byte(bare))
	if err != nil || len(lines) != 1 || lines[0].Observed != ledger.Observed(2*time.Hour) {
		t.Errorf("%+v, %v", lines, err)
	}
}
