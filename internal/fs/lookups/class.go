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

// ClassOf returns what the reading of the file at a path counts as; nil: nothing.
func (c *Counter) ClassOf(path string) *Class {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.classify(path)
	if !isBlock(f) || f.Part != classify.Data {
		return nil
	}
	return &Class{c, c.rowOf(f.Owner, f.Model), maphash.String(c.seed, f.Entry), f.Owner == classify.Posix}
}

// FromStart says that the first bytes were read by a ring.
func (k *Class) FromStart() {
	if k != nil {
		k.row.hits.Add(1)
	}
}

// Opened says that the file was read through a descriptor, nobody knows where.
func (k *Class) Opened() {
	if k != nil && !(k.parts && k.counter.goesOn(k.entry)) {
		k.row.hits.Add(1)
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
