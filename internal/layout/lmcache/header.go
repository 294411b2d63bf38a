package lmcache

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
)

// Header is what a file begins with if save_chunk_meta is on. Each number is a
// little-endian int32:
//
//	payload length, memory format, then for each group: type, four numbers of the shape
type Header struct {
	PayloadBytes int64
	Format       MemoryFormat
	Groups       []Group
}

// Group is a tensor of the chunk. Most chunks are one.
type Group struct {
	DType DTypeCode
	Shape [4]int // padded, see Pad
}

// MemoryFormat says how a chunk's tensor is arranged.
type MemoryFormat int

// LMCache's memory formats.
const (
	FormatUndefined    MemoryFormat = iota
	Format2LTD                      // [2, layers, tokens, hidden]
	FormatT2D                       // [tokens, 2, hidden]
	Format2TD                       // [2, tokens, hidden]
	FormatBinary                    //
	FormatBinaryBuffer              //
	FormatMLA                       // [layers, tokens, hidden] or [1, layers, tokens, hidden]
)

// HeaderBytes is how long a header of so many groups is.
func HeaderBytes(groups int) int { return 4 * (2 + 5*groups) }

// Padding is how a shape of fewer than four numbers becomes four.
type Padding int

const (
	PadZeros Padding = iota // behind it, as newer builds do
	PadOnes                 // before it, as some older builds do
)

// Pad returns a shape as a header has it.
func Pad(shape []int, p Padding) ([4]int, error) {
	var to [4]int
	if len(shape) == 0 || len(shape) > len(to) {
		return to, fmt.Errorf("lmcache: the shape %v has %d numbers; it must have 1 to 4", shape, len(shape))
	}
	for _, n := range shape {
		if n < 1 || n > math.MaxInt32 {
			return to, fmt.Errorf("lmcache: the shape %v has a number that is not from 1 to %d", shape, math.MaxInt32)
		}
	}
	if p == PadZeros {
		copy(to[:], shape)
		return to, nil
	}
	missing := len(to) - len(shape)
	for i := range missing {
		to[i] = 1
	}
	copy(to[missing:], shape)
	return to, nil
}

// Dims returns the shape without its padding, whichever it is.
func (g Group) Dims() []int {
	dims := g.Shape[:]
	for len(dims) > 1 && dims[len(dims)-1] == 0 {
		dims = dims[:len(dims)-1]
	}
	for len(dims) > 1 && dims[0] == 1 {
		dims = dims[1:]
	}
	return slices.Clone(dims)
}

// Bytes returns how much memory the tensor takes, 0 where its type has no size.
func (g Group) Bytes() int64 {
	size := int64(g.DType.Bytes())
	for _, n := range g.Dims() {
		if n <= 0 || size > math.MaxInt64/int64(n) {
			return 0
		}
		size *= int64(n)
	}
	return size
}

// Append adds the header to dst.
func (h Header) Append(dst []byte) []byte {
	put := func(n int64) { dst = binary.LittleEndian.AppendUint32(dst, uint32(n)) }
	put(h.PayloadBytes)
	put(int64(h.Format))
	for _, g := range h.Groups {
		put(int64(g.DType))
		for _, n := range g.Shape {
			put(int64(n))
		}
	}
	return dst
}

// ParseHeader reads a header of so many groups. It checks that the numbers are possible, and
// that the tensors are as large as the payload.
func ParseHeader(src []byte, groups int) (Header, error) {
	if groups < 1 || groups > maxGroups {
		return Header{}, fmt.Errorf("lmcache: a header of %d groups", groups)
	}
	if len(src) < HeaderBytes(groups) {
		return Header{}, fmt.Errorf("lmcache: a header of %d groups has %d bytes, and there are %d", groups, HeaderBytes(groups), len(src))
	}
	next := func() int {
		n := int32(binary.LittleEndian.Uint32(src))
		src = src[4:]
		return int(n)
	}
	h := Header{PayloadBytes: int64(next()), Format: MemoryFormat(next())}
	for range groups {
		g := Group{DType: DTypeCode(next())}
		for i := range g.Shape {
			g.Shape[i] = next()
		}
		h.Groups = append(h.Groups, g)
	}
	return h, h.Check()
}

const maxGroups = 1024

// Check returns an error that says what is impossible in a header.
func (h Header) Check() error {
	if h.PayloadBytes < 1 || h.PayloadBytes > math.MaxInt32 {
		return fmt.Errorf("lmcache: a header has room for a payload of 1 to %d bytes, not %d", math.MaxInt32, h.PayloadBytes)
	}
	if h.Format < FormatUndefined || h.Format > FormatMLA {
		return fmt.Errorf("lmcache: there is no memory format %d", h.Format)
	}
	if len(h.Groups) == 0 {
		return fmt.Errorf("lmcache: the header has no group")
	}
	var sum int64
	for _, g := range h.Groups {
		if g.DType.Bytes() == 0 {
			return fmt.Errorf("lmcache: there is no type %d with a size", g.DType)
		}
		size := g.Bytes()
		if size < 1 || size > math.MaxInt32 {
			return fmt.Errorf("lmcache: the shape %v is none of a tensor", g.Shape)
		}
		sum += size
	}
	if sum != h.PayloadBytes {
		return fmt.Errorf("lmcache: the tensors have %d bytes and the payload %d", sum, h.PayloadBytes)
	}
	return nil
}

// Same returns an error that says how two headers differ in what they mean. Paddings, and the
// two codes of 16-bit floats, mean the same.
func (h Header) Same(other Header) error {
	switch {
	case h.PayloadBytes != other.PayloadBytes:
		return fmt.Errorf("lmcache: the payload has %d bytes, not %d", other.PayloadBytes, h.PayloadBytes)
	case h.Format != other.Format:
		return fmt.Errorf("lmcache: the memory format is %d, not %d", other.Format, h.Format)
	case len(h.Groups) != len(other.Groups):
		return fmt.Errorf("lmcache: there are %d groups, not %d", len(other.Groups), len(h.Groups))
	}
	for i, g := range h.Groups {
		is := other.Groups[i]
		if g.DType.canonical() != is.DType.canonical() {
			return fmt.Errorf("lmcache: the type is %d, not %d", is.DType, g.DType)
		}
		if !slices.Equal(g.Dims(), is.Dims()) {
			return fmt.Errorf("lmcache: the shape is %v, not %v", is.Dims(), g.Dims())
		}
	}
	return nil
}
