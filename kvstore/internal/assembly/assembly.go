// Package assembly keeps track of blocks that are being written shard by shard, in one
// batch or several, and perhaps by several callers at once. It decides which caller
// writes which shard, tells the caller that writes the last, and gives up blocks that
// stay unfinished.
//
// It also sees to it that no block is made of two writers' shards, as they may have
// computed different bytes for one key:
//
//   - A batch with all shards of a block owns it while the batch is under way. Others wait.
//     What was there of the block, from batches with parts of it, is written again. So is
//     what a batch has left behind that was cancelled or has failed.
//   - Batches with parts of a block share it. Where two of them bring the same shard, the
//     bytes are compared. If they differ, there are two writers, and nothing tells which of
//     the other shards are whose: the block is given up, and its parts are refused for as
//     long as they keep coming.
package assembly

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/kv3fs/kv3fs/internal/invariants"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// Verdict is the answer of Enter.
type Verdict int

const (
	// Write: write this shard into the payload, then call Written or Failed.
	Write Verdict = iota
	// Have: the shard is written already, with the same bytes.
	Have
	// Later: another caller works on it. The function given to Enter is called once when
	// that has changed: see then whether the block is there, and Enter again.
	Later
	// Compare: the shard is, or is being written, and its bytes must be compared, but it has
	// no Buf. Nothing has changed: Enter again with the bytes.
	Compare
)

// Outcome is the answer of Written.
type Outcome int

const (
	// Part: other shards are missing.
	Part Outcome = iota
	// Whole: this was the last one. The caller makes the block visible, or gives it up, and
	// then calls Finish.
	Whole
	// Refused: another writer has brought other bytes. The shard's error is Err.
	Refused
	// Dead is Refused for the last that was being written: the caller drops the payload
	// and calls Finish.
	Dead
)

// Err is the error that a shard with this outcome is settled with, if it is not Whole.
func (o Outcome) Err(key kv.Key) error {
	if o == Refused || o == Dead {
		return conflict(key)
	}
	return nil
}

// Block is a block that is being written into a payload of the store's: a
// temporary file, a slot, a page.
type Block[P any] struct {
	Key     kv.Key
	Payload P
	Sums    []uint64 // each set by the writer of the shard, before Written

	owner    *Writer // whose shards are there, perhaps a batch that has ended; nil: shared
	state    []byte  // missing, writing, written
	writing  int
	written  int
	rivals   []rival
	disputed bool
	moving   bool     // being opened or finished: Enter waits
	waiting  []func() // for any change
	after    []func() // for the end of the block, or of its owner
	lastSeen time.Time
}

const (
	missing = iota
	writing
	written
)

// Table holds the unfinished blocks of a store. Any number of goroutines may use it.
type Table[P any] struct {
	shards int
	sum    func(kv.Shard) uint64
	now    func() time.Time

	mu       sync.Mutex
	blocks   map[kv.Key]*Block[P]
	disputes map[kv.Key]time.Time // disputed blocks, and when a part of each last came
}

// New returns a table for blocks of so many shards. sum computes what Block.Sums holds of a
// shard.
func New[P any](shards int, sum func(kv.Shard) uint64) *Table[P] {
	return &Table[P]{shards: shards, sum: sum, now: time.Now, blocks: map[kv.Key]*Block[P]{}, disputes: map[kv.Key]time.Time{}}
}

// Enter asks to write a shard of a block. For the first shard of a block it calls open,
// outside its lock, and returns its error. After Later, the goroutine that makes the
// change calls again, without a lock held.
//
// The error is kv.ErrConflict for a part of a block that two writers dispute. If there is a
// block with it, that one is dead: the caller drops its payload and calls Finish.
func (t *Table[P]) Enter(w *Writer, s kv.Shard, open func() (P, error), again func()) (*Block[P], Verdict, error) {
	key, index := s.Key, s.Index
	var owner *Writer
	if w.Owns(key) {
		owner = w
	}
	t.mu.Lock()
	b := t.blocks[key]
	if b == nil {
		if owner == nil && t.isDisputed(key) {
			t.mu.Unlock()
			return nil, Later, conflict(key)
		}
		b = &Block[P]{Key: key, Sums: make([]uint64, t.shards), owner: owner, state: make([]byte, t.shards), moving: true}
		t.blocks[key] = b
		t.mu.Unlock()
		payload, err := open()
		t.mu.Lock()
		b.moving = false
		if err != nil {
			delete(t.blocks, key)
			t.wakeAll(b)
			return nil, Later, err
		}
		b.Payload = payload
		b.claim(index, t.now())
		t.wake(b)
		return b, Write, nil
	}
	defer t.mu.Unlock()
	if !b.moving && !b.disputed && b.owned() && b.owner != owner {
		t.waitForOwner(b, again)
		return nil, Later, nil
	}
	if b.disputed && owner == nil {
		return nil, Later, conflict(key)
	}
	if b.moving || b.disputed || b.owner != owner && b.writing > 0 {
		b.waiting = append(b.waiting, again)
		return nil, Later, nil
	}
	if b.owner != owner {
		b.own(owner)
	}
	if b.state[index] != missing && s.Device != nil && s.Buf == nil {
		return nil, Compare, nil
	}
	switch b.state[index] {
	case writing:
		b.rivals = append(b.rivals, rival{index, t.sum(s)})
		b.waiting = append(b.waiting, again)
		return nil, Later, nil
	case written:
		// A rare case, so the lock may be held for it.
		if t.sum(s) == b.Sums[index] {
			b.lastSeen = t.now() // a caller that saves one shard will save the others
			return b, Have, nil
		}
		if t.dispute(b) {
			return b, Later, conflict(key)
		}
		return nil, Later, conflict(key)
	}
	b.claim(index, t.now())
	return b, Write, nil
}

