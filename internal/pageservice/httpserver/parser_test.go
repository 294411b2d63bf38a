package httpserver

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
)

// everyField is a form with all fields there are, pairs and plain keys apart.
var everyField = []form{
	{"rank": readRank, "keys": readKeys, "namespace": readPool, "num_pages": readNumPages, "role": readRole},
	{"rank": readRank, "keys": readPairs, "confirmations": readWritten, "pages_to_release": readRelease, "namespace": readPool},
}

// engineBodies are bodies of the two engines, as Python writes them and without spaces.
var engineBodies = []string{
	`{"keys": ["d8839002544966f443098ab486a3e3e8", "1"]}`, `{"keys":["d8839002544966f443098ab486a3e3e8","1"]}`,
	`{"rank": 0, "keys": ["d8839002544966f443098ab486a3e3e8"]}`, `{"namespace": "kv", "keys": []}`,
	`{"rank": 7, "keys": [["a", ""], ["b", "a"]]}`, `{"keys":[["a",""]]}`,
	`{"rank": 0, "confirmations": [["a", 0], ["b", 2147483647]], "pages_to_release": [10, 3]}`, `{"confirmations":[["a",1]],"pages_to_release":[]}`, `{}`,
}

// TestEnginesSendPlainBodies: what engines send takes the fast path, and is accepted.
func TestEnginesSendPlainBodies(t *testing.T) {
	for _, body := range engineBodies {
		understood := false
		for _, f := range everyField {
			r, err := parsed(t, f, body)
			understood = understood || err == nil && r.wrong == nil
		}
		if !understood || !isPlain(body) {
			t.Errorf("%s: understood %t, plain %t", body, understood, isPlain(body))
		}
	}
}

// FuzzParse compares the parser with and without its fast path for plain bodies: the
// fields are the same, and so are the errors. What the parser accepts is JSON, and what
// it refuses is not, or is ambiguous.
func FuzzParse(f *testing.F) {
	for _, s := range engineBodies {
		f.Add(s)
	}
	for _, s := range []string{
		`{"keys":["a",]}`, `{"keys":["a"],}`, `{"keys":["a"],"keys":["b"]}`, `{"namespace":"a","namespace":"b"}`, `{"keys":["a"]}x`, `{"keys":["a"]} `, `{"keys":["a"`,
		`{"keys":["a\\"]}`, "{\"keys\":[\"a\x01\"]}", "{\"keys\":[\"\xff\"]}", `{"keys":["é"]}`, "{\"keys\":[\"\x7f\"]}", "{\"keys\"\n:[\"a\"]}", `{"keys":["a" "b"]}`,
		`{"rank":01,"keys":[]}`, `{"rank":-0}`, `{"rank":1.0}`, `{"rank":1e2}`, `{"rank":999999999999999999}`, `{"rank":9223372036854775807}`, `{"rank":9223372036854775808}`,
		`{"rank":null}`, `{"rank":}`, `{"rank":1 2}`, `{"x":1,"rank":2}`, `{"rank":2,"keys":["a"],"keys":7}`, `{"confirmations":[["a",1],["b"]]}`, `{"confirmations":[["a",1,2]]}`,
		`{"keys":[["a","b","c"]]}`, `{"keys":[["a",null]]}`, `{"keys":[["a",["b"]]]}`, `{"x":{"a":[1,{"b":{}},{"b":[]}],"b":2},"keys":["\\u00e9\\ud83e\\udd8a\\n\\/"]}`, `{"x":[{"a":1,"\\u0061":2}]}`, `{"x":[-0.5e+7,1E2,true,false,nul]}`, `{"pages_to_release":[1,"a"]}`, `{"pages_to_release":null}`, `{"keys":["12345678901234567"]}`,
		`{"keys":["1","2","3","4","5","6","7","8","9"]}`, `{,}`, `{"keys" , []}`, `{"role":"worker","keys":["a"]}`,
	} {
		f.Add(s)
	}
	l := Limits{BatchKeys: 8, KeyBytes: 16}.WithDefaults() // within reach
	f.Fuzz(func(t *testing.T, body string) {
		for _, form := range everyField {
			short, long := &request{limits: &l}, &request{limits: &l}
			for _, r := range []*request{short, long} {
				if err := r.read(httptest.NewRecorder(), httptest.NewRequest("POST", "/", strings.NewReader(body)), pace{}); err != nil {
					t.Fatal(err)
				}
			}
			got, want := short.parse(form), long.parseText(form, body, false)
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Fatalf("%q: fast path: %v, slow path: %v", body, got, want)
			}
			if a, b := understood(short), understood(long); !reflect.DeepEqual(a, b) {
				t.Fatalf("%q: fast path: %v, slow path: %v", body, a, b)
			}
			var object map[string]json.RawMessage
			valid := json.Unmarshal([]byte(body), &object) == nil && object != nil
			switch {
			case got == nil && !valid:
				t.Fatalf("%q is accepted", body)
			case errors.Is(got, errMalformed) && valid && !ambiguous(body):
				t.Fatalf("%q: %v", body, got)
			}
		}
	})
}

// understood returns all that routes see of a request.
func understood(r *request) []any {
	return []any{
		r.rank, r.numPages, r.role, r.pool, fmt.Sprint(r.wrong),
		r.keys.given, r.keys.isList, append([]string{}, r.keys.items...),
		fmt.Sprint(r.written), fmt.Sprint(r.release),
	}
}
