package pages

import (
	"context"
	"slices"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// Lookup asks the service, which holds the blocks that it finds for a few seconds.
func (s *Store) Lookup(ctx context.Context, keys []kv.Key, found []bool) error {
	if err := kv.CheckFound(keys, found); err != nil {
		return err
	}
	ctx, leave, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	ctx, done := s.inTime(ctx)
	defer done()
	for at := range chunks(keys) {
		some := keys[at:min(at+batchKeys, len(keys))]
		there, err := s.exists(ctx, some)
		if err != nil {
			return s.group.Explain(err)
		}
		copy(found[at:], there)
		s.counters.LookedUp.Add(int64(len(some)))
		s.counters.Found.Add(int64(count(there)))
	}
	return nil
}

// LookupPrefix asks for some keys at a time, and for no more after a missing one.
func (s *Store) LookupPrefix(ctx context.Context, keys []kv.Key) (int, error) {
	ctx, leave, err := s.enter(ctx)
	if err != nil {
		return 0, err
	}
	defer leave()
	ctx, done := s.inTime(ctx)
	defer done()
	for at := range chunks(keys) {
		some := keys[at:min(at+batchKeys, len(keys))]
		there, err := s.exists(ctx, some)
		if err != nil {
			return 0, s.group.Explain(err)
		}
		s.counters.LookedUp.Add(int64(len(some)))
		s.counters.Found.Add(int64(count(there)))
		if gap := slices.Index(there, false); gap >= 0 {
			return at + gap, nil
		}
	}
	return len(keys), nil
}

// chunks yields where the keys of each request begin.
func chunks(keys []kv.Key) func(func(int) bool) {
	return func(yield func(int) bool) {
		for at := 0; at < len(keys); at += batchKeys {
			if !yield(at) {
				return
			}
		}
	}
}

func count(there []bool) (n int) {
	for _, is := range there {
		if is {
			n++
		}
	}
	return n
}
