package versions

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// asked makes the launcher answer what it would do in each of many places.
const asked = `
script=/nowhere
owner=
passed_over=$NL
while IFS= read -r dir; do
	STATE_DIR=$dir/state LIBEXEC=$dir/lib BIN=$dir/bin
	said=$NL
	choose 2>/dev/null
	answer="$version"
	read_verdicts
	for one in a b c 1.9 1.10 placed-by-hand; do
		is_barred "$one" && answer="$answer barred:$one"
		startable "$one" && answer="$answer startable:$one"
		on_trial "$one" && answer="$answer trial:$one"
	done
	printf '%s\n' "$answer"
done
`

func names() []string { return []string{"a", "b", "c", "1.9", "1.10"} }

// The daemon must think what the launcher does, else one stands aside for what
// the other does not start. The launcher itself is asked, in each of its shells,
// about many random places.
func TestAgreesWithTheLauncher(t *testing.T) {
	text, err := os.ReadFile("../launch")
	if err != nil {
		t.Fatal(err)
	}
	functions, found := strings.CutSuffix(string(text), "main \"$@\"; exit\n")
	if !found {
		t.Fatal("the launcher does not end with its start any more")
	}
	root := t.TempDir()
	script := filepath.Join(root, "ask")
	if err := os.WriteFile(script, []byte(functions+asked), 0o600); err != nil {
		t.Fatal(err)
	}

	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	var places []Launcher
	var input strings.Builder
	for i := range 60 {
		dir := filepath.Join(root, strconv.Itoa(i))
		places = append(places, randomPlace(t, random, dir))
		fmt.Fprintln(&input, dir)
	}

	for _, shell := range [][]string{{"dash"}, {"busybox", "sh"}, {"bash"}} {
		t.Run(shell[0], func(t *testing.T) {
			cmd := exec.Command(shell[0], append(shell[1:], script)...)
			cmd.Stdin = strings.NewReader(input.String())
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("%v: is the Debian package %s installed?", err, shell[0])
			}
			answers := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
			if len(answers) != len(places) {
				t.Fatalf("%d answers, not %d", len(answers), len(places))
			}
			for i, place := range places {
				if got := answer(t, place); got != answers[i] {
					tree, _ := exec.Command("sh", "-c", "cd "+filepath.Dir(place.Bin)+" && ls -laR --time-style=full-iso . && cd state && for f in *; do echo \"$f:\"; od -c \"$f\"; done").CombinedOutput()
					t.Fatalf("seed %d, place %d: we say %q, the launcher %q\n%s", seed, i, got, answers[i], tree)
				}
			}
		})
	}
}

// answer is what the launcher is asked, answered by a Snapshot.
func answer(t *testing.T, l Launcher) string {
	t.Helper()
	s, err := l.Read()
	if err != nil {
		t.Fatal(err)
	}
	answer := s.Next
	for _, name := range append(names(), ByHand) {
		if _, barred := s.Barred(name); barred {
			answer += " barred:" + name
		}
		if s.Startable(name) {
			answer += " startable:" + name
		}
		if s.OnTrial(name) {
			answer += " trial:" + name
		}
	}

	return answer
}

