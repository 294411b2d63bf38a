package engineconfig

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"github.com/kv3fs/kv3fs/internal/pyyaml"
)

const (
	// maxConfigBytes bounds the text to parse; configurations are far smaller.
	maxConfigBytes = 64 << 10
	// maxDepth bounds the nesting of brackets, because parsers recurse.
	maxDepth = 64
)

// checkText rejects text that is not safe to parse.
func checkText(content []byte) error {
	if len(content) > maxConfigBytes {
		return fmt.Errorf("has more than %d bytes, which is too large for a configuration", maxConfigBytes)
	}
	if !utf8.Valid(content) || bytes.IndexByte(content, 0) >= 0 {
		return errors.New("is not UTF-8 text")
	}
	depth := 0
	for _, c := range content {
		switch c {
		case '[', '{':
			depth++
		case ']', '}':
			depth--
		}
		if depth > maxDepth {
			return fmt.Errorf("nests brackets more than %d deep", maxDepth)
		}
	}
	return nil
}

// decodeJSON reads one JSON object.
func decodeJSON(content []byte) (map[string]any, error) {
	v, err := decodeAny(content)
	if err != nil {
		return nil, err
	}
	object, ok := v.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("is %s, not a JSON object", kindOf(v))
	}
	return object, nil
}

// decodeAny reads one JSON value.
func decodeAny(content []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(content))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		if err == io.EOF {
			err = errors.New("it is empty")
		}
		return nil, fmt.Errorf("is not JSON: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("is not JSON: something follows the end of the value")
	}
	if key, twice := keyTwice(json.NewDecoder(bytes.NewReader(content))); twice {
		return nil, fmt.Errorf("has the key %.80q twice in one object; keep one", key)
	}
	return v, nil
}

// keyTwice finds a key that occurs twice in an object of valid JSON. Python silently uses
// the last one.
func keyTwice(d *json.Decoder) (key string, twice bool) {
	opening, _ := d.Token()
	if opening != json.Delim('{') && opening != json.Delim('[') {
		return "", false
	}
	seen := map[string]bool{}
	for d.More() {
		if opening == json.Delim('{') {
			name, _ := d.Token()
			key, _ = name.(string)
			if seen[key] {
				return key, true
			}
			seen[key] = true
		}
		if key, twice = keyTwice(d); twice {
			return key, true
		}
	}
	_, _ = d.Token() // the closing bracket; the document has been decoded before
	return "", false
}

// decodeYAML reads one YAML mapping. It rejects aliases: no engine's configuration needs
// them, and expanding them can turn a small file into a large one.
func decodeYAML(content []byte) (map[string]any, error) {
	if err := checkLines(content); err != nil {
		return nil, err
	}
	file, err := parser.ParseBytes(content, 0)
	if err != nil {
		return nil, fmt.Errorf("is not YAML: %w", firstLine(err))
	}
	var aliases aliasFinder
	for _, doc := range file.Docs {
		ast.Walk(&aliases, doc)
	}
	if aliases.found {
		return nil, errors.New("has a YAML alias (*name), which is not supported; write the value out")
	}
	if len(file.Docs) > 1 {
		return nil, errors.New("has several YAML documents; engines read one")
	}
	if len(file.Docs) == 0 || file.Docs[0].Body == nil {
		return map[string]any{}, nil
	}
	decoded, err := pyyaml.Decode(file.Docs[0].Body)
	if err != nil {
		return nil, fmt.Errorf("is not a YAML mapping of keys to values: %w", firstLine(err))
	}
	values, ok := decoded.(map[string]any)
	if !ok && decoded != nil {
		return nil, fmt.Errorf("is %s, not a YAML mapping of keys to values", kindOf(decoded))
	}
	return values, nil
}

// checkLines bounds nesting without brackets, which is by indentation or by several list
// or mapping marks on a line.
func checkLines(content []byte) error {
	for line := range bytes.Lines(content) {
		rest := bytes.TrimLeft(line, " \t")
		if len(line)-len(rest) > 8*maxDepth {
			return fmt.Errorf("is indented by more than %d columns", 8*maxDepth)
		}
		if bytes.Count(line, []byte("- "))+bytes.Count(line, []byte("? "))+bytes.Count(line, []byte("-\t"))+bytes.Count(line, []byte("?\t")) > maxDepth {
			return fmt.Errorf("has more than %d list marks on a line", maxDepth)
		}
	}
	return nil
}

type aliasFinder struct{ found bool }

func (f *aliasFinder) Visit(n ast.Node) ast.Visitor {
	if n == nil { // an empty document
		return nil
	}
	f.found = f.found || n.Type() == ast.AliasType
	return f
}

// firstLine returns an error without the excerpt that the YAML parser adds.
func firstLine(err error) error {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return errors.New(clip(line))
}
