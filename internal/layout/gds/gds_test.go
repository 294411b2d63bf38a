package gds

import (
	"encoding/binary"
	"strings"
	"testing"
)

func TestNamesThatAreNone(t *testing.T) {
	for _, name := range []string{
		"", ".kvcache.safetensors", ".metadata", "a.safetensors", "a@b.kvcache.safetensors", "a%4.kvcache.safetensors", "a%2f.kvcache.safetensors",
		"a%41.kvcache.safetensors", "a b.weka1", "a.weka1.tmp1234567", "a.weka1.tmp12345-78", "a.metadata", "a.weka1.metadata.metadata",
		"a.kvcache.safetensors.tmp", "a%.weka1",
	} {
		if n, ok := ParseName(name); ok {
			t.Errorf("%q is %+v", name, n)
		}
	}
	for name, want := range map[string]Name{
		"a.weka1.tmp0badF00d":                            {Key: "a", Weka: true, Temp: "0badF00d"},
		"a%401.kvcache.safetensors.metadata.tmp00000000": {Key: "a@1", Kind: Side, Temp: "00000000"},
		"a.weka1.weka1":                                  {Key: "a.weka1", Weka: true},
		"a.tmp12345678.weka1":                            {Key: "a.tmp12345678", Weka: true},
	} {
		if n, ok := ParseName(name); !ok || n != want {
			t.Errorf("%q is %+v, %v", name, n, ok)
		}
	}
}

func TestDir(t *testing.T) {
	for hash, want := range map[string]string{"0": "0", "-1": "-1", "-c": "-1/2", "3e7": "99/9", "ff": "25/5", "-8000000000000000": "-9/22"} {
		dir, err := Dir(hash)
		if err != nil || dir != want {
			t.Errorf("%s: %q, %v", hash, dir, err)
		}
		for name := range strings.SplitSeq(dir, "/") {
			if !IsDir(name) {
				t.Errorf("%q is no directory", name)
			}
		}
	}
	for _, hash := range []string{"", "-", "-0", "00", "+1", "0x1", "FF", "g", "1_0", " 1", strings.Repeat("1", 65)} {
		if dir, err := Dir(hash); err == nil {
			t.Errorf("%q: %q", hash, dir)
		}
	}
	for _, name := range []string{"", "-", "123", "ab", "--", ".1", "1 ", "-12", "1-"} {
		if IsDir(name) {
			t.Errorf("%q is a directory", name)
		}
	}
}

// text makes a header of JSON.
func text(json string) []byte {
	raw := binary.LittleEndian.AppendUint64(nil, textBytes)
	return append(raw, json+strings.Repeat(" ", textBytes-len(json))...)
}

func TestHeadersThatAreNone(t *testing.T) {
	good := `{"kvcache": {"dtype": "F16", "shape": [2, 3], "data_offsets": [0, 12], "fmt": 1, "__metadata__": {"lmcache_version": "1"}}}`
	if h, err := ParseHeader(text(good)); err != nil || h.Bytes != 12 {
		t.Fatalf("%+v, %v", h, err)
	}
	for from, to := range map[string]string{
		`"kvcache"`:              `"KVCACHE"`,
		`"dtype"`:                `"DType"`,
		`"F16"`:                  `"F17"`,
		`[2, 3]`:                 `[2, 4]`,
		`"shape": [2, 3], `:      ``,
		`[0, 12]`:                `[4, 16]`,
		`12]`:                    `12, 13]`,
		`"fmt": 1, `:             ``,
		`"fmt": 1`:               `"fmt": -1`,
		`"lmcache_version": "1"`: `"lmcache_version": "2"`,
		`{"lmcache_version"`:     `{"version"`,
		`"__metadata__"`:         `"metadata"`,
		`"fmt"`:                  `"shapes": [[2], [3]], "dtypes": ["F16"], "fmt"`,
		`"fmt": 1,`:              `"shapes": [[5]], "dtypes": ["F16"], "fmt": 1,`,
		`}}}`:                    `}}`,
		`{"kvcache"`:             `[{"kvcache"`,
		`[2, 3]`[:2]:             `[-2`,
	} {
		bad := strings.Replace(good, from, to, 1)
		if h, err := ParseHeader(text(bad)); err == nil {
			t.Errorf("%s: %+v", bad, h)
		}
	}
	for _, ignored := range []string{`"shapes": null, "dtypes": null`, `"shapes": [[2, 3]]`, `"more": {}`} { // as LMCache does
		if h, err := ParseHeader(text(strings.Replace(good, `"fmt"`, ignored+`, "fmt"`, 1))); err != nil || len(h.Groups) > 0 {
			t.Errorf("%s: %+v, %v", ignored, h, err)
		}
	}
	short := text(good)
	binary.LittleEndian.PutUint64(short, 120) // a payload behind it would be found at 128
	for _, raw := range [][]byte{nil, text(good)[:4095], append(text(good), ' '), short, text("null"), text(`{"kvcache": null}`)} {
		if h, err := ParseHeader(raw); err == nil {
			t.Errorf("%.20q: %+v", raw, h)
		}
	}
}

func TestHeadersThatCannotBe(t *testing.T) {
	many := make([]Group, mostGroups)
	for i := range many {
		many[i] = Group{"F8E4M3FN", []int64{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}}
	}
	for name, h := range map[string]Header{
		"no type":    {Shape: []int64{1}, Bytes: 1},
		"wrong size": {DType: "U8", Shape: []int64{2}, Bytes: 1},
		"no shape":   {DType: "U8", Shape: []int64{0}},
		"too large":  {DType: "U64", Shape: []int64{1 << 40, 1 << 40}},
		"too long":   {DType: "U8", Shape: many[0].Shape, Bytes: mostGroups, Groups: many},
		"a group":    {DType: "U8", Shape: []int64{1}, Bytes: 2, Groups: []Group{{"U8", []int64{2}}, {"", nil}}},
	} {
		if raw, err := h.Encode(); err == nil {
			t.Errorf("%s: %.200s", name, raw)
		}
	}
}

func TestDTypeOf(t *testing.T) {
	for word, want := range map[string]string{"half": "F16", "bfloat16": "BF16", "fp8_e5m2": "F8E5M2"} {
		if got, ok := DTypeOf(word); !ok || got != want {
			t.Errorf("%s is %s", word, got)
		}
	}
	if got, ok := DTypeOf("fp8_e4m3fnuz"); ok {
		t.Errorf("it is %s", got)
	}
}
