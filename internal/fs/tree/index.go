package tree

import "sync"

const (
	indexShards = 64
	// Below this many entries a shard is not worth rebuilding.
	indexShrinkFloor = 512
)

// index is a map in shards. A Go map never returns memory, and the kernel may make the
// tree remember millions of nodes and then forget them. So a shard is rebuilt once it
// holds less than a quarter of its peak.
type index[K comparable, V comparable] struct {
	hash   func(K) uint64
	shards [indexShards]indexShard[K, V]
}

type indexShard[K comparable, V comparable] struct {
	mu   sync.RWMutex
	m    map[K]V
	peak int
	_    [64]byte // neighbours on their own cache line
}

func newIndex[K comparable, V comparable](hash func(K) uint64) *index[K, V] {
	x := &index[K, V]{hash: hash}
	for i := range x.shards {
		x.shards[i].m = make(map[K]V)
	}
	return x
}

func (x *index[K, V]) shard(k K) *indexShard[K, V] {
	return &x.shards[x.hash(k)*0x9e3779b97f4a7c15>>58]
}

func (x *index[K, V]) get(k K) (V, bool) {
	s := x.shard(k)
	s.mu.RLock()
	v, ok := s.m[k]
	s.mu.RUnlock()
	return v, ok
}

func (x *index[K, V]) put(k K, v V) {
	s := x.shard(k)
	s.mu.Lock()
	s.m[k] = v
	s.peak = max(s.peak, len(s.m))
	s.mu.Unlock()
}

// take removes k if it still maps to v, and reports whether it did.
func (x *index[K, V]) take(k K, v V) bool {
	s := x.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	if now, ok := s.m[k]; !ok || now != v {
		return false
	}
	delete(s.m, k)
	if s.peak > indexShrinkFloor && len(s.m) < s.peak/4 {
		small := make(map[K]V, len(s.m))
		for k, v := range s.m {
			small[k] = v
		}
		s.m, s.peak = small, len(small)
	}
	return true
}

// all calls yield with every value.
func (x *index[K, V]) all(yield func(V) bool) {
	for i := range x.shards {
		s := &x.shards[i]
		s.mu.RLock()
		for _, v := range s.m {
			if !yield(v) {
				s.mu.RUnlock()
				return
			}
		}
		s.mu.RUnlock()
	}
}

func sameHash(k uint64) uint64 { return k }
