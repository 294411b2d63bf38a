package sums

import (
	"bytes"
	"encoding/binary"

	"github.com/zeebo/xxh3"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// A record in a log, numbers little-endian:
//
//	 0  4  magic "kSum"
//	 4  1  version, 1
//	 5  1  kind: 1 a block, 2 forget the record with this stamp, 3 the log was compacted to here
//	 6  2  number of shards, N; 0 for other kinds than 1
//	 8  8  stamp: a random number that tells records of one block apart
//	16 16  fingerprint of the namespace
//	32 16  key
//	48  8  bytes of the block
//	56 8N  XXH3-64 of each shard
//	..  8  XXH3-64 of all bytes before
//
// Records begin at multiples of 8.
// MostShards is how many shards a record may have: those of 16 blocks in one file.
const MostShards = 16 * kv.MaxShards

const (
	version    = 1
	kindBlock  = 1
	kindForget = 2
	kindEdge   = 3
	sumsAt     = 56
	leastBytes = sumsAt + 8
	mostBytes  = leastBytes + 8*MostShards
	alignBytes = 8
	stampAt    = 8
)

var magic = []byte("kSum")

// record is one entry of a log.
type record struct {
	forget bool
	edge   bool // what compaction has kept ends here
	stamp  uint64
	key    kv.Key
	shape  Shape
	sums   []uint64
}

// Shape is what all blocks of one deployment have in common.
type Shape struct {
	Namespace  kv.Fingerprint
	BlockBytes int64
	Shards     int
}

func (r *record) bytes() int { return leastBytes + 8*len(r.sums) }

// append adds the record to dst.
func (r *record) append(dst []byte) []byte {
	begin := len(dst)
	kind := byte(kindBlock)
	switch {
	case r.forget:
		kind = kindForget
	case r.edge:
		kind = kindEdge
	}
	dst = append(dst, magic...)
	dst = append(dst, version, kind)
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(r.sums)))
	dst = binary.LittleEndian.AppendUint64(dst, r.stamp)
	dst = append(dst, r.shape.Namespace[:]...)
	dst = append(dst, r.key[:]...)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(r.shape.BlockBytes))
	for _, sum := range r.sums {
		dst = binary.LittleEndian.AppendUint64(dst, sum)
	}
	return binary.LittleEndian.AppendUint64(dst, xxh3.Hash(dst[begin:]))
}

// decode reads the record at the beginning of src, and reports whether there is one.
func (r *record) decode(src []byte) bool {
	if len(src) < leastBytes || !bytes.HasPrefix(src, magic) || src[4] != version {
		return false
	}
	n := int(binary.LittleEndian.Uint16(src[6:]))
	r.forget, r.edge = src[5] == kindForget, src[5] == kindEdge
	block := src[5] == kindBlock
	switch {
	case !block && !r.forget && !r.edge, n > MostShards, block != (n > 0):
		return false
	case len(src) < leastBytes+8*n:
		return false
	}
	end := sumsAt + 8*n
	if xxh3.Hash(src[:end]) != binary.LittleEndian.Uint64(src[end:]) {
		return false
	}
	r.stamp = binary.LittleEndian.Uint64(src[stampAt:])
	r.shape = Shape{
		Namespace:  kv.Fingerprint(src[16:32]),
		BlockBytes: int64(binary.LittleEndian.Uint64(src[48:])),
		Shards:     n,
	}
	r.key = kv.Key(src[32:48])
	r.sums = r.sums[:0]
	for i := range n {
		r.sums = append(r.sums, binary.LittleEndian.Uint64(src[sumsAt+8*i:]))
	}
	return true
}

// scan calls found for each record in src, which begins at a multiple of 8 of the log,
// and skips what is damaged. It returns where the last good record ends: behind it, a
// record may still be being written. The record is valid during the call.
func scan(src []byte, found func(at int, r *record)) (end int) {
	var r record
	for at := 0; at+leastBytes <= len(src); {
		if r.decode(src[at:]) {
			found(at, &r)
			at += r.bytes()
			end = at
			continue
		}
		next := bytes.Index(src[at+1:], magic)
		if next < 0 {
			break
		}
		at = (at + 1 + next + alignBytes - 1) / alignBytes * alignBytes
	}
	return end
}
