package lookups

import (
	"hash/maphash"
	"time"

	"github.com/kv3fs/kv3fs/internal/layout/classify"
)

// Class is what the reading of a file counts as. A nil one counts nothing.
type Class struct {
	counter *Counter
	row     *row
	entry   uint64
	parts   bool // its owner reads each part of a block through a descriptor of its own
}

// ClassOf returns what a user's reading of the file at a path counts as; nil: nothing.
func (c *Counter) ClassOf(path string, uid uint32) *Class {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.classify(path, uid)
	if !isBlock(f) || f.Part != classify.Data {
		return nil
	}
	return &Class{c, c.rowOf(f.Owner, f.Model, uid), maphash.String(c.seed, f.Entry), f.Owner == classify.Posix}
}

// Gone reports whether the file counts elsewhere by now: ask for its class again.
func (k *Class) Gone() bool { return k != nil && k.row.Gone() }

func (k *Class) hit() {
	r := k.row
	if r.Gone() {
		r = k.counter.rows.Other()
	}
	r.hits.Add(1)
}

// FromStart says that the first bytes were read by a ring.
func (k *Class) FromStart() {
	if k != nil {
		k.hit()
	}
}

// Opened says that the file was read through a descriptor, nobody knows where.
func (k *Class) Opened() {
	if k != nil && !(k.parts && k.counter.goesOn(k.entry)) {
		k.hit()
	}
}

// goesOn reports whether an entry was read a moment ago.
func (c *Counter) goesOn(entry uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	before, known := c.parts[entry]
	if len(c.parts) >= mostParts {
		for e, at := range c.parts {
			if now.Sub(at) > shardTime {
				delete(c.parts, e)
			}
		}
		if len(c.parts) >= mostParts {
			c.parts = map[uint64]time.Time{}
		}
	}
	c.parts[entry] = now
	return known && now.Sub(before) <= shardTime
}
