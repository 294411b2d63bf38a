// Package table is the mapped memory of a cache: slots for blocks, and the table that
// says what is in them. The table lies beside the slots, so that processes which map
// the same object share both; a cache of one process has them in private memory, and
// works the same way.
//
// A slot's state, and who may change it (all under the lock, see Do):
//
//	State      what it has                         becomes
//	Free       nothing                             Loading, Saving: by whoever claims it
//	Loading    shards of next's block arrive;      Partial, Clean, Free, Lost: by its owner
//	           those that are there may be read    Lost: by whoever finds its owner dead
//	Saving    shards of a save arrive;            Dirty, Free: by its owner
//	           none may be read                    Free: by whoever finds its owner dead
//	Partial    some shards of next's block         Loading, Free: by anybody
//	Clean      a block that next has               Free: by anybody
//	Dirty      a block that next is to get         Clean, Unsaved: by its owner
//	                                               Dirty of another: when its owner is dead
//	                                               Free: by anybody who finds it damaged
//	Unsaved    a block that next did not take      Dirty, Free: by anybody
//	Lost       what its owner's storage may        Free: when the owner leaves, or was found
//	           still write into                    dead a grace period ago
//
// Owners alone write into a slot's memory, and set its sums and bits, without the
// lock. A slot whose memory somebody reads is pinned: it may become Free, and is not
// claimed before the last pin is gone.
package table

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/kvstore/kv"
)

// Config is what a table is made for.
type Config struct {
	Layout        kv.Layout
	Namespace     kv.Fingerprint
	CapacityBytes int64         // of all slots together; who comes first decides
	LockWait      time.Duration // how long to wait for another process
	Grace         time.Duration // how long a dead process's storage may still write
	Verify        bool          // sum up what is written, and check what is read
}

// SlotBytes is what a block of that layout takes.
func SlotBytes(l kv.Layout) int64 { return roundUp(l.BlockBytes, pageBytes) }

// Slots is how many blocks there is space for.
func (c Config) Slots() int64 { return c.CapacityBytes / SlotBytes(c.Layout) }

// Bytes is how much memory it takes in all.
func (c Config) Bytes() int64 { return placeFor(c.Layout, c.Slots()).total }

const (
	pageBytes = 4096
	hugeBytes = 2 << 20
)

func roundUp(n, to int64) int64 { return (n + to - 1) / to * to }

// place says where things are in the mapping.
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

// Table is one process's view. Its user has a mutex around everything but the
// methods that say otherwise.
type Table struct {
	c      Config
	p      place
	m      *shm.Mapping
	me     int // which member of those who share it
	name   string
	fd     int  // of the object, -1 where there is none
	shared bool // others may have the object open
	broken atomic.Bool
	deaf   time.Time // until when to ask for the lock but once
	hand   int32     // where victims are looked for next
}

// ErrBroken says that the object was shrunk, or is not what it was: the memory is of
// no use any more.
var ErrBroken = errors.New("the cache's shared memory is broken")

// Private makes a table in memory of this process alone.
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

// Name is the object's below /dev/shm, empty where there is none.
func (t *Table) Name() string { return t.name }

// Bytes is the whole mapping.
func (t *Table) Bytes() []byte { return t.m.Bytes() }

// Shared says whether other processes may be at it.
func (t *Table) Shared() bool { return t.shared }

// Shard is the memory of a shard. It is for system calls, and for those who know
// that nobody can shrink the object.
func (t *Table) Shard(slot int32, index int) []byte {
	at := t.shardAt(slot, index)
	return t.m.Bytes()[at : at+t.p.shardBytes : at+t.p.shardBytes]
}

func (t *Table) shardAt(slot int32, index int) int64 {
	return t.p.arena + int64(slot)*t.p.slotBytes + int64(index)*t.p.shardBytes
}

// Broken says whether the memory has become useless. Any goroutine may ask. What was
// copied from a slot before it said no is what was in the slot.
func (t *Table) Broken() bool { return t.broken.Load() }

// guard runs fn, which touches the memory. Any goroutine may.
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

// fail gives the memory up. The mark comes first: who reads zeros must be able to
// know it.
func (t *Table) fail() {
	if t.broken.CompareAndSwap(false, true) {
		t.m.Sever()
	}
}

// Unmap ends it all; nothing may use the memory any more. Members leave before.
func (t *Table) Unmap() {
	t.m.Unmap()
	if t.fd >= 0 {
		unix.Close(t.fd)
	}
}
