package cache

import (
	"context"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// Lookup looks in memory for whole blocks, and in next for the rest, in one call.
func (s *Store) Lookup(ctx context.Context, keys []kv.Key, found []bool) error {
	if err := kv.CheckFound(keys, found); err != nil {
		return err
	}
	if err := s.group.Enter(); err != nil {
		return err
	}
	defer s.group.Leave()
	if err := ctx.Err(); err != nil {
		return err
	}
	missing := len(keys) - s.inMemory(keys, found)
	if missing > 0 {
		if err := s.lookupNext(ctx, keys, found, missing); err != nil {
			return err
		}
	}
	s.count.LookedUp.Add(int64(len(keys)))
	s.count.Found.Add(int64(count(found)))
	return nil
}

// inMemory looks up keys in the table and returns how many are there. While the table
// cannot be locked, none is.
func (s *Store) inMemory(keys []kv.Key, found []bool) int {
	s.inTurns(len(keys), func(low, high int) {
		clear(found[low:high])
		s.do(func() {
			for i := low; i < high; i++ {
				if slot, ok := s.table.Find(keys[i]); ok {
					found[i] = s.table.Head(slot).State.Whole()
				}
			}
		})
	})
	return count(found)
}

func count(found []bool) int {
	n := 0
	for _, f := range found {
		if f {
			n++
		}
	}
	return n
}

// callNext calls next, with a context that ends with Close, too.
func (s *Store) callNext(ctx context.Context, call func(context.Context) error) error {
	inner, cancel := s.group.With(ctx)
	defer cancel()
	return s.group.Explain(call(inner))
}

// lookupNext looks up in next the keys that are not found yet.
func (s *Store) lookupNext(ctx context.Context, keys []kv.Key, found []bool, missing int) error {
	if missing == len(keys) {
		return s.callNext(ctx, func(ctx context.Context) error { return s.next.Lookup(ctx, keys, found) })
	}
	rest, at := make([]kv.Key, 0, missing), make([]int, 0, missing)
	for i, f := range found {
		if !f {
			rest, at = append(rest, keys[i]), append(at, i)
		}
	}
	there := make([]bool, len(rest))
	if err := s.callNext(ctx, func(ctx context.Context) error { return s.next.Lookup(ctx, rest, there) }); err != nil {
		return err
	}
	for n, i := range at {
		found[i] = there[n]
	}
	return nil
}

// LookupPrefix looks up in next only runs of keys that are not in memory, and none behind
// the first key that is in neither.
func (s *Store) LookupPrefix(ctx context.Context, keys []kv.Key) (int, error) {
	if err := s.group.Enter(); err != nil {
		return 0, err
	}
	defer s.group.Leave()
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	found := make([]bool, len(keys))
	s.inMemory(keys, found)
	n, err := s.prefix(ctx, keys, found)
	if err != nil {
		return 0, err
	}
	s.count.LookedUp.Add(int64(len(keys)))
	s.count.Found.Add(int64(n))
	return n, nil
}

func (s *Store) prefix(ctx context.Context, keys []kv.Key, found []bool) (int, error) {
	n := 0
	for n < len(keys) {
		if found[n] {
			n++
			continue
		}
		end := n
		for end < len(keys) && !found[end] {
			end++
		}
		there := 0
		err := s.callNext(ctx, func(ctx context.Context) (err error) {
			there, err = s.next.LookupPrefix(kv.WithPrompt(ctx, keys), keys[n:end])
			return err
		})
		if err != nil {
			return 0, err
		}
		if n += there; n < end {
			break
		}
	}
	return n, nil
}

// InMemory implements kv.Memory.
func (s *Store) InMemory(keys []kv.Key) int {
	if s.group.Enter() != nil {
		return 0
	}
	defer s.group.Leave()
	return s.inMemory(keys, make([]bool, len(keys)))
}
