package config

import (
	"bytes"
	"errors"
	"io"

	"gopkg.in/yaml.v3"
)

// maxMerges is how deep merge keys are followed; a file that needs more has
// keys without lines.
const maxMerges = 20

// place is where a key stands in the file.
type place struct {
	line int
	// first is the line of an earlier key of the same spelling in the same
	// mapping, 0 when there is none.
	first int
	value *yaml.Node
}

// parseLines reads the file a second time, for the lines only; second is the
// line of a second document, 0 when there is none. The values come from another
// parser, so an error here is no error of the file: that one stops, without a
// word, at the first line that cannot go on with its map.
func parseLines(data []byte) (root *yaml.Node, second int, err error) {
	dec := yaml.NewDecoder(bytes.NewReader(data))

	var first, next yaml.Node
	err = dec.Decode(&first)
	switch {
	case errors.Is(err, io.EOF):
		return nil, 0, nil
	case err != nil:
		return nil, 0, err
	}

	err = dec.Decode(&next)
	switch {
	case errors.Is(err, io.EOF):
		return &first, 0, nil
	case err != nil:
		return &first, 0, err
	default:
		return &first, next.Content[0].Line, nil
	}
}

// places are the keys of a mapping. Where a key is given more than once, by
// repetition or merge, it is the place that the value comes from: the last.
func places(n *yaml.Node) map[string]place {
	found := map[string]place{}
	addPlaces(found, n, 0)
	return found
}

func addPlaces(found map[string]place, n *yaml.Node, merges int) {
	n = follow(n)
	if n == nil || n.Kind != yaml.MappingNode || merges > maxMerges {
		return
	}

	own := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Tag == "!!merge" {
			addMerged(found, value, merges+1)
			continue
		}
		found[key.Value] = place{line: key.Line, first: own[key.Value], value: value}
		own[key.Value] = key.Line
	}
}

// addMerged adds what a merge key brings: one mapping, or a list of which the
// earlier ones win.
func addMerged(found map[string]place, n *yaml.Node, merges int) {
	n = follow(n)
	if n == nil || n.Kind != yaml.SequenceNode {
		addPlaces(found, n, merges)
		return
	}
	for i := len(n.Content) - 1; i >= 0; i-- {
		addPlaces(found, n.Content[i], merges)
	}
}

// itemLine is the line of item i of a list, or 0.
func itemLine(n *yaml.Node, i int) int {
	n = follow(n)
	if n == nil || n.Kind != yaml.SequenceNode || i >= len(n.Content) {
		return 0
	}
	return n.Content[i].Line
}

// follow leads from a document or an alias to what it holds.
func follow(n *yaml.Node) *yaml.Node {
	for n != nil {
		switch {
		case n.Kind == yaml.AliasNode:
			n = n.Alias
		case n.Kind == yaml.DocumentNode && len(n.Content) > 0:
			n = n.Content[0]
		default:
			return n
		}
	}
	return nil
}
