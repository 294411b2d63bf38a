package index

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// This file counts the memory of the index, and bounds it, so that no client makes the
// process die of it. Counted are the capacities of all tables, the bytes of keys, and for
// each reservation what its key will need once it is confirmed: the bound is kept where
// pages are reserved, and no confirmation fails because of it.

// Bytes of the parts of the index; TestCosts compares them with Go's.
const (
	spaceBytes = 10 << 10 // a space without keys
	rankBytes  = 512
	entryBytes = 56
	slotBytes  = 8
	holdBytes  = 32
	dueBytes   = 16
	pageBytes  = 4 // an element of the tables by page, or by entry

	// confirmBytes is what a key needs in the tables, beside its text.
	confirmBytes = entryBytes + 2*slotBytes + pageBytes + 2*dueBytes
	// reserveBytes is what a reservation needs. Tables grow by a quarter or more.
	reserveBytes = 2 * (holdBytes + 2*dueBytes + 3*pageBytes)
)

// textBytes is what the text of a key takes: Go rounds sizes up.
func textBytes(key string) int64 { return int64(len(key) + len(key)/8 + 8) }

// account counts the memory of a namespace.
type account struct {
	spaces int // guarded by Index.mu
	used   atomic.Int64
}

// countMemory counts the memory of the space anew. The caller holds the lock.
func (s *space) countMemory() {
	if s.discarded {
		return
	}
	bytes := spaceBytes + s.byKey.bytes + s.entries.bytes()
	for _, r := range s.ranks {
		bytes += r.bytes()
		if r.reserved+r.quarantined > 0 {
			bytes += s.pageOfBytes(r)
		}
	}
	s.setUsed(bytes + confirmBytes*max(0, -s.spareEntries()))
}

// pageOfBytes returns how much the table by entry of a rank grows if the rank confirms the
// last key of the space.
func (s *space) pageOfBytes(r *rank) int64 {
	return pageBytes * max(0, int64(s.entries.used)-int64(cap(r.pageOf)))
}

// spareEntries returns how many keys can be confirmed without more entries, beyond those
// that have a reservation now.
func (s *space) spareEntries() int64 {
	spare := int64(len(s.entries.slabs))*slabLen - int64(s.entries.used) + int64(len(s.entries.spare))
	for _, r := range s.ranks {
		spare -= r.reserved + r.quarantined
	}
	return spare
}

// spareHolds returns how many pages can be reserved without larger tables.
func (r *rank) spareHolds() int64 {
	return min(int64(cap(r.holds))-r.reserved-r.quarantined, int64(cap(r.owner)-len(r.owner)+len(r.free)+len(r.kept)))
}

func (s *space) setUsed(bytes int64) {
	more := bytes - s.used.Swap(bytes)
	s.account.used.Add(more)
	s.index.used.Add(more)
}

func (t *table) bytes() int64 {
	return int64(len(t.slabs))*slabLen*entryBytes + int64(cap(t.spare))*pageBytes + t.textBytes
}

// bytes counts events of holds and places in the order of eviction before there are any: they are made when
// the log has been read.
func (r *rank) bytes() int64 {
	return rankBytes + r.promised + holdBytes*int64(cap(r.holds)) +
		pageBytes*int64(cap(r.pageOf)+cap(r.owner)+cap(r.order.serial)+cap(r.free)+cap(r.kept)+cap(r.spare)) +
		dueBytes*(max(int64(cap(r.due)), r.reserved+r.quarantined)+max(int64(cap(r.order.ready)+cap(r.order.waiting)), r.keyed))
}

// promise returns what the text of a hold's key will take when it is confirmed.
func (h *hold) promise() int64 {
	if h.state == deleted {
		return 0
	}
	return int64(h.textBytes)
}

// free returns how much memory is left.
func (x *Index) free() int64 { return x.o.MemoryBytes - x.used.Load() }

// room returns how much more memory the namespace of the space may take: no namespace
// takes more than it leaves for the others.
func (s *space) room() int64 { return s.roomFor(1) }

// transientRoom returns how much more than room it may take for pages of victims, until
// the victims are gone. That may last, if new keys are longer: some is left for others.
func (s *space) transientRoom() int64 { return s.roomFor(7) - s.room() }

// roomFor returns how much more memory the namespace of the space may take so that it has
// at most so many times what is left.
func (s *space) roomFor(times int64) int64 {
	return max(0, times*s.index.free()-s.account.used.Load()) / (times + 1)
}

// affordable returns how many of some keys of a batch, the first ones, can get pages of a
// rank with so many more bytes.
func (s *space) affordable(r *rank, b *batch, keys []int, bytes int64) int {
	entries, holds := s.spareEntries(), r.spareHolds()
	if r.reserved+r.quarantined == 0 {
		bytes -= s.pageOfBytes(r)
	}
	for n, i := range keys {
		bytes -= textBytes(b.keys[i])
		if int64(n) >= entries {
			bytes -= confirmBytes
		}
		if int64(n) >= holds {
			bytes -= reserveBytes
		}
		if bytes < 0 {
			return n
		}
	}
	return len(keys)
}

// fits reports whether there is memory for a space or a rank without keys. All of them
// take at most a quarter of the memory: anybody may make them, and they are not evicted.
func (x *Index) fits(bytes int64) bool {
	return bytes <= min(x.free(), x.o.MemoryBytes/4-x.frames.Load())
}

// warnFull logs, now and then, that keys get no pages for lack of memory.
func (x *Index) warnFull(s *space) {
	now, last := x.now(), x.warned.Load()
	if (last == 0 || now-last > int64(warnEvery)) && x.warned.CompareAndSwap(last, max(now, 1)) {
		x.o.Logger.Warn("keys get no pages because the memory of the page index is full",
			"namespace", s.name.Namespace, "set", s.name.Set, "bytes", x.used.Load(), "cure", "a larger --pages-memory")
	}
}

// warnEvery is how often a full memory is logged.
const warnEvery = 10 * time.Second

// full returns the error that there is no memory for what a client wants to make.
func (x *Index) full(what string) error {
	return fmt.Errorf("%w: no %s: the page index may take %d bytes of memory (--pages-memory)",
		pageservice.ErrFull, what, x.o.MemoryBytes)
}
