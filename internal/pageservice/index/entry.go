package index

import (
	"math"
	"sync/atomic"
)

// entry holds what is known of one key. Entries have small numbers, which ranks use as
// indexes.
type entry struct {
	key        string
	hash       uint64 // see hashOf
	lastUse    atomic.Int64
	leaseUntil atomic.Int64 // it is not evicted before this time plus the quarantine

	on       uint32 // ranks that have a page for it
	counted  uint32 // ranks among those that count for completeness
	writing  uint32 // ranks whose confirmation is being logged
	complete bool   // all ranks that count have a page for it
	removing bool   // its eviction or deletion is being logged
	unlisted bool   // it was taken out of an order of eviction while it was busy
}

// busy reports whether a change of it is being logged.
func (e *entry) busy() bool { return e.removing || e.writing > 0 }

// never is the end of a lease that no client ever had.
const never = math.MinInt64 / 4

// extend makes the lease last at least until a time. It may be called concurrently.
func (e *entry) extend(until int64) {
	for {
		old := e.leaseUntil.Load()
		if old >= until || e.leaseUntil.CompareAndSwap(old, until) {
			return
		}
	}
}

// slabLen is how many entries are allocated at once. They never move, so their atomics
// are safe while the table grows.
const slabLen = 1024

// table holds the entries of a space by number.
type table struct {
	slabs []*[slabLen]entry
	used  uint32   // numbers ever used
	spare []uint32 // the free ones among them

	textBytes int64 // of all keys
}

func (t *table) at(id uint32) *entry { return &t.slabs[id/slabLen][id%slabLen] }

// add makes an entry for a key, and keeps the key.
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
	t.textBytes += textBytes(key)
	e.lastUse.Store(0)
	e.leaseUntil.Store(never)
	return id
}

// remove makes the number of an entry free.
func (t *table) remove(id uint32) {
	e := t.at(id)
	t.textBytes -= textBytes(e.key)
	e.key, e.on, e.counted, e.writing, e.complete, e.removing, e.unlisted = "", 0, 0, 0, false, false, false
	t.spare = append(t.spare, id)
}

// all yields the entries that have pages or are getting one. They may be removed
// meanwhile.
func (t *table) all(yield func(id uint32, e *entry) bool) {
	for id := range t.used {
		if e := t.at(id); (e.on > 0 || e.writing > 0) && !yield(id, e) {
			return
		}
	}
}
