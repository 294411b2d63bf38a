package segment

import (
	"hash/maphash"
	"math/bits"
	"sync/atomic"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// slot is what the memory holds for a slot on the disk: 24 bytes, without a pointer that
// the garbage collector would follow.
type slot struct {
	key  kv.Key
	hits atomic.Uint32 // loads since it was written
	last atomic.Uint32 // the store's clock at the last load
}

// table finds the slot of a key. All slots that the capacity has space for exist from
// the beginning, so it never grows: 5 to 11 bytes a slot beside the slot itself.
type table struct {
	slots   []slot
	buckets []uint32 // 1 + the slot; linear probing, 0 is an empty bucket
	mask    uint32
	seed    maphash.Seed
	count   int
}

// maxSlots leaves numbers for the buckets.
const maxSlots = 1 << 31

func newTable(slots int) *table {
	buckets := uint64(1) << bits.Len64(uint64(slots)*4/3)
	return &table{
		slots:   make([]slot, slots),
		buckets: make([]uint32, buckets),
		mask:    uint32(buckets - 1),
		seed:    maphash.MakeSeed(),
	}
}

func (t *table) home(key kv.Key) uint32 { return uint32(maphash.Comparable(t.seed, key)) & t.mask }

// bucket returns the bucket of a key, or the empty bucket where it would be.
func (t *table) bucket(key kv.Key) uint32 {
	for at := t.home(key); ; at = (at + 1) & t.mask {
		if n := t.buckets[at]; n == 0 || t.slots[n-1].key == key {
			return at
		}
	}
}

// find returns the slot of a key.
func (t *table) find(key kv.Key) (at uint32, ok bool) {
	n := t.buckets[t.bucket(key)]
	return n - 1, n != 0
}

// has reports whether a slot is that of its key, and not a hole or left over from an
// earlier generation.
func (t *table) has(at uint32) bool {
	found, ok := t.find(t.slots[at].key)
	return ok && found == at
}

// put makes a slot that of a key, in place of another one that the key may have had.
func (t *table) put(key kv.Key, at uint32) {
	bucket := t.bucket(key)
	if t.buckets[bucket] == 0 {
		t.count++
	}
	t.slots[at].key = key
	t.slots[at].hits.Store(0)
	t.slots[at].last.Store(0)
	t.buckets[bucket] = at + 1
}

// remove removes a slot, and reports whether it was that of its key.
func (t *table) remove(at uint32) bool {
	bucket := t.bucket(t.slots[at].key)
	if t.buckets[bucket] != at+1 {
		return false
	}
	t.count--
	// The entries behind it move up, unless that would put them before their home.
	hole := bucket
	for next := (hole + 1) & t.mask; t.buckets[next] != 0; next = (next + 1) & t.mask {
		home := t.home(t.slots[t.buckets[next]-1].key)
		if (next-home)&t.mask >= (next-hole)&t.mask {
			t.buckets[hole] = t.buckets[next]
			hole = next
		}
	}
	t.buckets[hole] = 0
	return true
}
