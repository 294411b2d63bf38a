package kvstore

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"github.com/kv3fs/kv3fs/internal/pyyaml"
	"github.com/kv3fs/kv3fs/internal/ucmkeys"
)

// setting is a line of a configuration.
type setting struct {
	key   string
	value ast.Node
	line  int
}

// errorf returns an error that begins with the line and the key.
func (s setting) errorf(format string, args ...any) error {
	return fmt.Errorf("line %d: %.60s "+format, append([]any{s.line, s.key}, args...)...)
}

func (s setting) unknown(known []string) error {
	return fmt.Errorf("line %d: unknown key %.60q%s", s.line, s.key, didYouMean(s.key, known))
}

const (
	mostConfigBytes = 64 << 10
	mostConfigDepth = 64 // of brackets and of marks in a line: the parser recurses
)

// checkText refuses what no configuration is.
func checkText(src []byte) error {
	if len(src) > mostConfigBytes || !utf8.Valid(src) || bytes.IndexByte(src, 0) >= 0 {
		return fmt.Errorf("it is not UTF-8 text of at most %d bytes", mostConfigBytes)
	}
	return nil
}

// parse returns what a YAML file sets.
func parse(src []byte) ([]setting, error) {
	for n, line := range bytes.Split(src, []byte("\n")) {
		depth := len(line) - len(bytes.TrimLeft(line, " "))
		if bytes.Count(line, []byte("- "))+bytes.Count(line, []byte("? "))+bytes.Count(line, []byte("["))+bytes.Count(line, []byte("{")) > mostConfigDepth || depth > 8*mostConfigDepth {
			return nil, fmt.Errorf("line %d: it is nested too deeply", n+1)
		}
	}
	if opened := bytes.Count(src, []byte("[")) + bytes.Count(src, []byte("{")); opened > 16*mostConfigDepth {
		return nil, errors.New("it has too many brackets")
	}
	file, err := parser.ParseBytes(src, 0)
	if err != nil {
		return nil, errors.New(yaml.FormatError(err, false, true))
	}
	var body ast.Node
	for _, doc := range file.Docs {
		if doc.Body == nil {
			continue
		}
		if body != nil {
			return nil, fmt.Errorf("line %d: a second YAML document begins here; write one", doc.Body.GetToken().Position.Line)
		}
		body = doc.Body
	}
	if body == nil {
		return nil, nil
	}
	return mapping(body)
}

// mapping returns the keys and values of a mapping.
func mapping(n ast.Node) ([]setting, error) {
	var pairs []*ast.MappingValueNode
	switch m := n.(type) {
	case *ast.MappingNode:
		pairs = m.Values
	case *ast.MappingValueNode:
		pairs = []*ast.MappingValueNode{m}
	case *ast.CommentGroupNode: // a file of comments
	default:
		return nil, errors.New("write keys and values: KEY: VALUE")
	}
	all := []setting{}
	for _, pair := range pairs {
		token := pair.Key.GetToken()
		s := setting{key: token.Value, value: pair.Value, line: token.Position.Line}
		switch s.value.(type) {
		case *ast.AliasNode, *ast.AnchorNode, *ast.TagNode:
			return nil, s.errorf("has an alias, an anchor or a tag; write the value itself")
		}
		all = append(all, s)
	}
	return all, nil
}

// text returns a value as it is spelt in the file.
func (s setting) text() (string, error) {
	switch v := s.value.(type) {
	case nil, *ast.NullNode:
		return "", s.errorf("has no value; write one, or remove the line")
	case *ast.LiteralNode:
		return v.Value.Value, nil
	case ast.ScalarNode:
		return v.GetToken().Value, nil
	default:
		return "", s.errorf("must be one value, not a list or a mapping")
	}
}

