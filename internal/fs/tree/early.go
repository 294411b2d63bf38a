package tree

import (
	"sync"
	"sync/atomic"
)

// early are nodes that rings have written before the kernel's cache could be told, since a predecessor's mount was not
// taken over yet.
type early struct {
	over  atomic.Bool // the cache can be told, or there is none
	mu    sync.Mutex
	nodes map[*node]bool
}

// note reports whether a node is to be told of later.
func (e *early) note(n *node) bool {
	if e.over.Load() {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.over.Load() {
		return false
	}
	if e.nodes == nil {
		e.nodes = make(map[*node]bool)
	}
	e.nodes[n] = true
	return true
}

// InvalidateEarly tells the kernel's cache what rings have written before it could be told. It may take as long as the kernel
// waits for requests to be answered.
func (t *Tree) InvalidateEarly() {
	t.early.mu.Lock()
	nodes := t.early.nodes
	t.early.nodes = nil
	t.early.mu.Unlock()
	for n := range nodes {
		(*t.invalidate.Load())(n.id, true)
	}
}
