package httpserver

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// parsed parses a body as a route would.
func parsed(t testing.TB, f form, body string) (*request, error) {
	t.Helper()
	l := Limits{}.WithDefaults()
	r := &request{limits: &l}
	if err := r.read(httptest.NewRecorder(), httptest.NewRequest("POST", "/", strings.NewReader(body)), pace{}); err != nil {
		t.Fatal(err)
	}
	return r, r.parse(f)
}

// FuzzKeys compares readKeys with encoding/json: what the parser accepts encoding/json
// accepts, too, with the same keys; what only encoding/json accepts is refused on purpose.
func FuzzKeys(f *testing.F) {
	for _, s := range []string{
		`{"keys":["a","b\n","\u00e9","\ud83e\udd8a"],"namespace":"kv"}`, `{"keys":[]}`, `{"keys":[1]}`, `{"keys":null}`, `{"keys":["a",["b",{"c":[1,2]}]]}`,
		`{}`, `[]`, ``, ` {"keys" : [ "a" , "b" ] } `, `{"keys":["a"],"keys":["b"]}`, `{"k\u0065ys":["a"]}`, "{\"keys\":[\"\xff\"]}", `{"keys":["\ud800"]}`,
		`{"KEYS":["a"]}`, `{"keys":["a"]}x`, `{"keys":["a",]}`, `{"x":{"keys":["a"]},"keys":["b"]}`, `{"rank":1e400}`, `{"keys":[true,"a"]}`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, body string) {
		r, err := parsed(t, form{"keys": readKeys, "namespace": readPool}, body)
		var want map[string]json.RawMessage
		oracle := json.Unmarshal([]byte(body), &want)
		if err == nil && oracle != nil {
			t.Fatalf("accepted, but encoding/json refuses %q: %v", body, oracle)
		}
		if err != nil {
			var limit refusal
			if oracle == nil && want != nil && !errors.As(err, &limit) && !ambiguous(body) {
				t.Fatalf("refused, but encoding/json accepts %q: %v", body, err)
			}
			return
		}
		var keys []any
		isList := json.Unmarshal(want["keys"], &keys) == nil && keys != nil
		if _, given := want["keys"]; given != r.keys.given || given && isList != r.keys.isList {
			t.Fatalf("%q: given %v, a list %v", body, r.keys.given, r.keys.isList)
		}
		if r.wrong != nil || !isList {
			return
		}
		for i, k := range keys {
			if s, ok := k.(string); !ok || i >= len(r.keys.items) || r.keys.items[i] != s {
				t.Fatalf("%q: %q", body, r.keys.items)
			}
		}
		if len(keys) != len(r.keys.items) {
			t.Fatalf("%q: %d keys", body, len(r.keys.items))
		}
	})
}

// FuzzConfirm does the same for pairs and integers.
func FuzzConfirm(f *testing.F) {
	for _, s := range []string{
		`{"rank":0,"confirmations":[["a",1],["b",-2]],"pages_to_release":[3,4]}`, `{"rank":null,"confirmations":[]}`, `{"confirmations":[["a"]]}`,
		`{"confirmations":[["a",1,2]]}`, `{"confirmations":[["a",1.0]]}`, `{"confirmations":[["a",1e2]]}`, `{"confirmations":[["a",-0]]}`,
		`{"confirmations":[["a",9223372036854775808]]}`, `{"pages_to_release":null}`, `{"pages_to_release":[[1]]}`, `{"confirmations":[[1,"a"]]}`,
		`{"confirmations":[[["a",1],1],["b",2]]}`, `{"confirmations":[{"a":1}]}`, `{"rank":"0","confirmations":[["a",1]]}`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, body string) {
		r, err := parsed(t, form{"rank": readRank, "confirmations": readWritten, "pages_to_release": readRelease}, body)
		if err != nil || r.wrong != nil || !r.written.isList || !r.release.isList {
			return
		}
		var want struct {
			Rank          *int64
			Confirmations [][]any
			Release       []int64 `json:"pages_to_release"`
		}
		d := json.NewDecoder(strings.NewReader(body))
		d.UseNumber()
		if err := d.Decode(&want); err != nil {
			if strings.Contains(strings.ToLower(body), `"rank"`) || strings.Contains(strings.ToLower(body), "pages_to_release") || strings.Contains(strings.ToLower(body), "confirmations") {
				return // it folds the case of names; the parser does not
			}
			t.Fatalf("%q: encoding/json: %v", body, err)
		}
		if folds(body) {
			return
		}
		if (want.Rank != nil) != r.rank.given || want.Rank != nil && *want.Rank != r.rank.value || !slices.Equal(want.Release, r.release.items) || len(want.Confirmations) != len(r.written.items) {
			t.Fatalf("%q: %+v %+v, want %+v", body, r.rank, r.release.items, want)
		}
		for i, c := range want.Confirmations {
			page, err := c[1].(json.Number).Int64()
			if err != nil || (r.written.items[i] != pageservice.Placed{Key: c[0].(string), Page: page}) {
				t.Fatalf("%q: %+v, want %v", body, r.written.items[i], c)
			}
		}
	})
}

// folds reports whether a name is spelled in a way that only encoding/json understands.
func folds(body string) bool {
	for _, name := range []string{"rank", "confirmations", "pages_to_release"} {
		if strings.Count(strings.ToLower(body), name) != strings.Count(body, name) {
			return true
		}
	}
	return strings.Contains(body, `\u`) || strings.ContainsAny(body, "\u017f\u212a")
}