// decode sets the fields of a struct, whose tags have the keys.
func decode(given []setting, tag string, to reflect.Value) error {
	places := map[string]int{}
	for i := range to.NumField() {
		places[to.Type().Field(i).Tag.Get(tag)] = i
	}
	for _, s := range given {
		i, ok := places[s.key]
		if !ok {
			continue
		}
		field := to.Field(i)
		if field.Kind() == reflect.Struct { // the namespace
			if err := s.decodeStruct(field); err != nil {
				return err
			}
			continue
		}
		if field.Kind() == reflect.Pointer {
			field.Set(reflect.New(field.Type().Elem()))
			field = field.Elem()
		}
		set := s.set
		if tag == "yaml" && ucmkeys.Known(s.key) {
			set = s.setUCM
		}
		if err := set(field); err != nil {
			return err
		}
	}
	return nil
}

func (s setting) decodeStruct(field reflect.Value) error {
	inner, err := mapping(s.value)
	if err != nil {
		return s.errorf("has no keys: %w", err)
	}
	var known []string
	for i := range field.NumField() {
		known = append(known, field.Type().Field(i).Tag.Get("json"))
	}
	for _, in := range inner {
		if !slices.Contains(known, in.key) {
			return in.unknown(known)
		}
	}
	return decode(inner, "json", field)
}

// wordsOf has the values of keys that know only some.
var wordsOf = map[string][]string{
	"checksums":    {string(ChecksumsAuto), string(ChecksumsRequire), string(ChecksumsOff)},
	"cache_policy": {string(CacheLRU), string(CacheAged)},
}

// readValue reads the value of a key whose engine knows what it may be.
func readValue[T any](s setting, read func(string, any) (T, *pyyaml.Refusal)) (none T, err error) {
	decoded, err := pyyaml.Decode(s.value)
	if err != nil {
		return none, s.errorf("has no value that can be read: %w", err)
	}
	value, refused := read(s.key, decoded)
	if refused != nil {
		return none, s.errorf("%w", refused)
	}
	return value, nil
}

// checkBy checks a value that is not used.
func (s setting) checkBy(refuse func(string, any) *pyyaml.Refusal) error {
	_, err := readValue(s, func(key string, value any) (struct{}, *pyyaml.Refusal) {
		return struct{}{}, refuse(key, value)
	})
	return err
}

// setUCM sets a field to the value of a key of UCM's, in UCM's forms.
func (s setting) setUCM(field reflect.Value) (err error) {
	switch field.Kind() {
	case reflect.Bool:
		var is bool
		is, err = readValue(s, ucmkeys.Flag)
		field.SetBool(is)
	case reflect.String:
		var text string
		text, err = readValue(s, ucmkeys.Text)
		field.SetString(text)
	default:
		var n int64
		n, err = readValue(s, ucmkeys.Number)
		field.SetInt(n)
	}
	return err
}

// set sets a field that is no struct to the value of a key of our own, as it is spelt.
func (s setting) set(field reflect.Value) error {
	text, err := s.text()
	if err != nil {
		return err
	}
	if text == "" {
		return s.errorf("is empty; write a value, or remove the line")
	}
	switch field.Kind() {
	case reflect.Float64:
		f, err := strconv.ParseFloat(text, 64)
		if err != nil || math.IsNaN(f) || math.IsInf(f, 0) {
			return s.errorf("is %.40q; write a number such as 0.25", text)
		}
		field.SetFloat(f)
	case reflect.String:
		if words := wordsOf[s.key]; words != nil && !slices.Contains(words, text) {
			return s.errorf("is %.40q; write %s%s", text, strings.Join(words, " or "), didYouMean(text, slices.Clone(words)))
		}
		field.SetString(text)
	default:
		n, err := strconv.ParseInt(text, 10, 64)
		switch {
		case errors.Is(err, strconv.ErrRange):
			return s.errorf("is %.40s; it must be from %d to %d", text, boundsFor(s.key).Least, boundsFor(s.key).Most)
		case err != nil || len(text) > 1 && strings.TrimLeft(text, "+-")[0] == '0':
			return s.errorf("is %.40q; write a whole number, such as 8", text)
		}
		if err := inBounds(s.key, n); err != nil {
			return fmt.Errorf("line %d: %w", s.line, err)
		}
		field.SetInt(n)
	}
	return nil
}
