package index

import (
	"fmt"
	"sync"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// batch holds the keys of a call and what is known of them. Later calls reuse its
// memory.
type batch struct {
	keys   []string
	hashes []uint64
	ids    []uint32 // entries, or none, as of the last lookUp
	logged []uint64 // hashes as in the log, see hashForLog
	seen   []uint32 // see distinct
}

var batches = sync.Pool{New: func() any { return new(batch) }}

// newBatch returns a batch of n keys, which key returns one by one. The caller calls
// release when it no longer uses the batch.
func newBatch(n int, key func(i int) string) (*batch, error) {
	b := batches.Get().(*batch)
	for i := range n {
		k := key(i)
		if len(k) > maxKeyBytes {
			b.release()
			return nil, fmt.Errorf("%w: a key of %d bytes; want at most %d", pageservice.ErrInvalid, len(k), maxKeyBytes)
		}
		b.keys = append(b.keys, k)
		b.hashes = append(b.hashes, hashOf(k))
		b.ids = append(b.ids, none)
	}
	return b, nil
}

func keysOf(keys []string) (*batch, error) {
	return newBatch(len(keys), func(i int) string { return keys[i] })
}

// keepKeys is the largest number of keys for which the memory of a batch is kept.
const keepKeys = 1 << 13

// release makes the batch available to later calls.
func (b *batch) release() {
	if cap(b.keys) > keepKeys {
		return
	}
	clear(b.keys) // so that the garbage collector can free them
	b.keys, b.hashes, b.ids = b.keys[:0], b.hashes[:0], b.ids[:0]
	batches.Put(b)
}

// lookUp finds the entries of all keys. The caller holds the lock of the space.
func (b *batch) lookUp(s *space) { s.byKey.findAll(&s.entries, b.hashes, b.keys, b.ids) }

// hashForLog computes the hashes that the log contains.
func (b *batch) hashForLog() { b.logged = hashKeys(b.logged[:0], b.keys) }

// entry returns the entry of the i-th key. If the key had none when the batch was looked
// up, it may have got one since, from an equal key earlier in the batch.
func (b *batch) entry(s *space, i int) (id uint32, known bool) {
	if b.ids[i] == none {
		if id, ok := s.byKey.find(&s.entries, b.hashes[i], b.keys[i]); ok {
			b.ids[i] = id
		}
	}
	return b.ids[i], b.ids[i] != none
}

// distinct finds out which of several keys are equal.
type distinct struct {
	b     *batch
	first []int // where in the batch each occurs first
}

// distinct returns an empty set of keys of the batch.
func (b *batch) distinct() distinct {
	size := 4
	for size < 2*len(b.keys) {
		size *= 2
	}
	if cap(b.seen) < size {
		b.seen = make([]uint32, size)
	}
	b.seen = b.seen[:size]
	clear(b.seen)
	return distinct{b: b, first: make([]int, 0, len(b.keys))}
}

// add adds the i-th key of the batch and returns which distinct key it is.
func (d *distinct) add(i int) int {
	b, mask := d.b, uint32(len(d.b.seen)-1)
	for at := uint32(b.hashes[i]) & mask; ; at = (at + 1) & mask {
		n := int(b.seen[at]) - 1
		if n < 0 {
			d.first = append(d.first, i)
			b.seen[at] = uint32(len(d.first))
			return len(d.first) - 1
		}
		if j := d.first[n]; b.hashes[i] == b.hashes[j] && b.keys[i] == b.keys[j] {
			return n
		}
	}
}
