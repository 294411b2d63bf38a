// Package blockhead encodes the record that identifies a stored block and lets a reader
// verify it: 4096 bytes before, behind or beside the block.
//
//	  0  8  magic "kv3fsBLK"
//	  8  4  version, 1
//	 12  4  number of shards, N
//	 16 16  fingerprint of the namespace
//	 32 16  key
//	 48  8  bytes of the block
//	 56  8  sequence: its meaning is the store's (a segment's generation)
//	 64 8N  XXH3-64 of each shard
//	...     zeros
//	4088 8  XXH3-64 of all bytes before
//
// Numbers are little-endian. The package does no I/O.
package blockhead

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"

	"github.com/zeebo/xxh3"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

const (
	// Size is the length of a record.
	Size = 4096

	version   = 1
	sumsAt    = 64
	ownSumAt  = Size - 8
	maxShards = (ownSumAt - sumsAt) / 8
)

var magic = [8]byte{'k', 'v', '3', 'f', 's', 'B', 'L', 'K'}

// A record has space for every shard that a block may have.
const _ = uint(maxShards - kv.MaxShards)

// Head is a record's content.
type Head struct {
	Namespace  kv.Fingerprint
	Key        kv.Key
	BlockBytes int64
	Sequence   uint64
	Sums       []uint64 // of each shard
}

// Sum is the checksum of a shard.
func Sum(shard []byte) uint64 { return xxh3.Hash(shard) }

// Encode writes the record into dst, which is Size bytes long.
func (h *Head) Encode(dst []byte) {
	dst = dst[:Size]
	clear(dst)
	copy(dst, magic[:])
	binary.LittleEndian.PutUint32(dst[8:], version)
	binary.LittleEndian.PutUint32(dst[12:], uint32(len(h.Sums)))
	copy(dst[16:], h.Namespace[:])
	copy(dst[32:], h.Key[:])
	binary.LittleEndian.PutUint64(dst[48:], uint64(h.BlockBytes))
	binary.LittleEndian.PutUint64(dst[56:], h.Sequence)
	for i, sum := range h.Sums {
		binary.LittleEndian.PutUint64(dst[sumsAt+8*i:], sum)
	}
	binary.LittleEndian.PutUint64(dst[ownSumAt:], xxh3.Hash(dst[:ownSumAt]))
}

// ErrNone means that there is no record here: none was ever written, or its first bytes
// are damaged. Where a block is known to be, treat it as damage.
var ErrNone = errors.New("no block here")

// Decode reads a record of Size bytes. Sums does not alias src; if the slice that h has
// is large enough, it is reused.
func (h *Head) Decode(src []byte) error {
	if len(src) < Size {
		return fmt.Errorf("a record of %d bytes instead of %d", len(src), Size)
	}
	src = src[:Size]
	if [8]byte(src) != magic {
		return ErrNone
	}
	if got, want := xxh3.Hash(src[:ownSumAt]), binary.LittleEndian.Uint64(src[ownSumAt:]); got != want {
		return errors.New("the record's own checksum is wrong")
	}
	if v := binary.LittleEndian.Uint32(src[8:]); v != version {
		return fmt.Errorf("a record of version %d; this program knows version %d", v, version)
	}
	n := binary.LittleEndian.Uint32(src[12:])
	if n == 0 || n > maxShards {
		return fmt.Errorf("a record of %d shards", n)
	}
	h.Namespace = kv.Fingerprint(src[16:32])
	h.Key = kv.Key(src[32:48])
	h.BlockBytes = int64(binary.LittleEndian.Uint64(src[48:]))
	h.Sequence = binary.LittleEndian.Uint64(src[56:])
	h.Sums = h.Sums[:0]
	for i := range int(n) {
		h.Sums = append(h.Sums, binary.LittleEndian.Uint64(src[sumsAt+8*i:]))
	}
	return nil
}

// Match returns an error unless the record is that of this block.
func (h *Head) Match(ns kv.Fingerprint, key kv.Key, l kv.Layout) error {
	switch {
	case h.Namespace != ns:
		return fmt.Errorf("it is of namespace %s, not %s", h.Namespace, ns)
	case h.Key != key:
		return fmt.Errorf("it is block %s", h.Key)
	case h.BlockBytes != l.BlockBytes || len(h.Sums) != l.Shards():
		return fmt.Errorf("it has %d bytes in %d shards, not %d in %d", h.BlockBytes, len(h.Sums), l.BlockBytes, l.Shards())
	}
	return nil
}

// Version tells contents of one key apart. It is never 0.
func (h *Head) Version() uint64 {
	v := uint64(len(h.Sums))
	for _, sum := range h.Sums {
		v = bits.RotateLeft64(v*0x9e3779b97f4a7c15, 29) ^ sum
	}
	return max(v, 1)
}

// Verify returns an error unless a shard that was read is the one that was written.
func (h *Head) Verify(index int, shard []byte) error { return h.VerifySum(index, Sum(shard)) }

// VerifySum is Verify for a caller that has the checksum of what was read.
func (h *Head) VerifySum(index int, sum uint64) error {
	if sum != h.Sums[index] {
		return fmt.Errorf("checksum of shard %d is %016x, not %016x", index, sum, h.Sums[index])
	}
	return nil
}