// ambiguous reports whether a body is one of those that encoding/json repairs: invalid
// UTF-8, half a surrogate pair, a name twice, or great depth.
func ambiguous(body string) bool {
	if !utf8.ValidString(body) || strings.Contains(strings.ToLower(body), `\ud`) || strings.Count(body, "[")+strings.Count(body, "{") > 9000 {
		return true
	}
	d := json.NewDecoder(strings.NewReader(body))
	return repeatsName(d)
}

// repeatsName reads one value and reports whether an object in it has a name twice.
func repeatsName(d *json.Decoder) bool {
	t, err := d.Token()
	if err != nil {
		return false
	}
	twice := false
	switch t {
	case json.Delim('['):
		for d.More() {
			twice = repeatsName(d) || twice
		}
	case json.Delim('{'):
		seen := map[string]bool{}
		for d.More() {
			name, err := d.Token()
			if err != nil {
				return twice
			}
			s, _ := name.(string)
			twice = twice || seen[s]
			seen[s] = true
			twice = repeatsName(d) || twice
		}
	default:
		return false
	}
	_, _ = d.Token()
	return twice
}

// FuzzAnswers compares the functions that append JSON with encoding/json.
func FuzzAnswers(f *testing.F) {
	f.Add("a\"\\\n\u2028<é\xff", int64(7), true)
	f.Add("", pageservice.None, false)
	f.Fuzz(func(t *testing.T, s string, page int64, present bool) {
		var text string
		if err := json.Unmarshal(appendString(nil, s), &text); err != nil || text != strings.ToValidUTF8(s, "\ufffd") && utf8.ValidString(s) {
			t.Errorf("%q: %q, %v", s, text, err)
		}
		for n := range 3 {
			all, bools, grants := slices.Repeat([]int64{page}, n), slices.Repeat([]bool{present}, n), slices.Repeat([]pageservice.Grant{{Page: page, Present: present}}, n)
			spelled, tuples := make([]*int64, n), make([][2]any, n)
			for i := range n {
				if page != pageservice.None {
					spelled[i] = &page
				}
				tuples[i] = [2]any{present, page}
			}
			same(t, appendPages(nil, all), spelled)
			same(t, appendBools(nil, bools), bools)
			same(t, appendList(nil, grants, appendGrant), tuples)
		}
	})
}

func same(t *testing.T, got []byte, v any) {
	t.Helper()
	if want, err := json.Marshal(v); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s, want %s (%v)", got, want, err)
	}
}

// TestReuse: a request that is reused keeps nothing of the one before.
func TestReuse(t *testing.T) {
	l := Limits{}.WithDefaults()
	r := &request{limits: &l}
	f := form{"rank": readRank, "keys": readKeys, "num_pages": readNumPages, "role": readRole, "namespace": readPool, "confirmations": readWritten, "pages_to_release": readRelease}
	for _, body := range []string{`{"rank":7,"keys":[1,"a"],"num_pages":9,"role":"x","namespace":"y","confirmations":[["a",1]],"pages_to_release":[1]}`, `{"keys":7}`, `{"keys":["`, `{}`} {
		if err := r.read(httptest.NewRecorder(), httptest.NewRequest("POST", "/", strings.NewReader(body)), pace{}); err != nil {
			t.Fatal(err)
		}
		_ = r.parse(f)
	}
	if r.rank.given || r.numPages.given || r.keys.given || !r.keys.isList || len(r.keys.items) != 0 || r.role != "worker" || r.pool != "kv" || r.wrong != nil || len(r.written.items) != 0 || len(r.release.items) != 0 {
		t.Errorf("%+v", r)
	}
}

// TestParseAllocates: parsing allocates one string for a batch, not one per key.
func TestParseAllocates(t *testing.T) {
	l := Limits{}.WithDefaults()
	r := &request{limits: &l}
	body := []byte(`{"keys":["` + strings.Repeat(`d8839002544966f443098ab486a3e3e8","`, 511) + `x"]}`)
	f := form{"keys": readKeys}
	n := testing.AllocsPerRun(20, func() {
		r.reset()
		r.body = append(r.body[:0], body...)
		if err := r.parse(f); err != nil || len(r.keys.items) != 512 {
			t.Fatal(err, len(r.keys.items))
		}
	})
	if n > 8 {
		t.Errorf("%v allocations for 512 keys", n)
	}
}

// TestParsingIsBounded: a body takes a few times its length to parse, whatever it is.
func TestParsingIsBounded(t *testing.T) {
	names := []byte(`{"x":{`)
	for i := 0; len(names) < 7<<20; i++ {
		names = fmt.Appendf(names, `"%x":1,`, i)
	}
	for name, body := range map[string]string{
		"names":  string(names) + `"y":1}}`,
		"depth":  `{"x":` + strings.Repeat("[", 7<<20) + `}`,
		"number": `{"num_pages":` + strings.Repeat("9", 7<<20) + `}`,
		"keys":   `{"keys":[` + strings.Repeat(`"",`, 7<<20/3) + `""]}`,
	} {
		l := Limits{}.WithDefaults()
		r := &request{limits: &l}
		if err := r.read(httptest.NewRecorder(), httptest.NewRequest("POST", "/", strings.NewReader(body)), pace{}); err != nil {
			t.Fatal(err)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := r.parse(form{"keys": readKeys, "num_pages": readNumPages})
		runtime.ReadMemStats(&after)
		took := int(after.TotalAlloc - before.TotalAlloc)
		t.Logf("%s: %d bytes to parse %d", name, took, len(body))
		if took > 5*len(body) {
			t.Errorf("%s: %d bytes to parse %d", name, took, len(body))
		}
		if err == nil && r.wrong == nil {
			t.Errorf("%s: it is accepted", name)
		}
	}
}
