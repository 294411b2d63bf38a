package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/alecthomas/kong"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// maxConfigBytes bounds a configuration file.
const maxConfigBytes = 1 << 20

// yamlEntry is a key of a configuration file. Its values are as they are spelt there: 010
// stays 010, and on stays on.
type yamlEntry struct {
	key    string
	line   int
	values []string // one, unless isList
	isList bool
	wrong  string // what is wrong with the value
}

func (e yamlEntry) place(file string) string { return fmt.Sprintf("%s:%d", file, e.line) }

// name returns how an error calls the value.
func (e yamlEntry) name(file string) string { return e.place(file) + ": " + e.key }

// text returns the value as on a command line, where a list has separators.
func (e yamlEntry) text(separator rune) string {
	if !e.isList {
		return e.values[0]
	}
	return kong.JoinEscaped(e.values, separator)
}

// readYAML reads a file with one mapping of keys to single values or lists of them.
func readYAML(name string) ([]yamlEntry, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxConfigBytes+1))
	switch {
	case err != nil:
		return nil, err
	case len(text) > maxConfigBytes:
		return nil, fmt.Errorf("%s has more than %d bytes: it is no configuration file", name, maxConfigBytes)
	}
	for i, line := range bytes.Split(text, []byte("\n")) {
		if !utf8.Valid(line) {
			return nil, fmt.Errorf("%s:%d: %q %s", name, i+1, bytes.TrimSpace(line), notUTF8)
		}
	}
	parsed, err := parser.ParseBytes(text, 0)
	if err != nil {
		return nil, errors.New(notYAML(name, err))
	}
	var body ast.Node
	for i, doc := range parsed.Docs {
		if i > 0 {
			return nil, fmt.Errorf("%s: more than one YAML document: only the first would have an effect; remove the line --- or ... between them", name)
		}
		body = doc.Body
	}
	if extra := regexp.MustCompile(`(?m)^\.\.\.[ \t]*$`).FindIndex(text); extra != nil && len(bytes.TrimSpace(text[extra[1]:])) > 0 {
		return nil, fmt.Errorf("%s: more than one YAML document: only the first would have an effect; remove the line --- or ... between them", name)
	}
	var pairs []*ast.MappingValueNode
	switch n := body.(type) {
	case nil, *ast.NullNode, *ast.CommentGroupNode:
	case *ast.MappingNode:
		pairs = n.Values
	case *ast.MappingValueNode:
		pairs = []*ast.MappingValueNode{n}
	default:
		return nil, fmt.Errorf("%s: not a YAML mapping of flag names to values", name)
	}
	entries := make([]yamlEntry, 0, len(pairs))
	for _, pair := range pairs {
		key := pair.Key.GetToken()
		e := yamlEntry{key: key.Value, line: key.Position.Line}
		if i := slices.IndexFunc(entries, func(other yamlEntry) bool { return other.key == e.key }); i >= 0 {
			return nil, fmt.Errorf("%s: key %q is there twice, first in line %d", e.place(name), e.key, entries[i].line)
		}
		e.read(pair.Value)
		entries = append(entries, e)
	}
	return entries, nil
}

// notYAML formats an error of the parser, [LINE:COLUMN] TEXT and an excerpt, in one line.
func notYAML(file string, err error) string {
	text, _, _ := strings.Cut(err.Error(), "\n")
	if m := regexp.MustCompile(`^\[(\d+):\d+\] (.*)$`).FindStringSubmatch(text); m != nil {
		return fmt.Sprintf("%s:%s: not YAML: %s", file, m[1], m[2])
	}
	return fmt.Sprintf("%s: not YAML: %s", file, text)
}

func (e *yamlEntry) read(n ast.Node) {
	list, ok := n.(*ast.SequenceNode)
	if !ok {
		value, wrong := scalar(n)
		e.values, e.wrong = []string{value}, wrong
		return
	}
	e.isList = true
	if len(list.Values) == 0 {
		e.wrong = "is an empty list; give it a value, or remove it for the default"
	}
	for _, n := range list.Values {
		value, wrong := scalar(n)
		e.values = append(e.values, value)
		if wrong != "" {
			e.wrong = "has a list in which an entry " + wrong
		}
	}
}

// scalar returns a single value as it is spelt, or what is wrong with it.
func scalar(n ast.Node) (text, wrong string) {
	switch n := n.(type) {
	case nil, *ast.NullNode:
		return "", "has no value; give it one, or remove it for the default"
	case *ast.StringNode:
		return n.Value, ""
	case *ast.LiteralNode:
		return n.Value.Value, ""
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return n.GetToken().Value, ""
	}
	return "", "must have a single value: no mapping, anchor or tag"
}

// plainText is text that needs no quotes in YAML.
var plainText = regexp.MustCompile(`^[A-Za-z0-9/][A-Za-z0-9/._-]*$`)

// yamlText formats the value of a flag so that readYAML reads the same.
func yamlText(v reflect.Value) string {
	if v.Kind() == reflect.Slice {
		var all []string
		for i := range v.Len() {
			all = append(all, yamlText(v.Index(i)))
		}
		return "[" + strings.Join(all, ", ") + "]"
	}
	text := fmt.Sprint(v.Interface())
	if size, ok := v.Interface().(byteSize); ok {
		text = size.exact()
	}
	if plainText.MatchString(text) && !strings.EqualFold(text, "null") {
		return text
	}
	var quoted bytes.Buffer
	e := json.NewEncoder(&quoted) // a string of JSON is one of YAML
	e.SetEscapeHTML(false)
	if err := e.Encode(text); err != nil {
		return text
	}
	return strings.TrimSpace(quoted.String())
}
