package ledger_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/choria-provisioner/provisioner/version/ledger"
)

// upgradesPage is the page for people, or one section of it.
func upgradesPage(t *testing.T, section string) string {
	t.Helper()
	data, err := os.ReadFile("../../docs/upgrades.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(data), "\n"+section+"\n")
	if !found {
		t.Fatalf("the page has no section %q", section)
	}
	level := section[:strings.Index(section, " ")+1]
	text, _, _ := strings.Cut(rest, "\n"+level)

	return text
}

// The tables for people have a row for everything there is, in its order.
func TestPageHasARowForEverything(t *testing.T) {
	for _, table := range []struct {
		section string
		want    []string
	}{
		{"## States", words(ledger.States())},
		{"## Guards", words(ledger.Guards())},
		{"## Held nodes", words(ledger.HoldReasons())},
		{"## Verdicts", words(ledger.Outcomes())},
	} {
		var got []string
		for _, row := range regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\| .+ \\|$").FindAllStringSubmatch(upgradesPage(t, table.section), -1) {
			got = append(got, row[1])
		}
		if !slices.Equal(got, table.want) {
			t.Errorf("%s has the rows\n%q\nand the code\n%q", table.section, got, table.want)
		}
	}
}

func words[S ~string](all []S) []string {
	var words []string
	for _, s := range all {
		words = append(words, string(s))
	}

	return words
}

// The picture has the arrows that the rules have, and no others. An arrow at a
// group is one at each of its states.
func TestPictureIsThatOfTheRules(t *testing.T) {
	drawn := arrows(upgradesPage(t, "## The picture"))
	walked := walk(t)
	for _, arrow := range slices.Sorted(maps.Keys(walked)) {
		if !drawn[arrow] {
			t.Errorf("%s is not drawn: %s", arrow, walked[arrow])
		}
	}
	for _, arrow := range slices.Sorted(maps.Keys(drawn)) {
		if walked[arrow] == "" {
			t.Errorf("%s is drawn, and never walked", arrow)
		}
	}
}

// arrows are those of a mermaid flowchart.
func arrows(picture string) map[string]bool {
	type arrow struct{ from, to string }
	var all []arrow
	groups := map[string][]string{}
	group := ""
	opened := regexp.MustCompile(`^ *subgraph ([a-z]+)`)
	drawn := regexp.MustCompile(`^ *([a-z]+) -->(?:\|[^|]*\|)? ([a-z]+)$`)
	for line := range strings.Lines(picture) {
		line = strings.TrimRight(line, "\n")
		if m := opened.FindStringSubmatch(line); m != nil {
			group = m[1]
		} else if strings.TrimSpace(line) == "end" {
			group = ""
		} else if m := drawn.FindStringSubmatch(line); m != nil {
			all = append(all, arrow{m[1], m[2]})
			if group != "" {
				groups[group] = append(groups[group], m[1], m[2])
			}
		}
	}

	set := map[string]bool{}
	for _, a := range all {
		from := groups[a.from]
		if from == nil {
			from = []string{a.from}
		}
		for _, f := range from {
			set[f+" --> "+a.to] = true
		}
	}

	return set
}

// walk lets what can happen to a node happen in any order, and returns the
// changes of its state, each with an event that made it.
func walk(t *testing.T) map[string]string {
	t.Helper()
	walked := map[string]string{}
	random := rand.New(rand.NewPCG(1, 2))
	jumps := []time.Duration{0, 0, 0, ledger.RestartSettles, trialBound, releaseBound}
	for range 8_000 {
		n := newNode(t)
		n.env.Policy.MainView = random.IntN(2) == 0
		for i := range 30 {
			n.env.Observed = n.env.Observed.Add(jumps[random.IntN(len(jumps))])
			// An inventory does what these would have done before it.
			for _, ev := range []ledger.Event{ledger.Tick{}, ledger.Found{}, n.likely(random, i)} {
				result, err := ledger.Step(n.rec, ev, n.env)
				if err == nil && result.Record.State != n.rec.State {
					walked[fmt.Sprintf("%s --> %s", n.rec.State, result.Record.State)] = fmt.Sprintf("%T%+v", ev, ev)
				}
				n.rec = result.Record
			}
		}
	}

	return walked
}

// likely is an event of the kind that a node in its state would cause.
func (n *node) likely(random *rand.Rand, i int) ledger.Event {
	from, target, attempt := n.rec.Seen.Version, "2.0", ""
	if tr := n.rec.Trial; tr != nil {
		from, target, attempt = tr.From, tr.Version, tr.AttemptID
	}
	version := []string{from, target, target, "1.7"}[random.IntN(4)]
	switch random.IntN(14) {
	case 0, 1, 2:
		return ledger.Inventory{Version: version, LockFree: true}
	case 3, 4:
		d := upgrade([]string{"2.0", "3.0", "4.0"}[random.IntN(3)])
		d.AttemptID, d.Current = fmt.Sprint("u", i), n.rec.Seen.Version
		d.MinHealthy = time.Duration(random.IntN(2)) * time.Hour
		return d
	case 5:
		d := rollback(n.rec.Seen.Version, "")
		d.AttemptID, d.Bar = fmt.Sprint("r", i), random.IntN(2) == 0
		return d
	case 6, 7:
		return ledger.Reply{AttemptID: attempt, Result: []ledger.ReplyResult{
			ledger.ReplyOK, ledger.ReplyOK, ledger.ReplyLost, ledger.ReplyRolledBack, ledger.ReplyBroken, ledger.ReplyRefused, ledger.ReplyNotDone,
		}[random.IntN(7)]}
	case 8:
		return ledger.Upgraded{Version: version}
	case 9:
		return ledger.Configured{}
	case 10:
		return ledger.Refused{Action: "configure", Pass: fmt.Sprint(i)}
	case 11:
		return ledger.SeenInMain{Version: version}
	case 12:
		n.leader()
		return ledger.Found{}
	default:
		return []ledger.Event{ledger.Answered{}, ledger.Answered{}, ledger.Release{}, ledger.Expect{Version: "1.0"}}[random.IntN(4)]
	}
}
