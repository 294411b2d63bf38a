package index

import (
	"fmt"
	"sync"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// batch is the keys of a call and what is known of them. The room is used again by
// later calls.
type batch struct {
	keys   []string
	hashes []uint64
	ids    []uint32 // entries, or none, as of the last look
	marks  []uint64 // hashes as the log has them, see mark
	seen   []uint32 // see distinct
}

var batches = sync.Pool{New: func() any { return new(batch) }}

// newBatch takes the keys of a call; done gives them back. n is how many, and key
// yields them.
func newBatch(n int, key func(i int) string) (*batch, error) {
	b := batches.Get().(*batch)
	for i := range n {
		k := key(i)
		if len(k) > maxKeyBytes {
			b.done()
			return nil, fmt.Errorf("%w: a key of %d bytes; at most %d", pageservice.ErrInvalid, len(k), maxKeyBytes)
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

// done is called when nothing of the batch is used any more.
func (b *batch) done() {
	clear(b.keys) // keeps none of them from the garbage collector
	b.keys, b.hashes, b.ids = b.keys[:0], b.hashes[:0], b.ids[:0]
	batches.Put(b)
}

// look finds the entries of all keys. A lock of the space is held.
func (b *batch) look(s *space) { s.byKey.findAll(&s.entries, b.hashes, b.keys, b.ids) }

// mark computes the hashes that the log has.
func (b *batch) mark() { b.marks = hashKeys(b.marks[:0], b.keys) }

// again finds the entry of a key that had none when the batch was looked up, and may
// have got one from an equal key before it.
func (b *batch) again(s *space, i int) (id uint32, known bool) {
	if b.ids[i] == none {
		if id, ok := s.byKey.find(&s.entries, b.hashes[i], b.keys[i]); ok {
			b.ids[i] = id
		}
	}
	return b.ids[i], b.ids[i] != none
}

// distinct tells which of several keys are equal.
type distinct struct {
	b     *batch
	first []int // where each stands in the batch first
}

// distinct begins with no keys.
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

// add tells which distinct key the i-th of the batch is.
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
