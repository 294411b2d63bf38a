package sums

import (
	"maps"
	"slices"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// mostPerKey is how many records of one block the index holds; older ones are dropped.
// There are several where writers computed the block with different results, and where
// several processes have recorded the same one.
const mostPerKey = 64

// entry is what the index holds of a record: 24 bytes. The checksums of a block with more
// than one shard stay in the log.
type entry struct {
	sum   uint64 // of the only shard
	at    int64
	log   uint16
	shape uint16
}

// index holds the records of all logs.
type index struct {
	shapes    []Shape
	first     map[kv.Key]entry
	more      map[kv.Key][]entry  // beyond the first
	forgotten map[uint64]struct{} // stamps
}

func newIndex() index {
	return index{first: map[kv.Key]entry{}, more: map[kv.Key][]entry{}, forgotten: map[uint64]struct{}{}}
}

func (x *index) entries(key kv.Key) []entry {
	first, ok := x.first[key]
	if !ok {
		return nil
	}
	return append([]entry{first}, x.more[key]...)
}

func (x *index) set(key kv.Key, entries []entry) {
	if len(entries) > mostPerKey {
		entries = entries[len(entries)-mostPerKey:]
	}
	delete(x.more, key)
	if len(entries) == 0 {
		delete(x.first, key)
		return
	}
	x.first[key] = entries[0]
	if len(entries) > 1 {
		x.more[key] = slices.Clone(entries[1:])
	}
}

func (x *index) shape(s Shape) uint16 {
	i := slices.Index(x.shapes, s)
	if i < 0 {
		i = len(x.shapes)
		x.shapes = append(x.shapes, s)
	}
	return uint16(i)
}

// add enters a record of a block, unless it is void.
func (x *index) add(r *record, log uint16, at int64) {
	if _, gone := x.forgotten[r.stamp]; gone {
		return
	}
	e := entry{at: at, log: log, shape: x.shape(r.shape)}
	if len(r.sums) == 1 {
		e.sum = r.sums[0]
	}
	if _, ok := x.first[r.key]; !ok {
		x.first[r.key] = e
		return
	}
	known := x.entries(r.key)
	if slices.ContainsFunc(known, func(k entry) bool { return k.log == log && k.at == at }) {
		return // it was read again
	}
	x.set(r.key, append(known, e))
}

// drop removes all records of one log.
func (x *index) drop(log uint16) {
	for key := range maps.Clone(x.more) {
		x.set(key, slices.DeleteFunc(x.entries(key), func(e entry) bool { return e.log == log }))
	}
	maps.DeleteFunc(x.first, func(_ kv.Key, e entry) bool { return e.log == log })
}
