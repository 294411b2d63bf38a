package lmcache

import (
	"bytes"
	"encoding/hex"
	"slices"
	"strings"
	"testing"
)

func padded(t *testing.T, p Padding, shape ...int) [4]int {
	to, err := Pad(shape, p)
	if err != nil {
		t.Fatal(err)
	}
	return to
}

func TestHeaders(t *testing.T) {
	four := Group{DTypeHalf, padded(t, PadZeros, 2, 32, 256, 1024)}
	for text, h := range map[string]Header{
		"00000002" + "01000000" + "02000000" + "02000000" + "20000000" + "00010000" + "00040000": {33554432, Format2LTD, []Group{four}},
		"00010000" + "06000000" + "03000000" + "02000000" + "40000000" + "00000000" + "00000000": {256, FormatMLA, []Group{{DTypeBFloat16, padded(t, PadZeros, 2, 64)}}},
		"00010000" + "06000000" + "03000000" + "01000000" + "01000000" + "02000000" + "40000000": {256, FormatMLA, []Group{{DTypeBFloat16, padded(t, PadOnes, 2, 64)}}},
		"0c000000" + "02000000" + "06000000" + "04000000" + "00000000" + "00000000" + "00000000" +
			"04000000" + "02000000" + "00000000" + "00000000" + "00000000": {12, FormatT2D, []Group{
			{DTypeUint8, padded(t, PadZeros, 4)}, {DTypeFloat, padded(t, PadZeros, 2)},
		}},
	} {
		want, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := h.Append([]byte("before"))[6:]; !bytes.Equal(got, want) || len(got) != HeaderBytes(len(h.Groups)) {
			t.Errorf("%+v: %x, want %x", h, got, want)
		}
		got, err := ParseHeader(append(want, 'x'), len(h.Groups))
		if err != nil || h.Same(got) != nil || got.PayloadBytes != h.PayloadBytes || !slices.Equal(got.Groups, h.Groups) {
			t.Errorf("%+v became %+v, %v", h, got, err)
		}
		if _, err := ParseHeader(want[:len(want)-1], len(h.Groups)); err == nil {
			t.Error("a cut header is read")
		}
	}
	if HeaderBytes(1) != 28 {
		t.Errorf("one group has %d bytes", HeaderBytes(1))
	}
}

func TestHeadersThatMeanTheSame(t *testing.T) {
	h := Header{2 * 3 * 4 * 2, Format2TD, []Group{{DTypeHalf, padded(t, PadZeros, 2, 3, 4)}}}
	old := Header{2 * 3 * 4 * 2, Format2TD, []Group{{DTypeOldHalf, padded(t, PadOnes, 2, 3, 4)}}}
	if err := h.Same(old); err != nil {
		t.Error(err)
	}
	for want, spoil := range map[string]func(*Header){
		"payload has 47": func(h *Header) { h.PayloadBytes-- },
		"format is 1":    func(h *Header) { h.Format = Format2LTD },
		"type is 3":      func(h *Header) { h.Groups[0].DType = DTypeBFloat16 },
		"shape is":       func(h *Header) { h.Groups[0].Shape = padded(t, PadZeros, 2, 4, 3) },
		"2 groups":       func(h *Header) { h.Groups = append(h.Groups, h.Groups[0]) },
	} {
		other := h
		other.Groups = slices.Clone(h.Groups)
		spoil(&other)
		if err := h.Same(other); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

func TestImpossibleHeaders(t *testing.T) {
	good := Header{48, Format2TD, []Group{{DTypeHalf, padded(t, PadZeros, 2, 3, 4)}}}
	if err := good.Check(); err != nil {
		t.Fatal(err)
	}
	for name, h := range map[string]Header{
		"no payload":           {0, Format2TD, good.Groups},
		"too large":            {1 << 31, Format2TD, good.Groups},
		"no such format":       {48, 7, good.Groups},
		"negative format":      {48, -1, good.Groups},
		"no groups":            {48, Format2TD, nil},
		"no type":              {48, Format2TD, []Group{{DTypeNone, good.Groups[0].Shape}}},
		"no such type":         {48, Format2TD, []Group{{9, good.Groups[0].Shape}}},
		"a hole in the shape":  {48, Format2TD, []Group{{DTypeHalf, [4]int{2, 0, 3, 4}}}},
		"a negative dimension": {48, Format2TD, []Group{{DTypeHalf, [4]int{-2, -3, 4, 0}}}},
		"overflow":             {48, Format2TD, []Group{{DTypeHalf, [4]int{1 << 30, 1 << 30, 1 << 30, 1 << 30}}}},
		"another size":         {50, Format2TD, good.Groups},
	} {
		if h.Check() == nil {
			t.Errorf("%s passes", name)
		}
	}
	for _, shape := range [][]int{nil, {1, 2, 3, 4, 5}, {0}, {-1, 2}, {1 << 31}} {
		if _, err := Pad(shape, PadOnes); err == nil {
			t.Errorf("shape %v is padded", shape)
		}
	}
}

// Every type has a word, and a word with a code has that code's size.
func TestTypes(t *testing.T) {
	coded := 0
	for _, word := range DTypes() {
		if got, ok := WordOf(word); !ok || got != word && word != "float" {
			t.Errorf("%s is called %s", word, got)
		}
		if code, ok := CodeOf(word); ok {
			coded++
			if code.Bytes() == 0 {
				t.Errorf("%s has no size", word)
			}
		}
	}
	if coded != 7 {
		t.Errorf("%d types have codes", coded)
	}
	if word, ok := WordOf("auto"); ok {
		t.Errorf("auto is %s", word)
	}
}

func FuzzParseHeader(f *testing.F) {
	h := Header{48, Format2TD, []Group{{DTypeHalf, [4]int{2, 3, 4, 0}}}}
	f.Add(h.Append(nil), 1)
	f.Add(make([]byte, 60), 2)
	f.Add(bytes.Repeat([]byte{0xff}, 28), 1)
	f.Fuzz(func(t *testing.T, src []byte, groups int) {
		h, err := ParseHeader(src, groups)
		if err != nil {
			return
		}
		if again := h.Append(nil); !bytes.Equal(again, src[:HeaderBytes(groups)]) {
			t.Errorf("%x became %+v and %x", src, h, again)
		}
		if err := h.Same(h); err != nil {
			t.Error(err)
		}
	})
}