// randomPlace makes a launcher's folders, with all that people and full disks
// leave in them.
func randomPlace(t *testing.T, random *rand.Rand, dir string) Launcher {
	t.Helper()
	pick := func(list ...string) string { return list[random.IntN(len(list))] }
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	l := Launcher{StateDir: filepath.Join(dir, "state"), Libexec: filepath.Join(dir, "lib"), Bin: filepath.Join(dir, "bin")}
	check(os.MkdirAll(l.StateDir, 0o755))
	check(os.MkdirAll(filepath.Join(l.Libexec, "versions"), 0o755))

	anyName := func() string { return pick(append(names(), names()...)...) }
	for i, name := range append(names(), "-x", "two words") {
		program := l.Program(name)
		kind := random.IntN(16)
		if kind > 0 {
			check(os.MkdirAll(filepath.Dir(program), 0o755))
		}
		switch kind {
		case 0:
			continue // not there
		case 1: // still empty
		case 2:
			check(os.WriteFile(program, nil, 0o755))
		case 3:
			check(os.WriteFile(program, []byte("x"), 0o644))
		case 4:
			_ = os.Symlink(l.Program(anyName()), program)
		case 5:
			if os.Link(l.Program(anyName()), program) != nil {
				check(os.WriteFile(program, []byte("x"), 0o755))
			}
		case 6:
			check(os.Remove(filepath.Dir(program)))
			_ = os.Symlink(anyName(), filepath.Dir(program))
			continue
		default:
			check(os.WriteFile(program, []byte("x"), 0o755))
		}
		switch random.IntN(8) {
		case 0:
		case 1:
			check(os.WriteFile(filepath.Join(l.folder(name), marker), []byte(pick("", "x", "12345678901234567890", "-1", "1e3", "\n5", " ")), 0o644))
		case 2:
			check(os.Symlink(pick("nowhere", Binary), filepath.Join(l.folder(name), marker)))
		default:
			number := strconv.Itoa(random.IntN(12))
			check(os.WriteFile(filepath.Join(l.folder(name), marker), []byte(pick("", " ", "000000000000000000")+number+pick("", "\n", "\r\n", " x\n", "\nx", "\t7")), 0o644))
		}
		// Seconds apart: not every shell sees less.
		at := time.Unix(1_700_000_000+int64(random.IntN(100))*1000+int64(i), 0)
		if random.IntN(10) == 0 {
			at = at.AddDate(50, 0, 0)
		}
		check(os.Chtimes(l.folder(name), at, at))
	}
	switch random.IntN(4) {
	case 0:
	case 1:
		_ = os.Symlink(l.Program(anyName()), l.Bin)
	default:
		check(os.WriteFile(l.Bin, []byte("x"), 0o755))
	}

	end := func() string { return pick("\n", "", "\r\n", " more words\n", "\nmore\n") }
	for _, name := range []string{knownGood, pinned, rollbackPinned} {
		switch random.IntN(6) {
		case 0, 1:
		case 2:
			check(os.WriteFile(filepath.Join(l.StateDir, name), []byte(pick("", "\n", "../x", "*", " ", "-x", ByHand, ByHand+"\n")), 0o644))
		default:
			check(os.WriteFile(filepath.Join(l.StateDir, name), []byte(pick("", " ", "\t")+anyName()+end()), 0o644))
		}
	}
	if random.IntN(2) == 0 {
		check(os.WriteFile(filepath.Join(l.StateDir, rollbackArrival),
			[]byte(pick("", "x", "100000000000000"+strconv.Itoa(random.IntN(10)), "0", "1700050000")+end()), 0o644))
	}
	for _, name := range []string{rolledBackByPeer, released} {
		var text strings.Builder
		for range random.IntN(4) {
			text.WriteString(pick("", "", " ") + anyName() + pick("", " p", "\tp", " p", " p q") + pick("\n", "\n", "\r\n"))
		}
		if random.IntN(2) == 0 {
			text.WriteString(anyName() + pick("", " p")) // torn
		}
		if random.IntN(2) == 0 {
			check(os.WriteFile(filepath.Join(l.StateDir, name), []byte(text.String()), 0o644))
		}
	}
	var verdicts strings.Builder
	for range random.IntN(5) {
		verdicts.WriteString(pick(anyName(), anyName(), ByHand, "") + pick(
			"\tb\t1700000000\trolled-back\tcrashed", "\t\t1700000000\thalted\tcrashed", "\tb", "\tb\t17", "\tb\t1\t", "", " words", "\tb\tx\tr", " x\tb\t1\trolled-back\ty\tz",
		) + pick("\n", "\n", "\r\n"))
	}
	text := verdicts.String()
	if random.IntN(4) == 0 {
		text = strings.TrimRight(text, "\r\n")
	}
	if text != "" || random.IntN(2) == 0 {
		check(os.WriteFile(filepath.Join(l.StateDir, rolledBack), []byte(text), 0o644))
	}

	return l
}
