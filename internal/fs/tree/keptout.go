package tree

import (
	"sync"
	"sync/atomic"
)

// keptOut are files whose bytes a call of the mount may still change that hangs, after its client was told that it failed. Rings get EIO, lest what
// they write is undone, and what they read is not what anybody has written.
type keptOut struct {
	any   atomic.Bool
	mu    sync.Mutex
	nodes map[uint64]int
}

// KeepOut refuses a file to ring requests that begin from now on, until LetIn was called as often. The caller holds the node.
func (t *Tree) KeepOut(node uint64) { t.keptOut.count(node, +1) }

// LetIn ends a KeepOut.
func (t *Tree) LetIn(node uint64) { t.keptOut.count(node, -1) }

func (k *keptOut) count(node uint64, by int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.nodes == nil {
		k.nodes = make(map[uint64]int)
	}
	if k.nodes[node] += by; k.nodes[node] == 0 {
		delete(k.nodes, node)
	}
	k.any.Store(len(k.nodes) > 0)
}

func (k *keptOut) has(node uint64) bool {
	if !k.any.Load() {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.nodes[node] > 0
}
