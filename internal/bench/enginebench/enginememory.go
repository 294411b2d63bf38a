package enginebench

import (
	"container/list"
	"fmt"
	"slices"

	"github.com/kv3fs/kv3fs/internal/bench/measure"
	"github.com/kv3fs/kv3fs/kvstore"
)

// engineMemory says which blocks the engine has in GPU memory. Blocks of requests under way
// stay. Of the others, those that were used least recently go first, and of one prompt the
// last ones. It is not safe for concurrent use.
type engineMemory struct {
	blocks   int // for which there is space
	reserved int // for requests that have not computed them yet
	cached   map[kvstore.Key]*cachedBlock
	idle     *list.List // keys of the blocks that no request uses, least recently used first
}

type cachedBlock struct {
	users int
	idle  *list.Element // nil while it has users
}

func newEngineMemory(blocks int) *engineMemory {
	return &engineMemory{blocks: blocks, cached: map[kvstore.Key]*cachedBlock{}, idle: list.New()}
}

// use begins a request. It returns how many of its leading blocks are in memory and
// reserves space for the others.
func (m *engineMemory) use(keys []kvstore.Key) (found int) {
	for _, key := range keys {
		b := m.cached[key]
		if b == nil {
			break
		}
		m.hold(b)
		found++
	}
	m.reserved += len(keys) - found
	m.shrink()
	return found
}

// computed says that a request's blocks are in memory now; use had found so many of them.
func (m *engineMemory) computed(keys []kvstore.Key, found int) {
	for _, key := range keys[found:] {
		b := m.cached[key]
		if b == nil {
			b = &cachedBlock{}
			m.cached[key] = b
		}
		m.hold(b)
		m.reserved--
	}
}

// release ends a request.
func (m *engineMemory) release(keys []kvstore.Key) {
	for _, key := range slices.Backward(keys) {
		b := m.cached[key]
		if b.users--; b.users == 0 {
			b.idle = m.idle.PushBack(key)
		}
	}
	m.shrink()
}

func (m *engineMemory) hold(b *cachedBlock) {
	if b.idle != nil {
		m.idle.Remove(b.idle)
		b.idle = nil
	}
	b.users++
}

func (m *engineMemory) shrink() {
	for len(m.cached)+m.reserved > m.blocks && m.idle.Len() > 0 {
		key := m.idle.Remove(m.idle.Front()).(kvstore.Key)
		delete(m.cached, key)
	}
}

// engineMemory returns the prefix cache of an engine of this model, or nil without one.
func (b *bench) engineMemory(s *Subject) *engineMemory {
	bytes := s.engineMemoryBytes(b.o.EngineMemory)
	if bytes == 0 {
		return nil
	}
	return newEngineMemory(int(bytes / (s.tokenBytes * int64(s.blockTokens))))
}

// memoryShare is the part of the GPUs' memory that vLLM uses by default
// (--gpu-memory-utilization).
const memoryShare = 0.9

// engineMemoryBytes returns how much of the GPUs' memory keeps KV.
func (s *Subject) engineMemoryBytes(chosen int64) int64 {
	switch chosen {
	case NoEngineMemory:
		return 0
	case AutoEngineMemory:
		h := s.profile.Hardware
		return max(int64(memoryShare*h.MemoryBytes()-s.profile.Model.Weights.Bytes()), 0)
	}
	return chosen
}

// checkMemory returns an error if the weights leave no memory for KV.
func (s *Subject) checkMemory(chosen int64) error {
	if chosen != AutoEngineMemory || s.engineMemoryBytes(chosen) > 0 {
		return nil
	}
	h, m := s.profile.Hardware, s.profile.Model
	return fmt.Errorf("bench: %s does not fit into %s: its weights take %s, the GPUs have %s; choose more GPUs, or --engine-memory none",
		m.Name, h, measure.SizeText(int64(m.Weights.Bytes())), measure.SizeText(int64(h.MemoryBytes())))
}
