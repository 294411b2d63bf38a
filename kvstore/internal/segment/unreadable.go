package segment

import (
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// A block that the storage could not read is missing for Lookup and Save for kv.UnreadableFor, so that
// it is saved again, into another slot. A Load still tries the slot. It does not prove it good: other
// shards may be readable.

// foundLocked returns the slot of a block, unless it could not be read a short time ago. The store's lock is
// held.
func (s *Store) foundLocked(key kv.Key) (at uint32, ok bool) {
	at, ok = s.table.find(key)
	if ok && len(s.unreadable) > 0 {
		ok = time.Now().After(s.unreadable[at])
	}
	return at, ok
}

// failedToRead remembers a block if err means that the storage could not read it. The caller
// pins the segment.
func (s *Store) failedToRead(key kv.Key, p place, err error) {
	if !kv.IsUnreadable(err) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if at, ok := s.table.find(key); ok && at == p.at() {
		s.unreadable[at] = time.Now().Add(kv.UnreadableFor)
	}
}

// replaceLocked prepares the table for another place of a block that could not be read. The
// store's lock is held.
func (s *Store) replaceLocked(key kv.Key) {
	at, ok := s.table.find(key)
	if !ok {
		return
	}
	s.segmentOf(at).stale = true // its head stays there
	for _, l := range s.listings {
		l.carried = append(l.carried, key)
	}
}
