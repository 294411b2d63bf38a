package gds

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

const (
	// HeaderBytes is the size of a header, in front of the payload and in the side file.
	HeaderBytes = 4096

	lengthBytes = 8
	textBytes   = HeaderBytes - lengthBytes

	// Version is the version that LMCache writes, and the only one that it reads.
	Version = "1"

	mostDims   = 16
	mostGroups = 64
)

// Header describes the payload of a chunk: one tensor, or several groups of tensors one after
// the other.
type Header struct {
	DType  string  // of the first group, such as BF16: see DTypes
	Shape  []int64 // of the first group
	Bytes  int64   // of the payload
	Format int     // LMCache's MemoryFormat

	// Groups has the shape and type of every group. Older releases of LMCache write none,
	// and newer ones none for a payload that is described by DType and Shape.
	Groups []Group
}

// Group is one tensor of a payload.
type Group struct {
	DType string
	Shape []int64
}

// elementBytes are the types that LMCache knows, with the size of an element.
var elementBytes = map[string]int64{
	"F16": 2, "BF16": 2, "F32": 4, "F64": 8, "F8E4M3FN": 1, "F8E5M2": 1,
	"U8": 1, "U16": 2, "U32": 4, "U64": 8, "I8": 1, "I16": 2, "I32": 4, "I64": 8,
}

// DTypeOf returns the word of headers for the word that keys have for a type, such as BF16 for
// bfloat16, and false for a type that headers have no word for.
func DTypeOf(keyWord string) (word string, ok bool) {
	word, ok = map[string]string{
		"half": "F16", "bfloat16": "BF16", "float": "F32", "double": "F64", "fp8_e4m3fn": "F8E4M3FN", "fp8_e5m2": "F8E5M2",
		"uint8": "U8", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64",
	}[keyWord]
	return word, ok
}

// Size returns the bytes of the tensor, and an error if there is none of its kind.
func (g Group) Size() (int64, error) {
	size, ok := elementBytes[g.DType]
	if !ok {
		return 0, fmt.Errorf("element type %.20q is unknown", g.DType)
	}
	if len(g.Shape) > mostDims {
		return 0, fmt.Errorf("a tensor has %d dimensions; at most %d are possible", len(g.Shape), mostDims)
	}
	for _, dim := range g.Shape {
		if dim <= 0 || size > math.MaxInt64/HeaderBytes/dim {
			return 0, fmt.Errorf("no tensor has the shape %v", g.Shape)
		}
		size *= dim
	}
	return size, nil
}

// Check returns an error unless the header describes a payload.
func (h Header) Check() error {
	first, err := Group{h.DType, h.Shape}.Size()
	if err != nil {
		return err
	}
	if len(h.Groups) > mostGroups {
		return fmt.Errorf("it has %d groups; at most %d are possible", len(h.Groups), mostGroups)
	}
	whole := first
	if len(h.Groups) > 0 {
		whole = 0
	}
	for _, g := range h.Groups {
		size, err := g.Size()
		if err != nil {
			return err
		}
		if whole > math.MaxInt64/HeaderBytes-size {
			return errors.New("its groups are too large")
		}
		whole += size
	}
	switch {
	case h.Bytes != whole:
		return fmt.Errorf("its tensors have %d bytes, and it says %d", whole, h.Bytes)
	case h.Format < 0:
		return fmt.Errorf("its format is %d", h.Format)
	}
	return nil
}

// FileBytes returns the size of the data file.
func (h Header) FileBytes() int64 { return HeaderBytes + h.Bytes }

