package table

import (
	"math/bits"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// The index finds slots by key: buckets with linear probing, each a word of 32 bits of
// the key's hash and 1 + the slot's number. It can be made anew from the slots at any
// time.

// hash also spreads keys that are not hashes themselves.
func hash(low, high uint64) uint32 {
	const odd = 0x9e3779b97f4a7c15
	h, l := bits.Mul64(low^0x2545f4914f6cdd1d, high^odd)
	return uint32((h ^ l) * odd >> 32)
}

func (t *Table) bucketAt(i uint32) int64 { return t.p.index + int64(i)*8 }
func (t *Table) mask() uint32            { return uint32(t.p.buckets - 1) }

// bucket reads a bucket: the slot is below 0 where it is empty or invalid.
func (t *Table) bucket(i uint32) (tag uint32, slot int32) {
	w := t.m.LoadUint64(t.bucketAt(i))
	n := uint32(w)
	if int64(n) > t.p.slots {
		n = 0
	}
	return uint32(w >> 32), int32(n) - 1
}

func (t *Table) setBucket(i uint32, tag uint32, slot int32) {
	t.m.StoreUint64(t.bucketAt(i), uint64(tag)<<32|uint64(uint32(slot+1)))
}

// Find returns the slot of a block, in whatever state. Inside Do.
func (t *Table) Find(key kv.Key) (int32, bool) {
	low, high := halves(key)
	tag := hash(low, high)
	for i, n := tag&t.mask(), t.p.buckets; n > 0; i, n = (i+1)&t.mask(), n-1 {
		got, slot := t.bucket(i)
		if slot < 0 {
			break
		}
		if got != tag {
			continue
		}
		if l, h := t.key(slot); l == low && h == high {
			return slot, true
		}
	}
	return 0, false
}

func (t *Table) insert(slot int32) {
	tag := hash(t.key(slot))
	for i, n := tag&t.mask(), t.p.buckets; n > 0; i, n = (i+1)&t.mask(), n-1 {
		if _, there := t.bucket(i); there < 0 {
			t.setBucket(i, tag, slot)
			return
		}
	}
}

// remove removes a slot and moves up the entries that were pushed behind it.
func (t *Table) remove(slot int32) {
	tag := hash(t.key(slot))
	hole, n := tag&t.mask(), t.p.buckets
	for ; ; hole, n = (hole+1)&t.mask(), n-1 {
		_, there := t.bucket(hole)
		if there == slot {
			break
		}
		if there < 0 || n == 0 {
			return
		}
	}
	for i := (hole + 1) & t.mask(); n > 0; i, n = (i+1)&t.mask(), n-1 {
		tag, next := t.bucket(i)
		if next < 0 {
			break
		}
		// It may move to the hole unless its home lies behind it.
		if home := tag & t.mask(); (i-home)&t.mask() >= (i-hole)&t.mask() {
			t.setBucket(hole, tag, next)
			hole = i
		}
	}
	t.setBucket(hole, 0, -1)
}

// rebuild makes the index anew, and frees slots whose state is impossible. It is for a
// table whose last user died while it was changing the table.
func (t *Table) rebuild() {
	for i := range uint32(t.p.buckets) {
		t.setBucket(i, 0, -1)
	}
	for slot := range int32(t.p.slots) {
		m := t.mode(slot)
		s := m.state()
		_, twice := t.Find(t.Key(slot))
		switch {
		case m.doomed(): // its owner frees it
		case s > Lost, s.indexed() && twice, s.Whole() && t.Count(slot) != int(t.p.shards):
			t.setMode(slot, newMode(Free, 0, 0, m.gen()))
		case s.indexed():
			t.insert(slot)
		}
	}
}

// Keys returns the keys of the whole blocks in at most so many slots from first on, and
// how many slots that were: 0 at the end. Inside Do.
func (t *Table) Keys(first int32, most int) (keys []kv.Key, looked int) {
	for slot := first; looked < most && int64(slot) < t.p.slots; slot++ {
		if m := t.mode(slot); m.state().Whole() && !m.doomed() {
			keys = append(keys, t.Key(slot))
		}
		looked++
	}
	return keys, looked
}

// Doomed adds to found the slots, and their generations, of wanted blocks that other
// processes own, and that were doomed while they were Dirty. It looks at most slots from
// first on, and returns how many that were: 0 at the end. Inside Do.
func (t *Table) Doomed(first int32, most int, wanted map[kv.Key]bool, found map[int32]uint32) (looked int) {
	for slot := first; looked < most && int64(slot) < t.p.slots; slot++ {
		m := t.mode(slot)
		if m.doomed() && m.state() == Dirty && m.owner() != t.me+1 && wanted[t.Key(slot)] {
			found[slot] = m.gen()
		}
		looked++
	}
	return looked
}
