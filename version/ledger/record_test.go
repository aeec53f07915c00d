package ledger_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/choria-provisioner/provisioner/version/ledger"
)

// The export format does not change unnoticed: a record with every field, as it
// was written when the format was made, is read and written alike.
func TestFormat(t *testing.T) {
	stored, err := os.ReadFile("testdata/record.json")
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(stored) {
		line = bytes.TrimSpace(line)
		rec, err := ledger.Decode("", line)
		if err != nil {
			t.Fatal(err)
		}
		again, err := ledger.Encode(rec)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(again, line) {
			t.Errorf("read    %s\nwritten %s", line, again)
		}
	}

	// Every field is in it.
	var fields []string
	for line := range bytes.Lines(stored) {
		var v any
		if err := json.Unmarshal(line, &v); err != nil {
			t.Fatal(err)
		}
		fields = append(fields, names(v)...)
	}
	var rec bytes.Buffer
	whole := ledger.Record{
		KnownGood: &ledger.KnownGood{}, Pin: &ledger.Pin{Why: "w"}, Retry: &ledger.Retry{}, RolledBack: []ledger.RolledBack{{Change: "c"}},
		NotReversible: []string{"1"}, Recent: []ledger.Begun{{}}, Seen: ledger.Seen{Version: "1", At: time.Unix(1, 0)},
		Hold:     &ledger.Hold{From: "f", Version: "v"},
		Evidence: []ledger.Evidence{{Guard: "g", Outcome: "o", Version: "v"}},
		Trial: &ledger.Change{
			Why: "w", Unanswered: 1, QuietUntil: 1, Answered: 1, MinHealthy: 1, Convicted: true, Confirmed: true, Reached: true,
			FreeAt: 1, Resent: true, Orphaned: true, Refusals: 1, RefusedPass: "p", Returns: 1, SeenInMain: true,
		},
	}
	if err := json.NewEncoder(&rec).Encode(whole); err != nil {
		t.Fatal(err)
	}
	var v any
	if err := json.Unmarshal(rec.Bytes(), &v); err != nil {
		t.Fatal(err)
	}
	for _, name := range names(v) {
		if !slices.Contains(fields, name) {
			t.Errorf("%s is not in the stored example", name)
		}
	}
}

// names are all keys within a JSON value.
func names(v any) []string {
	var all []string
	switch v := v.(type) {
	case map[string]any:
		for name, value := range v {
			all = append(append(all, name), names(value)...)
		}
	case []any:
		for _, value := range v {
			all = append(all, names(value)...)
		}
	}

	return all
}

func TestDecodeRefuses(t *testing.T) {
	for why, data := range map[string]string{
		"no JSON":            "x",
		"a later format":     `{"format":2,"identity":"a","state":"idle"}`,
		"no identity":        `{"format":1,"state":"idle"}`,
		"another's":          `{"format":1,"identity":"b","state":"idle"}`,
		"no state":           `{"format":1,"identity":"a"}`,
		"a trial of nothing": `{"format":1,"identity":"a","state":"trial"}`,
		"held for nothing":   `{"format":1,"identity":"a","state":"held"}`,
		"idle, and a trial":  `{"format":1,"identity":"a","state":"idle","trial":{}}`,
	} {
		if _, err := ledger.Decode("a", []byte(data)); !errors.Is(err, ledger.ErrCorrupt) {
			t.Errorf("%s: %v", why, err)
		}
	}
}
