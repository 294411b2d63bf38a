package index

import (
	"math"
	"sync/atomic"
)

// entry is what is known of one key. Entries are named by small numbers, which ranks
// and policies use as indexes.
type entry struct {
	key        string
	hash       uint64 // see hashOf
	lastUse    atomic.Int64
	leaseUntil atomic.Int64 // never before this time plus the quarantine is it evicted

	on       uint32 // ranks that have a page of it
	counted  uint32 // those of them that count
	writing  uint32 // ranks whose confirmation is on its way to the disk
	complete bool   // all ranks that count have a page of it
	leaving  bool   // its eviction or deletion is on its way to the disk
	missed   bool   // it was taken out of an order while it was busy
}

// busy tells whether a change of it is on its way to the disk.
func (e *entry) busy() bool { return e.leaving || e.writing > 0 }

// never is a lease that no one ever had.
const never = math.MinInt64 / 4

// extend lets the lease last until a time at least. It may be called at once.
func (e *entry) extend(until int64) {
	for {
		old := e.leaseUntil.Load()
		if old >= until || e.leaseUntil.CompareAndSwap(old, until) {
			return
		}
	}
}

// slabLen entries are allocated at once. They never move, so their atomics are safe
// while the table grows.
const slabLen = 1024

// table holds the entries of a space by number.
type table struct {
	slabs []*[slabLen]entry
	used  uint32   // numbers ever given
	spare []uint32 // of them, those that are free
}

func (t *table) at(id uint32) *entry { return &t.slabs[id/slabLen][id%slabLen] }

// add makes an entry for a key, which it keeps.
func (t *table) add(hash uint64, key string) uint32 {
	var id uint32
	if n := len(t.spare); n > 0 {
		id, t.spare = t.spare[n-1], t.spare[:n-1]
	} else {
		id = t.used
		t.used++
		if id%slabLen == 0 {
			t.slabs = append(t.slabs, new([slabLen]entry))
		}
	}
	e := t.at(id)
	e.key, e.hash = key, hash
	e.lastUse.Store(0)
	e.leaseUntil.Store(never)
	return id
}

// remove forgets an entry.
func (t *table) remove(id uint32) {
	e := t.at(id)
	e.key, e.on, e.counted, e.writing, e.complete, e.leaving, e.missed = "", 0, 0, 0, false, false, false
	t.spare = append(t.spare, id)
}

// all yields the entries that have pages, or are about to; they may be removed
// meanwhile.
func (t *table) all(yield func(id uint32, e *entry) bool) {
	for id := range t.used {
		if e := t.at(id); (e.on > 0 || e.writing > 0) && !yield(id, e) {
			return
		}
	}
}
