package embedded

import "sync"

// Policy decides in which order complete keys are evicted. Keys are named by small
// numbers, which are used again after Removed. A Policy serves one space. Touched may
// be called at once with itself; all other calls are alone.
type Policy interface {
	// Added: the key became complete.
	Added(key uint32)
	// Touched: the keys were used, in this order.
	Touched(keys []uint32)
	// Removed: an added key is complete no more.
	Removed(key uint32)
	// Victims calls yield for added keys, the best to evict first, until it returns
	// false. yield calls none of the other methods.
	Victims(yield func(key uint32) bool)
}

// LRU evicts the least recently used key: exactly, by a list through all of them.
type LRU struct {
	mu    sync.Mutex
	links []link // by key+1; links[0] is both ends
}

type link struct{ older, younger uint32 }

// NewLRU returns an empty list.
func NewLRU() Policy { return &LRU{links: make([]link, 1)} }

// Added puts a key at the young end.
func (l *LRU) Added(key uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.links) <= int(key)+1 {
		l.links = append(l.links, link{})
	}
	l.append(key + 1)
}

// Touched moves keys to the young end.
func (l *LRU) Touched(keys []uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, key := range keys {
		l.cut(key + 1)
		l.append(key + 1)
	}
}

// Removed takes a key out.
func (l *LRU) Removed(key uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut(key + 1)
}

// Victims goes from the old end to the young.
func (l *LRU) Victims(yield func(uint32) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for at := l.links[0].younger; at != 0 && yield(at-1); at = l.links[at].younger {
	}
}

func (l *LRU) append(at uint32) {
	last := l.links[0].older
	l.links[at] = link{older: last}
	l.links[last].younger = at
	l.links[0].older = at
}

func (l *LRU) cut(at uint32) {
	k := l.links[at]
	l.links[k.older].younger = k.younger
	l.links[k.younger].older = k.older
}
