package pages

import (
	"context"
	"iter"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// Delete makes the service delete keys, durably. Their pages are quarantined until no
// client can still be reading them. A Save that is under way may confirm its block
// afterwards.
func (s *Store) Delete(ctx context.Context, keys []kv.Key) error {
	ctx, leave, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	ctx, done := s.inTime(ctx)
	defer done()
	for at := range chunks(keys) {
		if err := s.service.remove(ctx, patient, keys[at:min(at+batchKeys, len(keys))]); err != nil {
			return s.group.Explain(err)
		}
	}
	return nil
}

// Keys yields the keys of this page file that the service lists.
func (s *Store) Keys(ctx context.Context) iter.Seq2[kv.Key, error] {
	return func(yield func(kv.Key, error) bool) {
		for after := ""; ; {
			keys, last, err := s.list(ctx, after)
			if err != nil {
				yield(kv.Key{}, err)
				return
			}
			for _, key := range keys {
				if !yield(key, nil) {
					return
				}
			}
			if last == "" {
				return
			}
			after = last
		}
	}
}

func (s *Store) list(ctx context.Context, after string) ([]kv.Key, string, error) {
	ctx, leave, err := s.enter(ctx)
	if err != nil {
		return nil, "", err
	}
	defer leave()
	ctx, done := s.inTime(ctx)
	defer done()
	keys, last, err := s.service.list(ctx, after)
	return keys, last, s.group.Explain(err)
}
