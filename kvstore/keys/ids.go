package keys

import (
	"container/list"
	"sync"
)

// IDs remembers the ids of keys, for stores whose files have names that a key has no
// room for: those of LMCache's whole digests. The program adds the blocks of a chain
// before it gives their keys to the store. Any number of goroutines may use it.
type IDs struct {
	fingerprint Fingerprint
	most        int

	mu    sync.Mutex
	byKey map[Key]*list.Element
	order list.List // of Block, the one that was used last at the end
}

// NewIDs returns a table of at most so many blocks of a namespace, of about 200 bytes each.
// It forgets those first that were added or asked for the longest time ago. A block that it
// has forgotten is a miss, and cannot be saved or deleted until it is added again: let it
// have room for some thousand blocks more than are under way, those included that a cache
// has yet to write.
func NewIDs(ns Namespace, most int) *IDs {
	return &IDs{fingerprint: ns.Fingerprint(), most: max(most, 1), byKey: map[Key]*list.Element{}}
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

// Key returns the key that the namespace's chains give to an id, and remembers both: a
// store has found the id in the name of a file.
func (t *IDs) Key(id ID) Key {
	key := mix(t.fingerprint, id.Bytes())
	t.Add(Block{key, id})
	return key
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
