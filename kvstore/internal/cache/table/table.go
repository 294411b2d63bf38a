// Package table holds the memory of a cache: slots for blocks, and a table of what is in
// them. Both lie in one mapping, so processes that map the same object share them. A
// cache of one process has them in private memory and works in the same way.
//
// The states of a slot, and who may change them (always under the lock, see Do):
//
//	State      what it has                         becomes
//	Free       nothing                             Loading, Saving: by the process that claims it
//	Loading    shards of next's block arrive;      Partial, Clean, Free, Lost: by its owner
//	           those that are there may be read    Lost: by a process that finds its owner dead
//	Saving     shards of a save arrive;            Dirty, Free: by its owner
//	           none may be read                    Free: by a process that finds its owner dead
//	Partial    some shards of next's block         Loading, Free: by anybody
//	Clean      a block that next has               Free: by anybody
//	Dirty      a block that next is to get         Clean, Unsaved: by its owner
//	                                               Dirty of another: when its owner is dead
//	                                               Free: by a process that finds it damaged,
//	                                               or deletes it
//	Unsaved    a block that next did not take      Dirty, Free: by anybody
//	Lost       what its owner's storage may        Free: when the owner leaves, or was found
//	           still write into                    dead a grace period ago
//
// A block that is deleted while its owner still uses the slot (Loading or Dirty) is doomed:
// it is not found any more, and its owner frees the slot when it has finished.
//
// Only the owner writes into a slot's memory and sets its checksums and bits. It does so
// without the lock. A slot whose memory is being read is pinned: it may become Free, but
// it is not claimed before the last pin is gone.
package table

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// Config is what a table is made for.
type Config struct {
	Layout        kv.Layout
	Namespace     kv.Fingerprint
	CapacityBytes int64         // of all slots together; the first process decides
	LockWait      time.Duration // how long to wait for another process
	Grace         time.Duration // how long a dead process's storage may still write
	Verify        bool          // record checksums of what is written, and check what is read
}

// SlotBytes returns how much memory a block of that layout takes.
func SlotBytes(l kv.Layout) int64 { return roundUp(l.BlockBytes, pageBytes) }

// Slots is how many blocks there is space for.
func (c Config) Slots() int64 { return c.CapacityBytes / SlotBytes(c.Layout) }

// Bytes returns how much memory the table and its slots take.
func (c Config) Bytes() int64 { return placeFor(c.Layout, c.Slots()).total }

const (
	pageBytes = 4096
	hugeBytes = 2 << 20
)

func roundUp(n, to int64) int64 { return (n + to - 1) / to * to }

// place holds the offsets of everything in the mapping.
type place struct {
	slots, slotBytes, shards, shardBytes            int64
	heads, bits, sums, index, buckets, arena, total int64
}

const (
	headBytes = 64
	bitsBytes = kv.MaxShards/64*8 + 8
)

func placeFor(l kv.Layout, slots int64) place {
	p := place{slots: slots, slotBytes: SlotBytes(l), shards: int64(l.Shards()), shardBytes: l.ShardBytes}
	p.buckets = 8
	for p.buckets < 2*slots {
		p.buckets *= 2
	}
	p.heads = pageBytes
	p.bits = p.heads + slots*headBytes
	p.sums = p.bits + slots*bitsBytes
	p.index = p.sums + slots*p.shards*8
	p.arena = roundUp(p.index+p.buckets*8, hugeBytes)
	p.total = p.arena + slots*p.slotBytes
	return p
}

// Table is one process's view of the memory. Its user holds a mutex around all methods,
// except those that say otherwise.
type Table struct {
	c           Config
	p           place
	m           *shm.Mapping
	me          int // this process's number among the members
	name        string
	fd          int  // of the object, -1 where there is none
	shared      bool // others may have the object open
	broken      atomic.Bool
	noWaitUntil time.Time // until then the lock is tried once and not waited for
	hand        int32     // the slot where the next search for victims begins
}

// ErrBroken is the error after the object was shrunk or changed into something else: the
// memory cannot be used any more.
var ErrBroken = errors.New("the cache's shared memory is broken")

// Private returns a table in memory of this process alone.
func Private(c Config) (*Table, error) {
	m, err := shm.Anonymous(c.Bytes())
	if err != nil {
		return nil, fmt.Errorf("%d bytes of memory: %w", c.Bytes(), err)
	}
	t := &Table{c: c, p: placeFor(c.Layout, c.Slots()), m: m, fd: -1}
	t.writeHeader()
	return t, nil
}

// Slots is how many there are.
func (t *Table) Slots() int { return int(t.p.slots) }

// SlotBytes is the size of each.
func (t *Table) SlotBytes() int64 { return t.p.slotBytes }

// Name returns the name of the object below /dev/shm, empty where there is none.
func (t *Table) Name() string { return t.name }

// Bytes returns the whole mapping.
func (t *Table) Bytes() []byte { return t.m.Bytes() }

// Shared reports whether other processes may use the memory.
func (t *Table) Shared() bool { return t.shared }

// Shard returns the memory of a shard. It is for system calls, and for callers that know
// that no process can shrink the object.
func (t *Table) Shard(slot int32, index int) []byte {
	at := t.shardAt(slot, index)
	return t.m.Bytes()[at : at+t.p.shardBytes : at+t.p.shardBytes]
}

func (t *Table) shardAt(slot int32, index int) int64 {
	return t.p.arena + int64(slot)*t.p.slotBytes + int64(index)*t.p.shardBytes
}

// Broken reports whether the memory has become unusable. Any goroutine may call it. What
// was copied from a slot before Broken returned false is what was in the slot.
func (t *Table) Broken() bool { return t.broken.Load() }

// guard runs fn, which touches the memory. Any goroutine may call it.
func (t *Table) guard(fn func()) error {
	if t.fd < 0 {
		fn()
		return nil
	}
	if err := shm.Guard(fn); err != nil {
		t.fail()
		return ErrBroken
	}
	return nil
}

// fail gives the memory up. It sets the mark first, so that a reader of the zeros that
// replace the memory can know what they are.
func (t *Table) fail() {
	if t.broken.CompareAndSwap(false, true) {
		_ = t.m.Sever() // the mapping then stays, and its pages may fault again
	}
}

// Unmap releases the memory, which nothing may use any more. Members call Leave before.
func (t *Table) Unmap() {
	t.m.Unmap()
	if t.fd >= 0 {
		unix.Close(t.fd)
	}
}
