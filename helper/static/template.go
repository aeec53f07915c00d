package static

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/template"
	"text/template/parse"
)

// text is a value with a template in it, or a fixed one.
type text struct {
	fixed    string
	template *template.Template
}

// parseText reads a value. A template is refused when it names what no node has.
func parseText(s string) (*text, error) {
	if !strings.Contains(s, "{{") {
		return &text{fixed: s}, nil
	}

	t, err := template.New("").Option("missingkey=error").Funcs(functions()).Parse(s)
	if err != nil {
		return nil, errors.New(plain(err))
	}
	if err := checkFields(t.Root); err != nil {
		return nil, err
	}

	return &text{template: t}, nil
}

// functions are those that templates have beside the built-in ones.
func functions() template.FuncMap {
	return template.FuncMap{
		"lower":   strings.ToLower,
		"upper":   strings.ToUpper,
		"trim":    strings.TrimSpace,
		"replace": func(old, new, in string) string { return strings.ReplaceAll(in, old, new) },
		"split":   func(sep, in string) []string { return strings.Split(in, sep) },
		"join":    join,
		"get":     get,
		"index":   index,
	}
}

// index stands in for the built-in one, which yields nothing where a map has no
// such key, and that prints as "<no value>".
func index(in any, keys ...any) (any, error) {
	for _, key := range keys {
		var next any
		switch in := in.(type) {
		case map[string]any:
			if name, ok := key.(string); ok {
				next = in[name]
			}
		case []any:
			if i, ok := key.(int); ok && i >= 0 && i < len(in) {
				next = in[i]
			}
		case []string:
			if i, ok := key.(int); ok && i >= 0 && i < len(in) {
				next = in[i]
			}
		}
		if next == nil {
			return nil, fmt.Errorf("there is no %#v", key)
		}
		in = next
	}

	return in, nil
}

// join joins a list as facts hold it.
func join(sep string, list any) (string, error) {
	switch list := list.(type) {
	case []string:
		return strings.Join(list, sep), nil
	case []any:
		var words []string
		for _, v := range list {
			words = append(words, fmt.Sprint(v))
		}
		return strings.Join(words, sep), nil
	}

	return "", fmt.Errorf("%v is no list", list)
}

// get finds a value by its key or path, with a value for when it is not there.
func get(values map[string]any, key string, otherwise ...any) (any, error) {
	if v := lookup(values, key); v != nil {
		return v, nil
	}
	if len(otherwise) != 1 {
		return nil, fmt.Errorf("there is no %q", key)
	}

	return otherwise[0], nil
}

func (t *text) render(n node) (string, error) {
	if t.template == nil {
		return t.fixed, nil
	}
	var out strings.Builder
	if err := t.template.Execute(&out, map[string]any(n)); err != nil {
		return "", errors.New(plain(err))
	}

	return out.String(), nil
}

// plain takes the template's name, which is empty, off its errors.
func plain(err error) string {
	return strings.TrimPrefix(strings.TrimPrefix(err.Error(), "template: "), ":")
}

// checkFields finds the names after a dot that no node has. Inside range and
// with the dot is something else, unless a name begins with $.
func checkFields(n parse.Node) error {
	switch n := n.(type) {
	case *parse.ListNode:
		var errs []error
		for _, child := range n.Nodes {
			errs = append(errs, checkFields(child))
		}
		return errors.Join(errs...)
	case *parse.ActionNode:
		return checkFields(n.Pipe)
	case *parse.IfNode:
		errs := []error{checkFields(n.Pipe), checkFields(n.List)}
		if n.ElseList != nil {
			errs = append(errs, checkFields(n.ElseList))
		}
		return errors.Join(errs...)
	case *parse.RangeNode:
		return checkFields(n.Pipe)
	case *parse.WithNode:
		return checkFields(n.Pipe)
	case *parse.PipeNode:
		var errs []error
		for _, command := range n.Cmds {
			for _, arg := range command.Args {
				errs = append(errs, checkFields(arg))
			}
		}
		return errors.Join(errs...)
	case *parse.FieldNode:
		return checkField(n.Ident)
	}

	return nil
}

func checkField(path []string) error {
	inner, ok := fields()[path[0]]
	switch {
	case !ok:
		return fmt.Errorf(".%s is nothing that a node has: there are %s", path[0], strings.Join(slices.Sorted(maps.Keys(fields())), ", "))
	case inner == nil && len(path) > 1:
		return fmt.Errorf(".%s is a text, without a %s", path[0], path[1])
	case len(inner) > 0 && len(path) > 1 && !slices.Contains(inner, path[1]):
		return fmt.Errorf(".%s has no %s, only %s", path[0], path[1], strings.Join(inner, ", "))
	}

	return nil
}
