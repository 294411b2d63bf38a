package pyyaml

import (
	"reflect"
	"testing"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// PyYAML's safe_load says the same of each.
func TestValues(t *testing.T) {
	for text, want := range map[string]any{
		"yes": true, "Yes": true, "YES": true, "on": true, "On": true, "ON": true, "true": true, "True": true,
		"no": false, "No": false, "NO": false, "off": false, "Off": false, "OFF": false, "false": false,
		"yEs": "yEs", "y": "y", "n": "n", "nope": "nope", `"yes"`: "yes", "'off'": "off", "on off": "on off",
		"8": uint64(8), "-8": int64(-8), "0x10": uint64(16), `"8"`: "8", "1.5": 1.5, "null": nil, "~": nil,
	} {
		file, err := parser.ParseBytes([]byte("key: "+text), 0)
		if err != nil {
			t.Fatal(text, err)
		}
		pair, ok := file.Docs[0].Body.(*ast.MappingNode)
		if !ok {
			t.Fatalf("%s: %T", text, file.Docs[0].Body)
		}
		if got, err := Value(pair.Values[0].Value); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("Value of %s: %#v, %v; want %#v", text, got, err, want)
		}
		got, err := Decode(file.Docs[0].Body)
		if err != nil || !reflect.DeepEqual(got, map[string]any{"key": want}) {
			t.Errorf("Decode of %s: %#v, %v; want %#v", text, got, err, want)
		}
	}
}

func TestDecodeReachesAll(t *testing.T) {
	file, err := parser.ParseBytes([]byte("a: {b: [yes, {c: off}, \"on\"]}\nno: 1\n"), 0)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"a": map[string]any{"b": []any{true, map[string]any{"c": false}, "on"}}, "no": uint64(1)}
	if got, err := Decode(file.Docs[0].Body); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%#v, %v", got, err)
	}
}
