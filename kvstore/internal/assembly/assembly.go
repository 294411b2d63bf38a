// Package assembly keeps track of blocks that are being written shard by shard, in one
// batch or several, and perhaps by several callers at once. It decides which caller
// writes which shard, tells the caller that writes the last, and gives up blocks that
// stay unfinished.
package assembly

import (
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
	// Have: the shard is written already.
	Have
	// Later: another caller works on it. The function given to Enter is called once when
	// that has changed: see then whether the block is there, and Enter again.
	Later
)

// Block is a block that is being written into a payload of the store's: a
// temporary file, a slot, a page.
type Block[P any] struct {
	Key     kv.Key
	Payload P
	Sums    []uint64 // each set by the writer of the shard, before Written

	state    []byte // missing, writing, written
	writing  int
	written  int
	moving   bool // being opened or finished: Enter waits
	waiting  []func()
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
	now    func() time.Time

	mu     sync.Mutex
	blocks map[kv.Key]*Block[P]
}

// New returns a table for blocks of so many shards.
func New[P any](shards int) *Table[P] {
	return &Table[P]{shards: shards, now: time.Now, blocks: map[kv.Key]*Block[P]{}}
}

// Enter asks to write a shard of a block. For the first shard of a block it calls open,
// outside its lock, and returns its error. After Later, the goroutine that makes the
// change calls again, without a lock held.
func (t *Table[P]) Enter(key kv.Key, index int, open func() (P, error), again func()) (*Block[P], Verdict, error) {
	t.mu.Lock()
	b := t.blocks[key]
	if b == nil {
		b = &Block[P]{Key: key, Sums: make([]uint64, t.shards), state: make([]byte, t.shards), moving: true}
		t.blocks[key] = b
		t.mu.Unlock()
		payload, err := open()
		t.mu.Lock()
		b.moving = false
		if err != nil {
			delete(t.blocks, key)
			t.wake(b)
			return nil, Later, err
		}
		b.Payload = payload
		b.claim(index, t.now())
		t.wake(b)
		return b, Write, nil
	}
	defer t.mu.Unlock()
	switch {
	case b.moving || b.state[index] == writing:
		b.waiting = append(b.waiting, again)
		return nil, Later, nil
	case b.state[index] == written:
		b.lastSeen = t.now() // a caller that saves one shard will save the others
		return b, Have, nil
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

// wake unlocks, and then calls those that wait.
func (t *Table[P]) wake(b *Block[P]) {
	waiting := b.waiting
	b.waiting = nil
	t.mu.Unlock()
	for _, again := range waiting {
		again()
	}
}

// Written notes that a shard is in the payload. It reports true to one caller, that of the
// last shard: the block is whole. That caller makes it visible, or gives it up, and then
// calls Finish.
func (t *Table[P]) Written(b *Block[P], index int) (whole bool) {
	t.mu.Lock()
	b.check(index, writing)
	b.state[index] = written
	b.writing--
	b.written++
	b.lastSeen = t.now()
	b.moving = b.written == t.shards
	whole = b.moving
	t.wake(b)
	return whole
}

// Failed notes that a shard is not in the payload. It reports true if no other shard is or
// may still get there: the block is given up. The caller then drops the payload and calls
// Finish.
func (t *Table[P]) Failed(b *Block[P], index int) (dead bool) {
	t.mu.Lock()
	b.check(index, writing)
	b.state[index] = missing
	b.writing--
	b.moving = b.writing == 0 && b.written == 0
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
	t.wake(b)
}

// Expire gives up the blocks that were not written to for idle. For each the caller
// drops the payload and calls Finish.
func (t *Table[P]) Expire(idle time.Duration) []*Block[P] {
	t.mu.Lock()
	defer t.mu.Unlock()
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
