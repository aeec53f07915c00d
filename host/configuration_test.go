package host

import (
	"bufio"
	"regexp"
	"strings"
)

// nodeReads reads a configuration file as a node does
// (go-choria v0.30.2, config, parseConfigContents).
func nodeReads(file string) map[string]string {
	item, skip := regexp.MustCompile(`(.+?)\s*=\s*(.+)`), regexp.MustCompile(`^#|^$`)
	found := map[string]string{}
	for scanner := bufio.NewScanner(strings.NewReader(file)); scanner.Scan(); {
		line := strings.TrimSpace(scanner.Text())
		if m := item.FindStringSubmatch(line); m != nil && !skip.MatchString(line) {
			found[m[1]] = m[2]
		}
	}

	return found
}
