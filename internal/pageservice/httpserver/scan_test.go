package httpserver

import (
	"fmt"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
)

// everyField is a form with all fields there are, pairs and plain keys apart.
var everyField = []form{
	{"rank": rankField, "keys": keysField, "namespace": poolField, "num_pages": numPagesField, "role": roleField},
	{"rank": rankField, "keys": pairsField, "confirmations": writtenField, "pages_to_release": releaseField, "namespace": poolField},
}

// engineBodies are of the two engines, as Python spells them and without spaces.
var engineBodies = []string{
	`{"keys": ["d8839002544966f443098ab486a3e3e8", "1"]}`, `{"keys":["d8839002544966f443098ab486a3e3e8","1"]}`,
	`{"rank": 0, "keys": ["d8839002544966f443098ab486a3e3e8"]}`, `{"namespace": "kv", "keys": []}`,
	`{"rank": 7, "keys": [["a", ""], ["b", "a"]]}`, `{"keys":[["a",""]]}`,
	`{"rank": 0, "confirmations": [["a", 0], ["b", 2147483647]], "pages_to_release": [10, 3]}`, `{"confirmations":[["a",1]],"pages_to_release":[]}`, `{}`,
}

// TestEnginesAreScanned: what engines send does not need the general parser.
func TestEnginesAreScanned(t *testing.T) {
	for _, body := range engineBodies {
		scanned := false
		for _, f := range everyField {
			l := Limits{}.WithDefaults()
			r := &request{limits: &l, body: []byte(body), text: body}
			r.forget()
			scanned = scanned || r.scan(f)
		}
		if !scanned {
			t.Errorf("%s is not scanned", body)
		}
	}
}

// FuzzScan holds the scanner against the general parser: with it or without it, the
// same is understood, and the same error made.
func FuzzScan(f *testing.F) {
	for _, s := range engineBodies {
		f.Add(s)
	}
	for _, s := range []string{
		`{"keys":["a",]}`, `{"keys":["a"],}`, `{"keys":["a"],"keys":["b"]}`, `{"namespace":"a","namespace":"b"}`, `{"keys":["a"]}x`, `{"keys":["a"]} `, `{"keys":["a"`,
		`{"keys":["a\\"]}`, "{\"keys\":[\"a\x01\"]}", "{\"keys\":[\"\xff\"]}", `{"keys":["é"]}`, "{\"keys\":[\"\x7f\"]}", "{\"keys\"\n:[\"a\"]}", `{"keys":["a" "b"]}`,
		`{"rank":01,"keys":[]}`, `{"rank":-0}`, `{"rank":1.0}`, `{"rank":1e2}`, `{"rank":999999999999999999}`, `{"rank":9223372036854775807}`, `{"rank":9223372036854775808}`,
		`{"rank":null}`, `{"rank":}`, `{"rank":1 2}`, `{"x":1,"rank":2}`, `{"rank":2,"keys":["a"],"keys":7}`, `{"confirmations":[["a",1],["b"]]}`, `{"confirmations":[["a",1,2]]}`,
		`{"keys":[["a","b","c"]]}`, `{"keys":[["a",null]]}`, `{"keys":[["a",["b"]]]}`, `{"pages_to_release":[1,"a"]}`, `{"pages_to_release":null}`, `{"keys":["12345678901234567"]}`,
		`{"keys":["1","2","3","4","5","6","7","8","9"]}`, `{,}`, `{"keys" , []}`, `{"role":"worker","keys":["a"]}`,
	} {
		f.Add(s)
	}
	l := Limits{BatchKeys: 8, KeyBytes: 16}.WithDefaults() // within reach
	f.Fuzz(func(t *testing.T, body string) {
		for _, form := range everyField {
			with, without := &request{limits: &l}, &request{limits: &l}
			for _, r := range []*request{with, without} {
				if err := r.read(httptest.NewRecorder(), httptest.NewRequest("POST", "/", strings.NewReader(body))); err != nil {
					t.Fatal(err)
				}
			}
			without.text = string(without.body)
			got, want := with.parse(form), without.parseUnusual(form)
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Fatalf("%q: %v with the scanner, %v without", body, got, want)
			}
			if a, b := understood(with), understood(without); !reflect.DeepEqual(a, b) {
				t.Fatalf("%q: %v with the scanner, %v without", body, a, b)
			}
		}
	})
}

// understood is all that routes see of a request.
func understood(r *request) []any {
	return []any{
		r.rank, r.numPages, r.role, r.pool, fmt.Sprint(r.wrong),
		r.keys.given, r.keys.isList, append([]string{}, r.keys.items...),
		fmt.Sprint(r.written), fmt.Sprint(r.release),
	}
}
