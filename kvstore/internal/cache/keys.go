package cache

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/kv3fs/kv3fs/kvstore/internal/cache/table"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// listAtOnce is how many slots are looked at before others get the lock.
const listAtOnce = 4096

// Keys is kv.Store's: first what is in memory, then what next has beyond that.
func (s *Store) Keys(ctx context.Context) iter.Seq2[kv.Key, error] {
	return func(yield func(kv.Key, error) bool) {
		seen, err := s.keysInMemory(ctx)
		if err != nil {
			yield(kv.Key{}, err)
			return
		}
		for key := range seen {
			if err := ctx.Err(); err != nil {
				yield(kv.Key{}, err)
				return
			}
			if !yield(key, nil) {
				return
			}
		}
		inner, cancel := s.group.With(ctx)
		defer cancel()
		for key, err := range s.next.Keys(inner) {
			if err != nil {
				yield(kv.Key{}, s.group.Explain(err))
				return
			}
			if !seen[key] && !yield(key, nil) {
				return
			}
		}
	}
}

// keysInMemory returns the keys of the whole blocks in memory. Broken memory has none.
func (s *Store) keysInMemory(ctx context.Context) (map[kv.Key]bool, error) {
	if err := s.group.Enter(); err != nil {
		return nil, err
	}
	defer s.group.Leave()
	all := map[kv.Key]bool{}
	for first, looked := int32(0), 1; looked > 0; first += int32(looked) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		var keys []kv.Key
		s.mu.Lock()
		looked = 0
		err := s.do(func() { keys, looked = s.table.Keys(first, listAtOnce) })
		s.mu.Unlock()
		if err != nil && !errors.Is(err, table.ErrBroken) {
			return nil, fmt.Errorf("kvstore: cache: blocks cannot be listed: %w: %w", err, kv.ErrTimeout)
		}
		for _, key := range keys {
			all[key] = true
		}
	}
	return all, nil
}