// claim begins a shard. Called with the lock.
func (b *Block[P]) claim(index int, now time.Time) {
	b.check(index, missing)
	b.state[index] = writing
	b.writing++
	b.lastSeen = now
}

// check asserts what must hold when a shard leaves a state. The lock is held.
func (b *Block[P]) check(index int, state byte) {
	if !invariants.Enabled {
		return
	}
	invariants.Check(b.state[index] == state, "shard %d of block %s is in state %d, not %d", index, b.Key, b.state[index], state)
	invariants.Check(!b.moving, "shard %d of block %s changes while the block is opened or finished", index, b.Key)
	var counts [written + 1]int
	for _, s := range b.state {
		counts[s]++
	}
	invariants.Check(counts[writing] == b.writing && counts[written] == b.written,
		"block %s has %d shards that are being written, counted as %d, and %d written ones, counted as %d",
		b.Key, counts[writing], b.writing, counts[written], b.written)
}

// wake unlocks, and then calls those that wait for any change.
func (t *Table[P]) wake(b *Block[P]) {
	waiting := b.waiting
	b.waiting = nil
	t.mu.Unlock()
	for _, again := range waiting {
		again()
	}
}

// wakeAll unlocks, and then calls all that wait.
func (t *Table[P]) wakeAll(b *Block[P]) {
	b.waiting, b.after = append(b.waiting, b.after...), nil
	t.wake(b)
}

// Written notes that a shard is in the payload, and that its checksum is in Sums.
func (t *Table[P]) Written(b *Block[P], index int) Outcome {
	t.mu.Lock()
	b.check(index, writing)
	b.state[index] = written
	b.writing--
	b.written++
	b.lastSeen = t.now()
	if differs := func(r rival) bool { return r.index == index && r.sum != b.Sums[index] }; slices.ContainsFunc(b.rivals, differs) {
		t.dispute(b)
	}
	outcome := Part
	switch {
	case b.disputed:
		outcome = Refused
		if b.moving = b.writing == 0; b.moving {
			outcome = Dead
		}
	case b.written == t.shards:
		b.moving = true
		outcome = Whole
	}
	t.wake(b)
	return outcome
}

// Failed notes that a shard is not in the payload. It reports true if no other shard is or
// may still get there: the block is given up. The caller then drops the payload and calls
// Finish.
func (t *Table[P]) Failed(b *Block[P], index int) (dead bool) {
	t.mu.Lock()
	b.check(index, writing)
	b.state[index] = missing
	b.writing--
	b.rivals = slices.DeleteFunc(b.rivals, func(r rival) bool { return r.index == index })
	b.moving = b.writing == 0 && (b.written == 0 || b.disputed)
	dead = b.moving
	t.wake(b)
	return dead
}

// Finish forgets a block that has become visible or was given up.
func (t *Table[P]) Finish(b *Block[P]) {
	t.mu.Lock()
	invariants.Check(b.moving && t.blocks[b.Key] == b, "block %s is finished, and neither whole nor given up", b.Key)
	delete(t.blocks, b.Key)
	b.moving = false
	t.wakeAll(b)
}

// Expire gives up the blocks that were not written to for idle. For each the caller
// drops the payload and calls Finish.
func (t *Table[P]) Expire(idle time.Duration) []*Block[P] {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.disputes, func(_ kv.Key, since time.Time) bool { return t.now().Sub(since) >= restOf })
	var expired []*Block[P]
	for _, b := range t.blocks {
		if !b.moving && b.writing == 0 && t.now().Sub(b.lastSeen) >= idle {
			b.moving = true
			expired = append(expired, b)
		}
	}
	return expired
}

// GiveUp gives up a block whose payload is useless, as Expire does. It returns nil if there
// is none, or if a caller works on it.
func (t *Table[P]) GiveUp(key kv.Key, useless func(P) bool) *Block[P] {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.blocks[key]
	if b == nil || b.moving || b.writing > 0 || !useless(b.Payload) {
		return nil
	}
	b.moving = true
	return b
}

// Len returns how many blocks are unfinished.
func (t *Table[P]) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.blocks)
}
