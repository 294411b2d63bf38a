package storetest

import (
	"bytes"
	"encoding/binary"

	"github.com/kv3fs/kv3fs/internal/bench/workload"
	"github.com/kv3fs/kv3fs/kvstore/kv"
)

// keyNames sets the patterns of keys apart from those of content.
const keyNames = 0x6b657973

// key is the n-th of the suite's keys.
func key(n int) kv.Key {
	var k kv.Key
	workload.PatternOf(keyNames, uint64(n)).Fill(k[:])
	return k
}

// keys are n of them, from the first-th on.
func keys(first, n int) []kv.Key {
	all := make([]kv.Key, n)
	for i := range all {
		all[i] = key(first + i)
	}
	return all
}

// content is what a shard of a block must have.
func content(k kv.Key, index int) workload.Pattern {
	return workload.PatternOf(binary.LittleEndian.Uint64(k[:8]), binary.LittleEndian.Uint64(k[8:]), uint64(index))
}

// fill gives shards their content.
func fill(shards []kv.Shard) []kv.Shard {
	for _, s := range shards {
		content(s.Key, s.Index).Fill(s.Buf)
	}
	return shards
}

// mangle makes the buffers have what no shard has.
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

// guarded is memory with a margin on both sides that nobody may write to.
type guarded struct {
	whole []byte
	buf   []byte
}

// newGuarded makes memory that begins at no round address. Its capacity reaches into
// the margin, as that of a part of an engine's memory reaches into the next part.
func newGuarded(sizeBytes int64, shift int) guarded {
	whole := bytes.Repeat([]byte{guard}, int(sizeBytes)+2*guardBytes)
	at := guardBytes/2 + 1 + shift%16
	return guarded{whole, whole[at : at+int(sizeBytes)]}
}

// intact says whether the margins are as they were.
func (g guarded) intact() bool {
	before := cap(g.whole) - cap(g.buf)
	margins := append(bytes.Clone(g.whole[:before]), g.whole[before+len(g.buf):]...)
	return bytes.Count(margins, []byte{guard}) == len(margins)
}
