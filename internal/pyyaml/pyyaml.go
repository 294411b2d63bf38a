// Package pyyaml reads values of YAML as PyYAML does, which the engines use: by YAML 1.1,
// where yes, no, on and off without quotes are Booleans.
package pyyaml

import (
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// words are YAML 1.1's Booleans that YAML 1.2 takes for text. Each is written so, in capitals,
// or with a capital first letter.
var words = map[string]bool{"yes": true, "on": true, "no": false, "off": false}

// boolean returns the Boolean that a node of plain text is to PyYAML.
func boolean(n ast.Node) (is, ok bool) {
	text, isText := n.(*ast.StringNode)
	if !isText || text.Token.Type != token.StringType {
		return false, false
	}
	lower := strings.ToLower(text.Value)
	is, ok = words[lower]
	return is, ok && slices.Contains([]string{lower, strings.ToUpper(lower), strings.ToUpper(lower[:1]) + lower[1:]}, text.Value)
}

// Value returns the value of a node that is no list and no mapping: nil, a bool, a string or a
// number.
func Value(n ast.Node) (value any, err error) {
	if is, ok := boolean(n); ok {
		return is, nil
	}
	err = yaml.NodeToValue(n, &value)
	return value, err
}

// Decode returns the value of a document.
func Decode(body ast.Node) (value any, err error) {
	ast.Walk(booleans{}, body)
	err = yaml.NodeToValue(body, &value)
	return value, err
}

// booleans replaces the values of mappings and lists that PyYAML takes for Booleans.
type booleans struct{}

func (booleans) Visit(n ast.Node) ast.Visitor {
	switch n := n.(type) {
	case nil:
		return nil
	case *ast.MappingValueNode:
		n.Value = replaced(n.Value)
	case *ast.SequenceNode:
		for i, value := range n.Values {
			n.Values[i] = replaced(value)
		}
	}
	return booleans{}
}

func replaced(n ast.Node) ast.Node {
	is, ok := boolean(n)
	if !ok {
		return n
	}
	text := map[bool]string{true: "true", false: "false"}[is]
	return ast.Bool(token.New(text, text, n.GetToken().Position))
}
