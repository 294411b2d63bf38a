package keys

import (
	"container/list"
	"sync"
)

// IDs remembers the ids of keys, for stores whose files have names that a key has no
// room for: those of LMCache's whole digests. The program adds the blocks of a chain
// before it gives their keys to the store. Any number of goroutines may use it.
type IDs struct {
	most int

	mu    sync.Mutex
	byKey map[Key]*list.Element
	order list.List // of Block, the one that was used last at the end
}

// NewIDs returns a table of at most so many blocks, of about 200 bytes each. It forgets
// those first that were added or asked for the longest time ago.
func NewIDs(most int) *IDs {
	return &IDs{most: max(most, 1), byKey: map[Key]*list.Element{}}
}

// Add remembers blocks.
func (t *IDs) Add(blocks ...Block) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, b := range blocks {
		if e := t.byKey[b.Key]; e != nil {
			t.order.MoveToBack(e)
			continue
		}
		t.byKey[b.Key] = t.order.PushBack(b)
		if t.order.Len() > t.most {
			delete(t.byKey, t.order.Remove(t.order.Front()).(Block).Key)
		}
	}
}

// ID returns the id of a key, and whether it is remembered.
func (t *IDs) ID(key Key) (ID, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.byKey[key]
	if e == nil {
		return ID{}, false
	}
	t.order.MoveToBack(e)
	return e.Value.(Block).ID, true
}
