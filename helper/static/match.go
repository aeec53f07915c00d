package static

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// match is the conditions of a rule, by what they look at: "identity",
// "facts os.family". All of them must hold; without any every node matches.
type match map[string]*condition

// condition holds when the value is one of several texts or patterns.
type condition struct {
	path     []string
	words    []string
	patterns []*regexp.Regexp
}

// matchConfig is a match as it is configured.
type matchConfig struct {
	Identity   alternatives    `json:"identity"`
	Version    alternatives    `json:"version"`
	Facts      json.RawMessage `json:"facts"`
	Extensions json.RawMessage `json:"extensions"`
}

// alternatives are one value or a list of them. It is not nil once it was set.
type alternatives []any

// UnmarshalJSON implements json.Unmarshaler.
func (a *alternatives) UnmarshalJSON(b []byte) error {
	var v any
	if err := json.Unmarshal(b, &v); err != nil {
		return err
	}
	list, ok := v.([]any)
	if !ok {
		list = []any{v}
	}
	*a = list

	return nil
}

// readMatch reads the conditions of a rule; without any it matches every node.
func readMatch(text json.RawMessage) (match, error) {
	var c matchConfig
	if err := decode(text, &c); err != nil {
		return nil, fmt.Errorf("match: %w", err)
	}
	// A key with nothing behind it was meant to hold something.
	if string(text) == "null" {
		return nil, errors.New("match: is empty: a rule for every node has none")
	}

	m := match{}
	var errs []error
	add := func(name string, path []string, a alternatives) {
		cond, err := a.compile(path)
		if err != nil {
			errs = append(errs, fmt.Errorf("match: %s: %w", name, err))
			return
		}
		m[name] = cond
	}

	if c.Identity != nil {
		add("identity", []string{"identity"}, c.Identity)
	}
	if c.Version != nil {
		add("version", []string{"version"}, c.Version)
	}
	for _, of := range []struct {
		name string
		text json.RawMessage
	}{{"facts", c.Facts}, {"extensions", c.Extensions}} {
		var values map[string]alternatives
		err := decode(of.text, &values)
		if err == nil && of.text != nil && len(values) == 0 {
			// Without its condition the rule would match every node.
			err = errors.New("is empty: name what must hold, or remove it")
		}
		errs = append(errs, prefix("match: "+of.name+": ", err))
		for _, k := range slices.Sorted(maps.Keys(values)) {
			add(of.name+" "+k, []string{of.name, k}, values[k])
		}
	}

	return m, errors.Join(errs...)
}

func (a alternatives) compile(path []string) (*condition, error) {
	if len(a) == 0 {
		return nil, errors.New("an empty list matches nothing")
	}

	c := &condition{path: path}
	for _, v := range a {
		text, err := scalar(v)
		if err != nil {
			return nil, err
		}
		if pattern, ok := isPattern(text); ok {
			re, err := regexp.Compile(pattern)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", text, err)
			}
			c.patterns = append(c.patterns, re)
			continue
		}
		if path[0] == "identity" && text == "" {
			return nil, errors.New("no node has an empty identity")
		}
		c.words = append(c.words, text)
	}

	return c, nil
}

// isPattern says whether a text is a regular expression between slashes.
func isPattern(text string) (pattern string, ok bool) {
	if len(text) > 2 && text[0] == '/' && text[len(text)-1] == '/' {
		return text[1 : len(text)-1], true
	}

	return "", false
}

// scalar is the text of a value in a configuration. Its numbers have lost how
// they were written: 1.10 has become 1.1.
func scalar(v any) (string, error) {
	switch v := v.(type) {
	case string:
		return v, nil
	case bool:
		return strconv.FormatBool(v), nil
	case float64:
		const exact = 1 << 53
		if v == math.Trunc(v) && math.Abs(v) < exact {
			return strconv.FormatFloat(v, 'f', -1, 64), nil
		}
		return "", fmt.Errorf("%v does not keep how it was written: put it in quotes", v)
	case nil:
		return "", errors.New("it is null: an empty text is written as ''")
	}

	return "", fmt.Errorf("%v is neither text, number nor boolean", v)
}

func (m match) matches(n node) bool {
	for _, c := range m {
		if !c.holds(n) {
			return false
		}
	}

	return true
}

func (c *condition) holds(n node) bool {
	v := n[c.path[0]]
	if len(c.path) == 2 {
		values, _ := v.(map[string]any)
		v = lookup(values, c.path[1])
	}
	// Of a list one element is enough: groups, network addresses.
	if list, ok := v.([]any); ok {
		return slices.ContainsFunc(list, c.holdsFor)
	}

	return c.holdsFor(v)
}

func (c *condition) holdsFor(v any) bool {
	var text string
	switch v := v.(type) {
	case string:
		text = v
	case json.Number:
		text = v.String()
	case bool:
		text = strconv.FormatBool(v)
	default:
		return false
	}

	return slices.Contains(c.words, text) || slices.ContainsFunc(c.patterns, func(re *regexp.Regexp) bool { return re.MatchString(text) })
}

// lookup finds a value by its key or, where there is no such key, by the path
// of keys with dots between them. It returns nil for what is not there.
func lookup(values map[string]any, key string) any {
	if v, ok := values[key]; ok {
		return v
	}
	head, rest, ok := strings.Cut(key, ".")
	if !ok {
		return nil
	}
	inner, _ := values[head].(map[string]any)

	return lookup(inner, rest)
}

// covers says that every node that o matches is matched by m too, as far as the
// texts of their conditions show.
func (m match) covers(o match) bool {
	for name, c := range m {
		other, ok := o[name]
		if !ok || !other.within(c) {
			return false
		}
	}

	return true
}

// within says that whatever satisfies c satisfies o.
func (c *condition) within(o *condition) bool {
	for _, w := range c.words {
		if !o.holdsFor(w) {
			return false
		}
	}
	for _, p := range c.patterns {
		if !slices.ContainsFunc(o.patterns, func(q *regexp.Regexp) bool { return q.String() == p.String() }) {
			return false
		}
	}

	return true
}
