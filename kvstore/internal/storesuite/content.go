package storesuite

import (
	"bytes"
	"encoding/binary"

	"github.com/zeebo/xxh3"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// keyNames makes the patterns of keys differ from those of content.
const keyNames = 0x6b657973

// key returns the n-th key of the suite.
func key(n int) kv.Key {
	var k kv.Key
	patternOf(keyNames, uint64(n)).fill(k[:])
	return k
}

// keys returns n keys, beginning with the one of that number.
func keys(first, n int) []kv.Key {
	all := make([]kv.Key, n)
	for i := range all {
		all[i] = key(first + i)
	}
	return all
}

// content returns what a shard of a block must contain.
func content(k kv.Key, index int) pattern {
	return patternOf(binary.LittleEndian.Uint64(k[:8]), binary.LittleEndian.Uint64(k[8:]), uint64(index))
}

// fill gives shards their content.
func fill(shards []kv.Shard) []kv.Shard {
	for _, s := range shards {
		content(s.Key, s.Index).fill(s.Buf)
	}
	return shards
}

// mangle fills the buffers with bytes that no shard contains.
func mangle(shards []kv.Shard) {
	for _, s := range shards {
		for i := range s.Buf {
			s.Buf[i] = mangled
		}
	}
}

const (
	mangled    = 0x5a
	guard      = 0xc3
	guardBytes = 72
)

// guarded is memory with a margin on both sides that must not be written to.
type guarded struct {
	whole []byte
	buf   []byte
}

// newGuarded returns memory at an unaligned address. The capacity of its slice reaches
// into the margin, as that of a part of an engine's memory reaches into the next part.
func newGuarded(sizeBytes int64, shift int) guarded {
	whole := bytes.Repeat([]byte{guard}, int(sizeBytes)+2*guardBytes)
	at := guardBytes/2 + 1 + shift%16
	return guarded{whole, whole[at : at+int(sizeBytes)]}
}

// intact reports whether the margins are unchanged.
func (g guarded) intact() bool {
	before := cap(g.whole) - cap(g.buf)
	margins := append(bytes.Clone(g.whole[:before]), g.whole[before+len(g.buf):]...)
	return bytes.Count(margins, []byte{guard}) == len(margins)
}

// pattern is a stream of bytes that follows from a seed.
type pattern uint64

// patternOf returns a pattern that differs where any of the parts does.
func patternOf(parts ...uint64) pattern {
	var raw []byte
	for _, p := range parts {
		raw = binary.LittleEndian.AppendUint64(raw, p)
	}
	return pattern(xxh3.Hash(raw))
}

// word returns the i-th 8 bytes: splitmix64, of which every output is different.
func (p pattern) word(i int) uint64 {
	z := uint64(p) + uint64(i+1)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// fill writes the pattern into a buffer.
func (p pattern) fill(buf []byte) {
	for i := 0; len(buf) > 0; i++ {
		var word [8]byte
		binary.LittleEndian.PutUint64(word[:], p.word(i))
		buf = buf[copy(buf, word[:]):]
	}
}

// check compares a buffer with the pattern. It returns how many bytes differ, and where
// the first of them is.
func (p pattern) check(buf []byte) (wrongBytes, first int) {
	want := make([]byte, len(buf))
	p.fill(want)
	if bytes.Equal(want, buf) {
		return 0, -1
	}
	first = -1
	for i := range buf {
		if buf[i] != want[i] {
			if wrongBytes++; first < 0 {
				first = i
			}
		}
	}
	return wrongBytes, first
}
