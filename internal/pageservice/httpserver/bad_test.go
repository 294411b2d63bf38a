package httpserver_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/pageservice/httpserver"
)

// valid has a body for each route that would change or find something.
var valid = map[string]string{
	"/rank/5/initialize":                   `{"num_pages":7}`,
	"/keys/batch_allocate":                 `{"rank":0,"keys":[["new",""]]}`,
	"/keys/confirm_write":                  `{"rank":0,"confirmations":[["r",1]],"pages_to_release":[2]}`,
	"/keys/batch_exists":                   `{"keys":["K"]}`,
	"/keys/get_locations":                  `{"rank":0,"keys":["K"]}`,
	"/5/initialize":                        `{"num_pages":7}`,
	"/0/exists":                            `{"keys":["K"]}`,
	"/0/reserve_and_allocate_page_indices": `{"keys":[["new",""]]}`,
	"/0/confirm_write":                     `{"written_keys_to_confirm":[["r",1]],"pages_to_release":[2]}`,
	"/0/delete_keys":                       `{"keys":["K"]}`,
	"/0/clear":                             `{}`,
	"/0/get_page_indices":                  `{"keys":["K"]}`,
}

// withSomething starts a service with a key K and reservations r and q of both protocols.
func withSomething(t testing.TB, o httpserver.Options) *service {
	s := start(t, o, pageservice.Options{})
	s.ok("/rank/0/initialize", `{"num_pages":8}`)
	s.ok("/keys/batch_allocate", `{"rank":0,"keys":[["K",""],["r",""],["q",""]]}`)
	s.ok("/keys/confirm_write", `{"rank":0,"confirmations":[["K",0]]}`)
	s.ok("/0/initialize", `{"num_pages":8}`)
	s.ok("/0/reserve_and_allocate_page_indices", `{"keys":[["K",""],["r",""],["q",""]]}`)
	s.ok("/0/confirm_write", `{"written_keys_to_confirm":[["K",0]]}`)
	return s
}

// TestMalformedBodies: a body that is not a JSON object, or that is ambiguous, gets 500 on
// every route, as on the reference servers, and changes nothing.
func TestMalformedBodies(t *testing.T) {
	s := withSomething(t, httpserver.Options{})
	before := s.state()
	for path, good := range valid {
		inner := strings.TrimSuffix(good, "}")
		comma := ","
		if inner == "{" {
			comma = ""
		}
		for name, body := range map[string]string{
			"empty":             "",
			"blank":             " \n",
			"cut":               inner,
			"list":              "[" + good + "]",
			"null":              "null",
			"string":            `"{}"`,
			"number":            "1",
			"two objects":       good + good,
			"something after":   good + "x",
			"trailing comma":    inner + ",}",
			"no value":          inner + comma + `"x":}`,
			"NaN":               inner + comma + `"x":NaN}`,
			"bad number":        inner + comma + `"x":01}`,
			"bad escape":        inner + comma + `"x":"\q"}`,
			"control character": inner + comma + "\"x\":\"\x01\"}",
			"single quotes":     "{'num_pages':7}",
			"comment":           "/* */" + good,
			"byte order mark":   "\ufeff" + good,
			"invalid UTF-8":     inner + comma + "\"x\":\"\xff\"}",
			"lone surrogate":    inner + comma + `"x":"\ud800"}`,
			"field twice":       inner + comma + `"x":1,"x":2}`,
			"known field twice": `{"keys":["K"],"keys":[],"num_pages":1,"num_pages":1,"namespace":"kv","namespace":"kv","rank":0,"rank":0}`,
			"deep nesting":      inner + comma + `"x":` + strings.Repeat("[", 1<<20) + strings.Repeat("]", 1<<20) + "}",
			"deep, not closed":  inner + comma + `"x":` + strings.Repeat(`{"a":`, 1<<18),
		} {
			status, answer := s.post(path, body)
			if status != 500 || !strings.HasPrefix(answer, `{"detail":"malformed body: `) || len(answer) > 1000 {
				t.Errorf("%s, %s: %d %s", path, name, status, short(answer))
			}
		}
	}
	if after := s.state(); after != before {
		t.Errorf("something changed:\n%s\n%s", before, after)
	}
	s.want("/clear", "\xff", 204, "") // which ignores the body
}

