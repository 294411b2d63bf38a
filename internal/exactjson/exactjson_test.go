package exactjson

import (
	"encoding/json"
	"maps"
	"reflect"
	"testing"
)

type inner struct {
	Path string `json:"path"`
}

type value struct {
	inner
	Names []string `json:"na/me~s"`
	Each  []inner  `json:"each"`
	To    *inner   `json:"to,omitempty"`
	Count int      `json:"count"`
}

// What is not UTF-8 is the same after a way through JSON.
func TestThereAndBack(t *testing.T) {
	for _, v := range []value{
		{},
		{inner{"a\xff"}, []string{"b", "\xfe\n"}, []inner{{"x"}, {"y\x80/~"}}, &inner{"\xc0"}, 7},
		{inner{"plain ü\ufffd"}, nil, nil, &inner{}, 0},
	} {
		texts := NotUTF8(v)
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		var got value
		if err := json.Unmarshal(b, &got); err != nil {
			t.Fatal(err)
		}
		if err := Restore(&got, texts); err != nil || !reflect.DeepEqual(got, v) {
			t.Errorf("%+v is %+v, %v, with %q", v, got, err, texts)
		}
	}
	all := NotUTF8(value{inner{"a\xff"}, []string{"b", "\xfe\n"}, []inner{{"x"}, {"y\x80/~"}}, nil, 7})
	if want := map[string][]byte{"/path": []byte("a\xff"), "/na~1me~0s/1": []byte("\xfe\n"), "/each/1/path": []byte("y\x80/~")}; !maps.EqualFunc(all, want, func(a, b []byte) bool { return string(a) == string(b) }) {
		t.Errorf("%q", all)
	}
}

// A pointer of another value is an error, and no panic.
func TestRestoreElsewhere(t *testing.T) {
	for _, pointer := range []string{"", "/", "/count", "/each", "/each/0/path", "/each/-1/path", "/each/x", "/nothing", "/to/path", "/path/0", "path/"} {
		if err := Restore(&value{}, map[string][]byte{pointer: []byte("x")}); err == nil {
			t.Errorf("%q was found", pointer)
		}
	}
	if err := Restore(value{}, map[string][]byte{"/path": nil}); err == nil {
		t.Error("a value that cannot be changed was")
	}
}
