package table

import (
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
	"time"

	"github.com/kv3fs/kv3fs/internal/invariants"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// State is a slot's; see the package comment.
type State uint8

// The states. Those from Clean to Unsaved have a whole block.
const (
	Free State = iota
	Loading
	Saving
	Partial
	Clean
	Dirty
	Unsaved
	Lost
)

// Whole reports whether all of the block may be read by any process.
func (s State) Whole() bool { return s == Clean || s == Dirty || s == Unsaved }

// Readable reports whether the shards whose bits are set may be read by any process.
func (s State) Readable() bool { return s == Loading || s == Partial || s.Whole() }

// indexed reports whether Find finds the slot under its key.
func (s State) indexed() bool { return s != Free && s != Lost }

// evictable reports whether the slot may be given to another block, if it is not pinned.
func (s State) evictable() bool { return s == Free || s == Partial || s == Clean || s == Unsaved }

// Head is the table's entry of a slot.
type Head struct {
	State  State
	Mine   bool   // this process is the owner
	Doomed bool   // deleted: it is not found, and becomes Free when its owner has finished
	Gen    uint32 // one more with every claim
	Uses   int
	Pinned bool  // by any process
	UsedAt int64 // nanoseconds of the monotonic clock
}

// A head in memory is the key, and then words that are stored atomically.
const (
	keyAt   = 0
	modeAt  = 16 // state, owner, uses, generation: see mode
	pinsAt  = 24 // a bit for each member that reads from the slot
	usedAt  = 32 // when it was last used
	sinceAt = 40 // when its owner was found dead
	fromAt  = 48 // the version of the block, 0 while it has no shard
)

// mode is the word that changes a slot's state: 8 bits of state, 8 of owner, 15 of uses,
// one that dooms the block, 32 of generation.
type mode uint64

const doomedBit mode = 1 << 31

// owner is one more than the member's number, 0: none.
func newMode(s State, owner, uses int, gen uint32) mode {
	return mode(s) | mode(owner)<<8 | mode(uses)<<16 | mode(gen)<<32
}

func (m mode) state() State { return State(m) }
func (m mode) owner() int   { return int(uint8(m >> 8)) }
func (m mode) uses() int    { return int(m >> 16 & 0x7fff) }
func (m mode) doomed() bool { return m&doomedBit != 0 }
func (m mode) gen() uint32  { return uint32(m >> 32) }

func (t *Table) headAt(slot int32) int64 { return t.p.heads + int64(slot)*headBytes }

func (t *Table) mode(slot int32) mode       { return mode(t.m.LoadUint64(t.headAt(slot) + modeAt)) }
func (t *Table) setMode(slot int32, m mode) { t.m.StoreUint64(t.headAt(slot)+modeAt, uint64(m)) }

// Head returns the head of a slot. Inside Do.
func (t *Table) Head(slot int32) Head {
	m := t.mode(slot)
	return Head{
		State: m.state(), Mine: m.owner() == t.me+1, Doomed: m.doomed(), Gen: m.gen(), Uses: m.uses(),
		Pinned: t.m.LoadUint64(t.headAt(slot)+pinsAt) != 0,
		UsedAt: int64(t.m.LoadUint64(t.headAt(slot) + usedAt)),
	}
}

// Key returns the key of the block in a slot. Inside Do.
func (t *Table) Key(slot int32) kv.Key {
	var k kv.Key
	low, high := t.key(slot)
	binary.LittleEndian.PutUint64(k[:8], low)
	binary.LittleEndian.PutUint64(k[8:], high)
	return k
}

func (t *Table) key(slot int32) (low, high uint64) {
	at := t.headAt(slot) + keyAt
	return t.m.LoadUint64(at), t.m.LoadUint64(at + 8)
}

// Claim takes a Free slot without pins for a block that is not in the table. The version is
// that of all its shards; 0 lets the first that is accepted decide. Inside Do, as all that
// follows.
func (t *Table) Claim(slot int32, key kv.Key, s State, version uint64, now int64) {
	at, old := t.headAt(slot), t.mode(slot)
	if invariants.Enabled {
		pins := t.m.LoadUint64(at + pinsAt)
		invariants.Check(old.state() == Free && pins == 0 || t.Broken(), "slot %d is claimed in state %d, with pins %b", slot, old.state(), pins)
	}
	low, high := halves(key)
	t.m.StoreUint64(at+keyAt, low)
	t.m.StoreUint64(at+keyAt+8, high)
	for w := int64(0); w < bitsBytes; w += 8 {
		t.m.StoreUint64(t.bitsAt(slot)+w, 0)
	}
	t.m.StoreUint64(at+usedAt, uint64(now))
	t.m.StoreUint64(at+fromAt, version)
	t.setMode(slot, newMode(s, t.me+1, 1, old.gen()+1))
	t.insert(slot)
}

// NewVersion returns a version that nothing else has.
func NewVersion() uint64 { return max(rand.Uint64(), 1) }

// becomes has a bit for each state that may follow a state, as the package comment says.
var becomes = [...]uint{
	Free:    1 << Free, // what another process has freed
	Loading: 1<<Partial | 1<<Clean | 1<<Free | 1<<Lost,
	Saving:  1<<Dirty | 1<<Free | 1<<Lost,
	Partial: 1<<Loading | 1<<Free,
	Clean:   1 << Free,
	Dirty:   1<<Clean | 1<<Unsaved | 1<<Dirty | 1<<Free,
	Unsaved: 1<<Dirty | 1<<Free,
	Lost:    1 << Free,
}

// Become changes the state of a slot. This process becomes its owner where the state
// has one.
func (t *Table) Become(slot int32, s State) {
	old := t.mode(slot)
	if invariants.Enabled {
		invariants.Check(becomes[old.state()]&(1<<s) != 0 || t.Broken(), "slot %d in state %d becomes %d", slot, old.state(), s)
	}
	owner := 0
	switch s {
	case Loading, Saving, Dirty, Lost:
		owner = t.me + 1
	}
	if old.state().indexed() && !s.indexed() {
		t.remove(slot)
	}
	t.setMode(slot, newMode(s, owner, old.uses(), old.gen()))
}

// Doom deletes a block in a slot that its owner still uses, Loading or Dirty: it is not
// found any more, and its owner has to free it. Another block may be claimed under the
// same key.
func (t *Table) Doom(slot int32) {
	t.remove(slot)
	t.setMode(slot, t.mode(slot)|doomedBit)
}

// oneUse is how long after the last use another one counts: an engine that goes layer by
// layer uses a block once for every layer.
const (
	oneUse   = int64(time.Second)
	mostUses = 5
)

// Touch notes that a block is used.
func (t *Table) Touch(slot int32, now int64) {
	at, m := t.headAt(slot), t.mode(slot)
	last := int64(t.m.LoadUint64(at + usedAt))
	if now-last >= oneUse && m.uses() < mostUses {
		t.setMode(slot, m+1<<16)
	}
	t.m.StoreUint64(at+usedAt, uint64(now))
}

// Pin keeps a slot's memory from being used for anything else until Unpin. A process has
// at most one pin on a slot.
func (t *Table) Pin(slot int32) { t.m.OrUint64(t.headAt(slot)+pinsAt, 1<<t.me) }

// Unpin removes this process's pin.
func (t *Table) Unpin(slot int32) { t.m.AndUint64(t.headAt(slot)+pinsAt, ^(1 << t.me)) }

func (t *Table) bitsAt(slot int32) int64 { return t.p.bits + int64(slot)*bitsBytes }

// Has reports whether a shard is in the slot's memory.
func (t *Table) Has(slot int32, index int) bool {
	return t.m.LoadUint64(t.bitsAt(slot)+int64(index/64*8))>>(index%64)&1 == 1
}

// Count returns how many shards are in the slot's memory.
func (t *Table) Count(slot int32) int {
	n := 0
	for w := int64(0); w < bitsBytes; w += 8 {
		n += bits.OnesCount64(t.m.LoadUint64(t.bitsAt(slot) + w))
	}
	return n
}

// halves returns the two words of a key.
func halves(k kv.Key) (low, high uint64) {
	return binary.LittleEndian.Uint64(k[:8]), binary.LittleEndian.Uint64(k[8:])
}
