// Package pyyaml reads values of YAML as PyYAML does, which the engines use: by YAML 1.1, where
// yes, no, on and off without quotes are Booleans, 010 is eight, and 0o40 and 1e3 are text.
package pyyaml

import (
	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// Value returns the value of a node that is no list and no mapping: nil, a bool, a string, a
// float64, or a whole number: a uint64, an int64 below zero, or a json.Number beyond 64 bits.
// Dates, and fractions in base 60, stay text.
func Value(n ast.Node) (value any, err error) {
	if text, ok := plain(n); ok {
		return resolve(text), nil
	}
	err = yaml.NodeToValue(n, &value)
	return value, err
}

// Decode returns the value of a document. Keys of mappings are as they are spelt.
func Decode(body ast.Node) (value any, err error) {
	ast.Walk(values{}, body)
	err = yaml.NodeToValue(replaced(body), &value)
	return value, err
}

// plain returns the text of a node without quotes.
func plain(n ast.Node) (text string, ok bool) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, n.Token.Type == token.StringType
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode, *ast.NullNode:
		return n.GetToken().Value, true
	}
	return "", false
}

// values replaces the values of mappings and lists by what they are to PyYAML.
type values struct{}

func (values) Visit(n ast.Node) ast.Visitor {
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
	return values{}
}

func replaced(n ast.Node) ast.Node {
	text, ok := plain(n)
	if !ok {
		return n
	}
	t := *n.GetToken()
	switch value := resolve(text).(type) {
	case nil:
		return ast.Null(&t)
	case bool:
		return &ast.BoolNode{BaseNode: &ast.BaseNode{}, Token: &t, Value: value}
	case float64:
		return &ast.FloatNode{BaseNode: &ast.BaseNode{}, Token: &t, Value: value}
	case string:
		t.Type = token.DoubleQuoteType
		return ast.String(&t)
	default:
		return &ast.IntegerNode{BaseNode: &ast.BaseNode{}, Token: &t, Value: value}
	}
}
