package gds

import (
	"bytes"
	"path"
	"testing"
)

func FuzzName(f *testing.F) {
	f.Add("meta%2Fx%401%400%4012ab%40half.kvcache.safetensors")
	f.Add("a.weka1.metadata.tmp0123abcd")
	f.Add("%00%FF.kvcache.safetensors")
	f.Add("%zz.weka1")
	f.Fuzz(func(t *testing.T, name string) {
		n, ok := ParseName(name)
		if ok && (n.String() != name || n.Key == "" || path.Base(name) != name) {
			t.Fatalf("%q became %+v", name, n)
		}
		// Any text can be a key.
		if name != "" {
			back, ok := ParseName(Name{Key: name, Kind: Side, Temp: "abcdefgh"}.String())
			if !ok || back.Key != name || back.Kind != Side {
				t.Fatalf("key %q became %+v", name, back)
			}
		}
	})
}

func FuzzHeader(f *testing.F) {
	h := Header{DType: "BF16", Shape: []int64{2, 4}, Bytes: 16, Format: 1}
	for _, groups := range [][]Group{nil, {{"BF16", []int64{2, 4}}}, {{"U8", []int64{8}}, {"F32", []int64{2}}}} {
		h.Groups = groups
		if raw, err := h.Encode(); err == nil {
			f.Add(raw)
		}
	}
	f.Add(text(`{"kvcache": {"dtype": "F16", "shape": [2, 3], "data_offsets": [0, 12], "fmt": 1, "__metadata__": {"lmcache_version": "1"}, "shapes": null}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		h, err := ParseHeader(raw)
		if err != nil {
			return
		}
		if h.Bytes <= 0 || h.FileBytes() <= HeaderBytes {
			t.Fatalf("%+v", h)
		}
		again, err := h.Encode()
		if err != nil {
			return // as one line it is too long
		}
		back, err := ParseHeader(again)
		third, failed := back.Encode()
		if err != nil || failed != nil || !bytes.Equal(again, third) {
			t.Fatalf("%+v became %+v: %v", h, back, err)
		}
	})
}
