package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestExportAndImport(t *testing.T) {
	onBothWays(t, func(t *testing.T, m *memory) {
		code, exported, stderr := m.run(t, "ledger", "export")
		if code != 0 || stderr != "" || strings.Count(exported, "\n") != 5 {
			t.Fatalf("code %d: %s\n%s", code, stderr, exported)
		}
		file := filepath.Join(t.TempDir(), "export.jsonl")
		if err := os.WriteFile(file, []byte(exported), 0o600); err != nil {
			t.Fatal(err)
		}

		// Into a ledger that is not there yet, as after the loss of a machine.
		dir := t.TempDir()
		code, stdout, stderr := invoke(t, "", "ledger", "import", file, "--state-dir", dir)
		if code != 0 || stdout != "5 records imported\n" {
			t.Fatalf("code %d: %s", code, stderr)
		}
		_, before, _ := m.run(t, "nodes", "ls")
		_, after, _ := invoke(t, "", "nodes", "ls", "--state-dir", dir)
		if after != before {
			t.Errorf("came back as\n%swant\n%s", after, before)
		}

		// Back where it came from, where nothing has changed.
		code, stdout, stderr = m.run(t, "ledger", "import", file)
		if code != 0 || stdout != "5 records imported\n" {
			t.Errorf("code %d: %s", code, stderr)
		}
		if _, again, _ := m.run(t, "ledger", "export"); again != exported {
			t.Errorf("changed to\n%swant\n%s", again, exported)
		}

		// Where something has, it is refused whole.
		m.run(t, "nodes", "pin", "idle.example.net", "1.0", "--why", "freeze")
		m.run(t, "nodes", "release", "held.example.net")
		code, _, stderr = m.run(t, "ledger", "import", file)
		if code != 4 || strings.Count(stderr, "the ledger holds a newer record") != 2 || !strings.Contains(stderr, "nothing is imported (--force") {
			t.Errorf("code %d: %s", code, stderr)
		}
		code, _, stderr = m.run(t, "ledger", "import", file, "--force")
		if code != 0 {
			t.Errorf("code %d: %s", code, stderr)
		}
		if _, forced, _ := m.run(t, "nodes", "ls"); forced != before {
			t.Errorf("came back as\n%swant\n%s", forced, before)
		}
	})
}

func TestImportSaysAllThatIsWrong(t *testing.T) {
	m := newMemory(t)
	_, exported, _ := m.run(t, "ledger", "export")
	spoilt := regexp.MustCompile(`"state":"(held|trial)"`).ReplaceAllString(exported, `"state":"lost"`)

	dir := t.TempDir()
	code, _, stderr := invoke(t, spoilt, "ledger", "import", "-", "--state-dir", dir)
	if code != 1 || !strings.Contains(stderr, ": nothing is imported:\nline 2: ") || !strings.Contains(stderr, "\nline 5: ") {
		t.Errorf("code %d: %s", code, stderr)
	}
	if _, err := os.Stat(filepath.Join(dir, "ledger.db")); err == nil {
		t.Error("a ledger was made")
	}
}
