package config

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"

	"github.com/ghodss/yaml"
)

// maxSize is the largest file that is read, in bytes; real ones have one or two
// thousand.
const maxSize = 1 << 20

// Load reads a YAML or JSON file. The error holds every reason why the file is
// refused, a line each, and the Config is nil exactly then. The problems are
// the same errors and all warnings, in the order of the file.
//
// Load judges the file alone: whether the daemon can run with it on this
// machine is for [Config.CheckReady] to say.
func Load(path string) (*Config, Problems, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, fmt.Errorf("configuration: %w", err)
	}
	defer f.Close()

	data, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err != nil {
		return nil, nil, fmt.Errorf("configuration: %w", err)
	}

	return Parse(path, data)
}

// Parse is Load for what a file holds; name stands for the path in problems.
func Parse(name string, data []byte) (*Config, Problems, error) {
	d := &decoder{file: name, lines: map[string]int{}}
	doc := defaults()

	if d.decode(doc, data) {
		d.validate(doc)
	}

	d.problems.sort()
	if err := d.problems.Err(); err != nil {
		return nil, d.problems, err
	}

	cfg := &doc.Config
	cfg.file, cfg.lines = d.file, d.lines
	return cfg, d.problems, nil
}

// decode fills the document; false says that there is nothing to judge.
//
// The values come from ghodss/yaml, as in the older provisioner: another parser
// reads the booleans and repeated keys of YAML 1.1 differently, and a site's
// file would change its meaning.
func (d *decoder) decode(doc *document, data []byte) bool {
	if len(data) > maxSize {
		d.add(Error, 0, "", "is larger than %d bytes and no configuration: is the path right?", maxSize)
		return false
	}

	raw, err := yaml.YAMLToJSON(data)
	if err != nil {
		line, message := describeSyntax(err)
		d.add(Error, line, "", "is not valid YAML: %s", message)
		return false
	}

	root, second, err := parseLines(data)
	switch {
	case err != nil:
		line, message := describeSyntax(err)
		d.add(Warning, line, "", "may not be read from here on, compare with check --json: %s", message)
	case second > 0:
		d.add(Warning, second, "", "a second YAML document starts here and is ignored: remove the --- before it")
	}

	switch kind(raw) {
	case "null":
		d.add(Error, 0, "", "the file is empty: it must at least name a helper")
		return false
	case "a map":
		object(doc.fields())(d, value{raw: raw, node: root})
		return true
	default:
		d.add(Error, 0, "", "must hold keys and values, such as workers: 4, and holds %s", kind(raw))
		return false
	}
}

// describeSyntax turns an error of the YAML parser into a line, or 0, and a
// message. Where the parser's own words quote the file they are replaced, for
// what they quote may be a secret.
func describeSyntax(err error) (int, string) {
	m := regexp.MustCompile(`(?s)^yaml: (?:line (\d+): )?(.*)$`).FindStringSubmatch(err.Error())
	if m == nil {
		m = []string{"", "", err.Error()}
	}
	line, _ := strconv.Atoi(m[1])
	// Errors of the parser, unlike those of its scanner, count from 0, and 0 is
	// left out.
	if regexp.MustCompile(`^did not find expected (<document start>|node content|key$|'[,-])`).MatchString(m[2]) {
		line++
	}

	switch {
	case strings.Contains(m[2], "unknown anchor"):
		return line, "a value that starts with * refers to an anchor that is not there; a password or pattern that starts with * needs quotes"
	case strings.Contains(strings.ToLower(m[2]), "map key"):
		return line, "a key is itself a list or a map; was a {{ template }} not filled in?"
	case strings.Contains(m[2], "found unknown escape character"):
		return line, "found unknown escape character; a pattern with \\ needs single quotes"
	default:
		quoted := regexp.MustCompile("(?s)`.*`")
		return line, quoted.ReplaceAllLiteralString(m[2], masked)
	}
}
