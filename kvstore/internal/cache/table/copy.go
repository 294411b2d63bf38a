package table

import (
	"errors"

	"github.com/zeebo/xxh3"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// ErrDamaged is the error of a shard whose bytes in memory have changed.
var ErrDamaged = errors.New("checksum is wrong")

// pieceBytes is how much is copied before its checksum is computed: little enough to be
// in the processor's cache still.
const pieceBytes = 128 << 10

// add adds the next piece of a shard to its checksum.
func add(sum uint64, piece []byte) uint64 { return sum*0x9e3779b97f4a7c15 + xxh3.Hash(piece) }

// seed makes the checksum of a shard differ from that of the same bytes in another place,
// so that mixed-up slots are noticed.
func seed(key kv.Key, index int) uint64 {
	low, high := halves(key)
	return low ^ high<<1 ^ uint64(index)<<32
}

func (t *Table) sumAt(slot int32, index int) int64 {
	return t.p.sums + (int64(slot)*t.p.shards+int64(index))*8
}

// put records a checksum, and then that the shard is there.
func (t *Table) put(slot int32, index int, sum uint64) {
	t.m.StoreUint64(t.sumAt(slot, index), sum)
	t.m.OrUint64(t.bitsAt(slot)+int64(index/64*8), 1<<(index%64))
}

// Sum is the checksum of a shard in memory.
func Sum(s kv.Shard) uint64 {
	sum := seed(s.Key, s.Index)
	for rest := s.Buf; len(rest) > 0; {
		n := min(pieceBytes, len(rest))
		sum, rest = add(sum, rest[:n]), rest[n:]
	}
	return sum
}

// Write copies a shard into a slot that this process owns, and returns its Sum if the
// table verifies. Any goroutine may call it, but only one for each shard.
func (t *Table) Write(slot int32, key kv.Key, index int, src []byte) (sum uint64, err error) {
	at := t.shardAt(slot, index)
	sum = seed(key, index)
	err = t.guardUnbroken(func() {
		for len(src) > 0 {
			n := min(pieceBytes, len(src))
			t.m.CopyIn(at, src[:n])
			if t.c.Verify {
				sum = add(sum, src[:n])
			}
			src, at = src[n:], at+int64(n)
		}
		t.put(slot, index, sum)
	})
	return sum, err
}

// Seal is Write for a shard that a device has put into the slot's memory. It always
// returns the Sum.
func (t *Table) Seal(slot int32, key kv.Key, index int) (sum uint64, err error) {
	err = t.guardUnbroken(func() {
		sum = Sum(kv.Shard{Key: key, Index: index, Buf: t.Shard(slot, index)})
		t.put(slot, index, sum)
	})
	return sum, err
}

// ErrVersion is the error of a shard that is of another version of the block than those in
// the slot.
var ErrVersion = errors.New("of another version of the block")

// SetVersion says of which version the shards are that are about to be accepted, and
// returns an ErrVersion if others are in the slot. One goroutine at a time may call it for
// a slot.
func (t *Table) SetVersion(slot int32, version uint64) (err error) {
	broken := t.guardUnbroken(func() {
		switch t.m.LoadUint64(t.headAt(slot) + fromAt) {
		case version:
		case 0:
			t.m.StoreUint64(t.headAt(slot)+fromAt, version)
		default:
			err = ErrVersion
		}
	})
	if broken != nil {
		return broken
	}
	return err
}

// Accept is Write for a shard that storage has put into the slot's memory. It copies
// the shard into dst, unless that is nil.
func (t *Table) Accept(dst []byte, slot int32, key kv.Key, index int) error {
	if dst == nil && !t.c.Verify {
		return t.guardUnbroken(func() { t.put(slot, index, 0) })
	}
	return t.guardUnbroken(func() { t.put(slot, index, t.copyOut(dst, slot, key, index)) })
}

// guardUnbroken is guard, with an error also if the memory was given up meanwhile.
func (t *Table) guardUnbroken(fn func()) error {
	err := t.guard(fn)
	if err == nil && t.Broken() {
		return ErrBroken
	}
	return err
}

// Read copies a shard of a slot that this process has pinned, and that has it, into
// dst. Any goroutine may call it. With nil it only compares the checksum.
func (t *Table) Read(dst []byte, slot int32, key kv.Key, index int) (was Recorded, err error) {
	var got uint64
	err = t.guardUnbroken(func() {
		was = Recorded{Version: t.m.LoadUint64(t.headAt(slot) + fromAt), Sum: t.m.LoadUint64(t.sumAt(slot, index))}
		got = t.copyOut(dst, slot, key, index)
	})
	if err == nil && t.c.Verify && got != was.Sum {
		return was, ErrDamaged
	}
	return was, err
}

// Recorded is what a table has recorded of a shard.
type Recorded struct {
	Version uint64 // of its block
	Sum     uint64
}

// copyOut copies a shard and returns the checksum of the copy, or of the shard where dst
// is nil.
func (t *Table) copyOut(dst []byte, slot int32, key kv.Key, index int) uint64 {
	sum := seed(key, index)
	at, end := t.shardAt(slot, index), t.shardAt(slot, index)+t.p.shardBytes
	for at < end {
		n := min(pieceBytes, end-at)
		piece := t.m.Bytes()[at : at+n]
		if dst != nil {
			t.m.CopyOut(dst[:n], at)
			piece, dst = dst[:n], dst[n:]
		}
		if t.c.Verify {
			sum = add(sum, piece)
		}
		at += n
	}
	return sum
}
