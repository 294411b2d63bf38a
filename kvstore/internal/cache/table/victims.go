package table

import (
	"cmp"
	"container/heap"
	"slices"
	"time"
)

// Policy ranks slots for eviction: the lowest is evicted first.
type Policy func(Head) int64

// LRU evicts the slots that were not used for the longest time.
func LRU(h Head) int64 { return h.UsedAt }

// Aged keeps a block that was used often for some time longer.
func Aged(h Head) int64 { return h.UsedAt + int64(min(h.Uses, mostUses))*int64(150*time.Second) }

// Victim is a slot that may be evicted.
type Victim struct {
	Slot  int32
	gen   uint32
	used  int64
	value int64
}

// lookAt is how many slots a search for victims looks at. In a large table a search of
// all slots would hold the lock too long.
const lookAt = 1 << 14

// Victims returns up to max slots that may be evicted, the best last. Inside Do. In a
// large table they are the best of some slots only; the next call looks at those that
// follow. It returns none only if no slot at all may be evicted. A search takes time, so
// ask for many.
func (t *Table) Victims(p Policy, max int) []Victim {
	var found victimHeap
	for looked := int64(0); looked < t.p.slots && len(found) == 0; looked += lookAt {
		for range min(lookAt, t.p.slots) {
			t.consider(t.hand, p, max, &found)
			t.hand = (t.hand + 1) % int32(t.p.slots)
		}
	}
	slices.SortFunc(found, func(a, b Victim) int {
		return cmp.Or(cmp.Compare(b.value, a.value), cmp.Compare(b.Slot, a.Slot))
	})
	return found
}

// consider adds a slot if it is among the best so far.
func (t *Table) consider(slot int32, p Policy, max int, found *victimHeap) {
	h := t.Head(slot)
	if !h.State.evictable() || h.Pinned {
		return
	}
	v := Victim{slot, h.Gen, h.UsedAt, p(h)}
	if h.State == Free {
		v.value = 0
	}
	switch {
	case len(*found) < max:
		heap.Push(found, v)
	case v.value < (*found)[0].value:
		(*found)[0] = v
		heap.Fix(found, 0)
	}
}

// Evict frees a victim, unless it has changed since it was found: ok reports whether it
// is free, had whether a block was lost. Inside Do.
func (t *Table) Evict(v Victim) (had, ok bool) {
	h := t.Head(v.Slot)
	if !h.State.evictable() || h.Pinned || h.Gen != v.gen || h.UsedAt != v.used {
		return false, false
	}
	if h.State == Free {
		return false, true
	}
	t.Become(v.Slot, Free)
	return true, true
}

// victimHeap is a heap with the highest value on top.
type victimHeap []Victim

func (d victimHeap) Len() int           { return len(d) }
func (d victimHeap) Less(i, j int) bool { return d[i].value > d[j].value }
func (d victimHeap) Swap(i, j int)      { d[i], d[j] = d[j], d[i] }
func (d *victimHeap) Push(v any)        { *d = append(*d, v.(Victim)) }
func (d *victimHeap) Pop() any {
	last := len(*d) - 1
	v := (*d)[last]
	*d = (*d)[:last]
	return v
}

// Whole returns how many whole blocks there are. Inside Do.
func (t *Table) Whole() int64 {
	var n int64
	for slot := range int32(t.p.slots) {
		if m := t.mode(slot); m.state().Whole() && !m.doomed() {
			n++
		}
	}
	return n
}

// DirtyOfOthers returns the dirty slots of other processes, and their generations. Inside
// Do.
func (t *Table) DirtyOfOthers() map[int32]uint32 { return t.dirty(false) }

func (t *Table) dirty(mine bool) map[int32]uint32 {
	all := map[int32]uint32{}
	for slot := range int32(t.p.slots) {
		if m := t.mode(slot); m.state() == Dirty && (m.owner() == t.me+1) == mine {
			all[slot] = m.gen()
		}
	}
	return all
}
