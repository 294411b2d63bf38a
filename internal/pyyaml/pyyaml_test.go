package pyyaml

import (
	"encoding/json"
	"math"
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
		"8": uint64(8), "-8": int64(-8), "0x10": uint64(16), "010": uint64(8), "0x20": uint64(32), "0o40": "0o40", "0b11": uint64(3), "1_0": uint64(10),
		"1_": uint64(1), "1:30": uint64(90), "08": "08", "+8": uint64(8), ".5": 0.5, "5.": float64(5.0), "1e3": "1e3", "1.0e3": "1.0e3",
		"1.0e+3": float64(1000.0), "1e+3": "1e+3", "99999999999999999999": json.Number("99999999999999999999"),
		"-99999999999999999999": json.Number("-99999999999999999999"), "tRue": "tRue", "~": nil, "null": nil, "Null": nil, "nULL": "nULL",
		".inf": math.Inf(1), "+.inf": math.Inf(1), "-.INF": math.Inf(-1), ".Nan": ".Nan", "1.5": 1.5, "0.5": 0.5, "-0x10": int64(-16), "0_8": "0_8",
		"1__0": uint64(10), "0.1_0": 0.1, "0": uint64(0), "00": uint64(0), "-0": uint64(0), "+": "+", "190:20:30": uint64(685230), "_1": "_1",
		"1,000": "1,000", "0_": uint64(0), "0x": "0x", "0b": "0b", "0b2": "0b2", "0xg": "0xg", "0b12": "0b12", "-.5": "-.5", "+.5": "+.5", "1:60": "1:60",
		"01:30": "01:30", "1:3:5": uint64(3785), "-1:30": int64(-90), "1_0:30": uint64(630), ":30": ":30", "0_7": uint64(7), "-010": int64(-8),
		"0_0": uint64(0), "07_": uint64(7), "1.5_": 1.5, "_.5": "_.5", "._5": "._5", "5._": float64(5.0), "1._5": 1.5,
		"9223372036854775808": uint64(9223372036854775808), "-9223372036854775808": int64(-9223372036854775808),
		"-9223372036854775809": json.Number("-9223372036854775809"), "18446744073709551616": json.Number("18446744073709551616"), "1e400": "1e400",
		"1.0e+400": math.Inf(1), "-1.5": -1.5, ".iNF": ".iNF", "0x_10": uint64(16), "1.2.3": "1.2.3", "1-2": "1-2", "0-1": "0-1", "0b-1": "0b-1",
		"0x-1": "0x-1", "0.5e": "0.5e", "0.5e+": "0.5e+", "1:00": uint64(60), "1:000": "1:000", "--8": "--8",
		`"8"`: "8", "'010'": "010", "\"~\"": "~",
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
	file, err := parser.ParseBytes([]byte("a: {b: [yes, {c: off}, \"on\", 0o7, 010, ~]}\nno: 1\n"), 0)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"a": map[string]any{"b": []any{true, map[string]any{"c": false}, "on", "0o7", uint64(8), nil}}, "no": uint64(1)}
	if got, err := Decode(file.Docs[0].Body); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%#v, %v", got, err)
	}
}

// The only number that is not equal to itself.
func TestNoNumber(t *testing.T) {
	for _, text := range []string{".nan", ".NaN", ".NAN"} {
		if got, ok := resolve(text).(float64); !ok || !math.IsNaN(got) {
			t.Errorf("%s: %v", text, got)
		}
	}
}

// A text is a number, a word or itself, whatever it is.
func FuzzResolve(f *testing.F) {
	for _, text := range []string{"", "-", "0x", "1:30", "0b1_", "1._5", "-.5", ".inf", "1_:2", "+0_:1", "-0", "1.0e+999999"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if got, is := resolve(text).(string); is && got != text {
			t.Errorf("%q becomes %q", text, got)
		}
	})
}
