package cache

import (
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/cache/table"
)

// maintain runs until Close. At intervals it drops blocks whose shards stop coming,
// takes over the blocks of processes that died, and makes changes that are owed.
func (s *Store) maintain() {
	ticker := time.NewTicker(min(max(s.o.Timeout/4, 5*time.Millisecond), time.Second))
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-s.group.Closing().Done():
			return
		}
		s.expire(s.o.Timeout)
		s.tidy()
	}
}

func (s *Store) tidy() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.checkPins()
	for key, since := range s.direct {
		if time.Since(since) > s.o.Timeout {
			delete(s.direct, key)
		}
	}
	if len(s.owed) == 0 && !s.table.Shared() {
		return
	}
	s.do(func() {
		if s.table.Reclaim(table.Now()) {
			s.adopt()
		}
	})
	s.spaceChanged()
}

// adopt takes over the dirty blocks of processes that died. The lock and the table
// are held.
func (s *Store) adopt() {
	for slot, gen := range s.table.Mine() {
		if d := s.write.all[slot]; d == nil || d.gen != gen {
			s.write.add(&dirtyBlock{key: s.table.Key(slot), slot: slot, gen: gen})
		}
	}
}
