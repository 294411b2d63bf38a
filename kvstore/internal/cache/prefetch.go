package cache

import (
	"github.com/kv3fs/kv3fs/kvstore/internal/cache/table"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

const (
	mostWanted     = 4096 // hints that are kept
	prefetchAtOnce = 16   // blocks that are fetched together
)

// Prefetch fetches blocks from next, a few at a time, as long as slots can be had.
func (s *Store) Prefetch(keys []kv.Key) {
	if s.group.Err() != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wanted = append(s.wanted, keys[:min(len(keys), mostWanted-len(s.wanted))]...)
	select {
	case s.wantMore <- struct{}{}:
	default:
	}
}

// prefetcher is the goroutine that fetches what Prefetch was called with.
func (s *Store) prefetcher() {
	for {
		select {
		case <-s.wantMore:
		case <-s.group.Closing().Done():
			return
		}
		for s.prefetchSome() {
		}
	}
}

func (s *Store) prefetchSome() (more bool) {
	if s.group.Enter() != nil {
		return false
	}
	defer s.group.Leave()
	s.mu.Lock()
	n := min(prefetchAtOnce, len(s.wanted))
	keys := s.wanted[:n:n]
	if s.wanted = s.wanted[n:]; len(s.wanted) == 0 {
		s.wanted = nil
	}
	s.mu.Unlock()
	if n == 0 {
		return false
	}
	found := make([]bool, n)
	if s.next.Lookup(s.group.Closing(), keys, found) != nil {
		return true
	}
	if f := s.planPrefetch(keys, found); f != nil {
		f.run()
	}
	return true
}

// planPrefetch claims slots for the blocks that next has and the cache does not.
func (s *Store) planPrefetch(keys []kv.Key, found []bool) *fetch {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, now := s.newFetch(), table.Now()
	f.prefetch = true
	s.do(func() {
		for i, key := range keys {
			if _, there := s.table.Find(key); there || !found[i] {
				continue
			}
			slot, ok := s.slotFor(key, now)
			if !ok {
				return
			}
			for index := range s.layout.Shards() {
				f.add(s.fillings[slot], index)
			}
		}
	})
	if len(f.shards) == 0 {
		f.cancel()
		return nil
	}
	return f
}
