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
	byKey map[Key]*entry
	added recent // at most most
	found recent // in directories, at most mostFound, so that these drive out none that was added
}

// entry is a block that is remembered.
type entry struct {
	Block
	in *recent
	at *list.Element
}

// recent has entries, the one that was used last at the end.
type recent = list.List

// mostFound is how many blocks are remembered that were found in directories alone: some
// thousand, so that those of a listing can be loaded or deleted.
const mostFound = 4096

// NewIDs returns a table of at most so many blocks of a namespace, of about 200 bytes each.
// It forgets those first that were added or asked for the longest time ago. A block that it
// has forgotten is a miss, and cannot be saved or deleted until it is added again: let it
// have room for some thousand blocks more than are under way, those included that a cache
// has yet to write. Of blocks that were found in a directory, and not added, it remembers the
// latest 4096 besides.
func NewIDs(ns Namespace, most int) *IDs {
	return &IDs{fingerprint: ns.Fingerprint(), most: max(most, 1), byKey: map[Key]*entry{}}
}

// Add remembers blocks.
func (t *IDs) Add(blocks ...Block) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, b := range blocks {
		t.put(b, &t.added, t.most)
	}
}

// Key returns the key that the namespace's chains give to an id, and remembers both: a
// store has found the id in the name of a file.
func (t *IDs) Key(id ID) Key {
	b := Block{mix(t.fingerprint, id.Bytes()), id}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byKey[b.Key] == nil {
		t.put(b, &t.found, mostFound)
	}
	return b.Key
}

// put makes a block the latest of a list that may have so many. mu is held.
func (t *IDs) put(b Block, in *recent, most int) {
	if e := t.byKey[b.Key]; e != nil {
		e.in.Remove(e.at)
	}
	e := &entry{Block: b, in: in}
	e.at = in.PushBack(e)
	t.byKey[b.Key] = e
	if in.Len() > most {
		delete(t.byKey, in.Remove(in.Front()).(*entry).Key)
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
	e.in.MoveToBack(e.at)
	return e.ID, true
}
