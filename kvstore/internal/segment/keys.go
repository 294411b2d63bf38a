package segment

import (
	"bytes"
	"context"
	"iter"
	"slices"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// listing is a pass over the table that is under way.
type listing struct{ carried []kv.Key } // since it began; guarded by Store.mu

// listSlots is how many slots are looked at before others get the lock.
const listSlots = 4096

// Keys is kv.Store's. It takes 16 bytes of memory for each block.
func (s *Store) Keys(ctx context.Context) iter.Seq2[kv.Key, error] {
	return func(yield func(kv.Key, error) bool) {
		keys, err := s.listKeys(ctx)
		if err != nil {
			yield(kv.Key{}, err)
			return
		}
		for _, key := range keys {
			if err := ctx.Err(); err != nil {
				yield(kv.Key{}, err)
				return
			}
			if !yield(key, nil) {
				return
			}
		}
	}
}

// listKeys returns the key of every block, once. A block that is carried meanwhile may
// move from a slot not yet listed to one already passed, or be listed in both. So
// carried blocks are noted, and duplicates removed.
func (s *Store) listKeys(ctx context.Context) ([]kv.Key, error) {
	if err := s.group.Enter(); err != nil {
		return nil, err
	}
	defer s.group.Leave()
	l := &listing{}
	s.mu.Lock()
	s.listings = append(s.listings, l)
	keys := make([]kv.Key, 0, s.table.count)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.listings = slices.DeleteFunc(s.listings, func(other *listing) bool { return other == l })
	}()
	for first := 0; first < len(s.table.slots); first += listSlots {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := s.group.Err(); err != nil {
			return nil, err
		}
		s.mu.RLock()
		for at := first; at < min(first+listSlots, len(s.table.slots)); at++ {
			if s.table.has(uint32(at)) {
				keys = append(keys, s.table.slots[at].key)
			}
		}
		s.mu.RUnlock()
	}
	s.mu.RLock()
	for _, key := range l.carried {
		if _, ok := s.table.find(key); ok {
			keys = append(keys, key)
		}
	}
	s.mu.RUnlock()
	slices.SortFunc(keys, func(a, b kv.Key) int { return bytes.Compare(a[:], b[:]) })
	return slices.Compact(keys), nil
}
