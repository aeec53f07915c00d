package config

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"
)

// TestDocs compares the page for people with the loader: the same keys, and
// defaults that make no difference when written into a file.
func TestDocs(t *testing.T) {
	page, err := os.ReadFile("../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}

	var documented []string
	row := regexp.MustCompile("(?m)^\\| `([a-z0-9_.]+)` \\| ([a-z ]+) \\| (.+?) \\|")
	for _, m := range row.FindAllStringSubmatch(string(page), -1) {
		key, kind, def := m[1], m[2], m[3]
		documented = append(documented, key)
		if def != "–" {
			compareDefault(t, key, kind, def)
		}
	}

	known := knownKeys()
	slices.Sort(known)
	slices.Sort(documented)
	if !slices.Equal(documented, known) {
		t.Errorf("the page has\n%q\nand the loader\n%q", documented, known)
	}
}

func compareDefault(t *testing.T, key, kind, def string) {
	t.Helper()

	var value any
	switch words := strings.Split(strings.Trim(def, "`"), "`, `"); {
	case strings.HasPrefix(kind, "list"):
		value = words
	case kind == "number" || kind == "boolean":
		if err := yaml.Unmarshal([]byte(words[0]), &value); err != nil {
			t.Fatal(err)
		}
	default:
		value = words[0]
	}

	without := map[string]any{
		"helper": map[string]any{"plugin": "/p"},
		"state":  map[string]any{"nats": map[string]any{"servers": []string{"a"}}},
	}
	file, err := yaml.Marshal(without)
	if err != nil {
		t.Fatal(err)
	}
	want, err := json.Marshal(mustParse(t, string(file)))
	if err != nil {
		t.Fatal(err)
	}

	// The same with the key in it.
	at := without
	parts := strings.Split(key, ".")
	for _, part := range parts[:len(parts)-1] {
		if _, ok := at[part]; !ok {
			at[part] = map[string]any{}
		}
		at = at[part].(map[string]any)
	}
	at[parts[len(parts)-1]] = value
	if file, err = yaml.Marshal(without); err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(mustParse(t, string(file)))
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("%s is not %s by default", key, def)
	}
}