// TestWrongValues: fields that are missing, of a wrong type or out of range.
func TestWrongValues(t *testing.T) {
	s := withSomething(t, httpserver.Options{})
	before := s.state()
	long := `"` + strings.Repeat("k", 1<<20) + `"`
	for _, c := range []struct {
		path, body string
		status     int
	}{
		{"/rank/5/initialize", `{}`, 400},
		{"/rank/5/initialize", `{"num_pages":0}`, 400},
		{"/rank/5/initialize", `{"num_pages":-1,"role":"worker"}`, 400},
		{"/rank/5/initialize", `{"num_pages":4,"role":"boss"}`, 400},
		{"/rank/5/initialize", `{"num_pages":4,"role":null}`, 400},
		{"/rank/5/initialize", `{"num_pages":4,"role":7}`, 400},
		{"/rank/5/initialize", `{"num_pages":"4","role":"boss"}`, 400},
		{"/rank/5/initialize", `{"num_pages":2147483649}`, 400},
		{"/rank/5/initialize", `{"num_pages":9223372036854775807}`, 400},
		{"/rank/5/initialize", `{"num_pages":1e3}`, 500},
		{"/rank/5/initialize", `{"num_pages":4.0}`, 500},
		{"/rank/5/initialize", `{"num_pages":1` + strings.Repeat("0", 400) + `}`, 500},
		{"/rank/5/initialize", `{"num_pages":"4"}`, 500},
		{"/rank/5/initialize", `{"num_pages":null}`, 500},
		{"/rank/5/initialize", `{"num_pages":true}`, 500},

		{"/keys/batch_allocate", `{}`, 400},
		{"/keys/batch_allocate", `{"keys":[["a",""]]}`, 400},
		{"/keys/batch_allocate", `{"rank":null,"keys":[["a",""]]}`, 400},
		{"/keys/batch_allocate", `{"rank":0,"keys":null}`, 400},
		{"/keys/batch_allocate", `{"rank":0,"keys":"ab"}`, 400},
		{"/keys/batch_allocate", `{"rank":0,"keys":{"a":""}}`, 400},
		{"/keys/batch_allocate", `{"keys":[1]}`, 400},
		{"/keys/batch_allocate", `{"rank":9,"keys":[["a",""]]}`, 500},
		{"/keys/batch_allocate", `{"rank":-1,"keys":[["a",""]]}`, 500},
		{"/keys/batch_allocate", `{"rank":"0","keys":[["a",""]]}`, 500},
		{"/keys/batch_allocate", `{"rank":0.0,"keys":[["a",""]]}`, 500},
		{"/keys/batch_allocate", `{"rank":0,"keys":["ab"]}`, 500},
		{"/keys/batch_allocate", `{"rank":0,"keys":[["a",""],["b"]]}`, 500},
		{"/keys/batch_allocate", `{"rank":0,"keys":[["a",""],[]]}`, 500},
		{"/keys/batch_allocate", `{"rank":0,"keys":[["a",""],["b","",""]]}`, 500},
		{"/keys/batch_allocate", `{"rank":0,"keys":[["a",""],[["b",[{}]],""]]}`, 500},
		{"/keys/batch_allocate", `{"rank":0,"keys":[["a",""],[null,""]]}`, 500},
		{"/keys/batch_allocate", `{"rank":0,"keys":[["a",""],[` + long + `,""]]}`, 400},

		{"/keys/confirm_write", `{"confirmations":[["r",1]]}`, 400},
		{"/keys/confirm_write", `{"rank":0,"confirmations":{}}`, 400},
		{"/keys/confirm_write", `{"rank":0,"confirmations":null}`, 400},
		{"/keys/confirm_write", `{"rank":9,"confirmations":[["r",1]]}`, 500},
		{"/keys/confirm_write", `{"rank":9,"confirmations":[],"pages_to_release":[1]}`, 500},
		{"/keys/confirm_write", `{"rank":0,"confirmations":[["r",1],["q"]]}`, 500},
		{"/keys/confirm_write", `{"rank":0,"confirmations":[["r",1],["q",2.0]]}`, 500},
		{"/keys/confirm_write", `{"rank":0,"confirmations":[["r",1],["q","2"]]}`, 500},
		{"/keys/confirm_write", `{"rank":0,"confirmations":[["r",1],["q",null]]}`, 500},
		{"/keys/confirm_write", `{"rank":0,"confirmations":[["r",1],["q",99999999999999999999]]}`, 500},
		{"/keys/confirm_write", `{"rank":0,"confirmations":[["r",1]],"pages_to_release":7}`, 500},
		{"/keys/confirm_write", `{"rank":0,"confirmations":[["r",1]],"pages_to_release":[1.5]}`, 500},
		{"/keys/confirm_write", `{"rank":0,"confirmations":[["r",1]],"pages_to_release":[[2]]}`, 500},
		{"/keys/confirm_write", `{"rank":0,"confirmations":[["r",1],[` + long + `,2]]}`, 400},

		{"/keys/batch_exists", `{"keys":7}`, 400},
		{"/keys/batch_exists", `{"keys":null}`, 400},
		{"/keys/batch_exists", `{"keys":["K",7]}`, 500},
		{"/keys/batch_exists", `{"keys":["K",["K"]]}`, 500},
		{"/keys/batch_exists", `{"keys":[` + long + `]}`, 400},
		{"/keys/get_locations", `{"keys":["K"]}`, 400},
		{"/keys/get_locations", `{"rank":0,"keys":"K"}`, 400},
		{"/keys/get_locations", `{"rank":0,"keys":[{}]}`, 500},
		{"/keys/get_locations", `{"rank":9,"keys":["K"]}`, 500},
		{"/keys/get_locations", `{"rank":99999999999999999999,"keys":["K"]}`, 500},

		{"/5/initialize", `{}`, 500},
		{"/5/initialize", `{"num_pages":"7"}`, 500},
		{"/5/initialize", `{"num_pages":7.5}`, 500},
		{"/5/initialize", `{"num_pages":7,"namespace":7}`, 500},
		{"/5/initialize", `{"num_pages":7,"namespace":null}`, 500},
		{"/5/initialize", `{"num_pages":0}`, 400},
		{"/5/initialize", `{"num_pages":-7}`, 400},
		{"/5/initialize", `{"num_pages":2147483649}`, 400},
		{"/5/initialize", `{"num_pages":7,"namespace":` + long + `}`, 400},
		{"/0/exists", `{}`, 500},
		{"/0/exists", `{"keys":"K"}`, 500},
		{"/0/exists", `{"keys":["K",7]}`, 500},
		{"/0/exists", `{"keys":["K"],"namespace":["kv"]}`, 500},
		{"/0/exists", `{"keys":["K"],"namespace":"x"}`, 404},
		{"/9/exists", `{"keys":["K"]}`, 404},
		{"/0/exists", `{"keys":[` + long + `]}`, 400},
		{"/0/reserve_and_allocate_page_indices", `{}`, 500},
		{"/0/reserve_and_allocate_page_indices", `{"keys":["a"]}`, 500},
		{"/0/reserve_and_allocate_page_indices", `{"keys":[["a",""],["b"]]}`, 500},
		{"/9/reserve_and_allocate_page_indices", `{"keys":[["a",""]]}`, 404},
		{"/0/reserve_and_allocate_page_indices", `{"keys":[["a",""],[` + long + `,""]]}`, 400},
		{"/0/confirm_write", `{"written_keys_to_confirm":7}`, 500},
		{"/0/confirm_write", `{"written_keys_to_confirm":[["r",1]],"pages_to_release":"2"}`, 500},
		{"/0/confirm_write", `{"written_keys_to_confirm":[["r",1],["q",true]]}`, 500},
		{"/9/confirm_write", `{"written_keys_to_confirm":[["r",1]]}`, 404},
		{"/0/delete_keys", `{}`, 500},
		{"/0/delete_keys", `{"keys":["K",null]}`, 500},
		{"/9/delete_keys", `{"keys":["K"]}`, 404},
		{"/9/clear", `{}`, 404},
		{"/0/clear", `{"namespace":7}`, 500},
		{"/0/get_page_indices", `{}`, 500},
		{"/0/get_page_indices", `{"keys":[1]}`, 500},
		{"/9/get_page_indices", `{"keys":["K"]}`, 404},
	} {
		status, answer := s.post(c.path, c.body)
		if status != c.status || !strings.HasPrefix(answer, `{"detail":"`) {
			t.Errorf("%s %s: %d %s; want %d", c.path, short(c.body), status, short(answer), c.status)
		}
	}
	if after := s.state(); after != before {
		t.Errorf("something changed:\n%s\n%s", before, after)
	}
}