// Encode returns the header as LMCache writes it, byte for byte.
func (h Header) Encode() ([]byte, error) {
	if err := h.Check(); err != nil {
		return nil, err
	}
	var b strings.Builder
	fmt.Fprintf(&b, `{"kvcache": {"dtype": "%s", "shape": %s, "data_offsets": [0, %d], "fmt": %d, "__metadata__": {"lmcache_version": "%s"}`,
		h.DType, list(h.Shape), h.Bytes, h.Format, Version)
	if len(h.Groups) > 0 {
		shapes, types := make([]string, len(h.Groups)), make([]string, len(h.Groups))
		for i, g := range h.Groups {
			shapes[i], types[i] = list(g.Shape), strconv.Quote(g.DType)
		}
		fmt.Fprintf(&b, `, "shapes": [%s], "dtypes": [%s]`, strings.Join(shapes, ", "), strings.Join(types, ", "))
	}
	b.WriteString("}}")
	if b.Len() > textBytes {
		return nil, fmt.Errorf("the header has %d bytes; at most %d are possible", b.Len(), textBytes)
	}
	raw := binary.LittleEndian.AppendUint64(make([]byte, 0, HeaderBytes), textBytes)
	raw = append(raw, b.String()...)
	return append(raw, bytes.Repeat([]byte{' '}, HeaderBytes-len(raw))...), nil
}

// list prints numbers as Python's json does.
func list(numbers []int64) string {
	words := make([]string, len(numbers))
	for i, n := range numbers {
		words[i] = strconv.FormatInt(n, 10)
	}
	return "[" + strings.Join(words, ", ") + "]"
}

// ParseHeader reads a header: the whole side file, or the beginning of the data file. Text that
// LMCache would not understand, or would understand as a payload that is somewhere else, is an
// error.
func ParseHeader(raw []byte) (Header, error) {
	if len(raw) != HeaderBytes {
		return Header{}, fmt.Errorf("a header has %d bytes, not %d", HeaderBytes, len(raw))
	}
	// The payload is behind the first 4096 bytes, whatever the length says.
	if n := binary.LittleEndian.Uint64(raw); n != textBytes {
		return Header{}, fmt.Errorf("its text has %d bytes instead of %d", n, textBytes)
	}
	// Fields are found by their exact names: a struct would take Shape for shape.
	top, err := object(bytes.TrimRight(raw[lengthBytes:], " "))
	if err != nil {
		return Header{}, err
	}
	tensor, err := object(top["kvcache"])
	if err != nil {
		return Header{}, fmt.Errorf("kvcache: %w", err)
	}
	extra, err := object(tensor["__metadata__"])
	if err != nil {
		return Header{}, fmt.Errorf("__metadata__: %w", err)
	}
	var (
		h       Header
		version string
		offsets []int64
		shapes  [][]int64
		types   []string
	)
	for _, f := range []struct {
		of   map[string]json.RawMessage
		name string
		to   any
		must bool
	}{
		{extra, "lmcache_version", &version, true}, {tensor, "dtype", &h.DType, true}, {tensor, "shape", &h.Shape, true},
		{tensor, "data_offsets", &offsets, true}, {tensor, "fmt", &h.Format, true},
		{tensor, "shapes", &shapes, false}, {tensor, "dtypes", &types, false},
	} {
		text, ok := f.of[f.name]
		if !ok && f.must {
			return Header{}, fmt.Errorf("it has no %s", f.name)
		}
		if ok {
			if err := json.Unmarshal(text, f.to); err != nil {
				return Header{}, fmt.Errorf("%s: %w", f.name, err)
			}
		}
	}
	switch {
	case version != Version:
		return Header{}, fmt.Errorf("its version is %.20q; only %s is known", version, Version)
	case len(offsets) != 2 || offsets[0] != 0:
		return Header{}, fmt.Errorf("its payload is at %d instead of [0, bytes]", offsets)
	case shapes != nil && types != nil && len(shapes) != len(types):
		return Header{}, fmt.Errorf("it has %d shapes and %d types", len(shapes), len(types))
	}
	h.Bytes = offsets[1]
	if shapes != nil && types != nil { // LMCache ignores one without the other
		for i := range shapes {
			h.Groups = append(h.Groups, Group{types[i], shapes[i]})
		}
	}
	if err := h.Check(); err != nil {
		return Header{}, err
	}
	return h, nil
}

// object reads the fields of a JSON object. Of two with the same name the last counts, as in
// Python.
func object(text []byte) (map[string]json.RawMessage, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, err
	}
	if fields == nil {
		return nil, errors.New("there is no object")
	}
	return fields, nil
}