// TestForeignPages: pages out of range, or of other clients, are ignored and no error: a
// client that repeats a confirmation must not fail.
func TestForeignPages(t *testing.T) {
	s := withSomething(t, httpserver.Options{})
	before := s.state()
	for _, page := range []int64{-1, -1 << 63, 3, 8, 1 << 40, 1<<63 - 1} {
		s.want("/keys/confirm_write", fmt.Sprintf(`{"rank":0,"confirmations":[["other",%d]],"pages_to_release":[%d]}`, page, page), 204, "")
		s.want("/0/confirm_write", fmt.Sprintf(`{"written_keys_to_confirm":[["other",%d]],"pages_to_release":[%d]}`, page, page), 204, "")
	}
	if after := s.state(); after != before {
		t.Errorf("something changed:\n%s\n%s", before, after)
	}
}

// TestKeysAreOpaque: any string is a key, and comes back unchanged.
func TestKeysAreOpaque(t *testing.T) {
	s := start(t, httpserver.Options{}, pageservice.Options{})
	s.ok("/rank/0/initialize", `{"num_pages":100}`)
	for i, key := range []string{`"a\"b"`, `"a\\b"`, `"\u0000"`, `"<&>"`, `"é🦊"`, `"a/b c"`, `"\u2028"`} {
		page := fmt.Sprint(i)
		status, answer := s.post("/keys/batch_allocate", `{"rank":0,"keys":[[`+key+`,null],[`+key+`,{"any":["thing"]}]]}`)
		if want := `{"rank":0,"results":[[` + key + `,` + page + `]]}`; status != 200 || answer != want && key != `"\u2028"` {
			t.Errorf("%d %s, want %s", status, answer, want)
		}
		s.want("/keys/confirm_write", `{"rank":0,"confirmations":[[`+key+`,`+page+`]]}`, 204, "")
		s.want("/keys/batch_exists", `{"keys":[`+key+`]}`, 200, `{"exists":[true]}`)
	}
	// Two spellings of a string are one string, also in names of fields.
	s.ok("/keys/batch_allocate", `{"rank":0,"keys":[["abc",""]]}`)
	s.want("/keys/confirm_write", `{"r\u0061nk":0,"confirmations":[["\u0061bc",7]],"unknown":{"x":[1.5]}}`, 204, "")
	s.want("/keys/batch_exists", `{"keys":["abc"]}`, 200, `{"exists":[true]}`)
}
