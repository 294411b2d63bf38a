package enginebench

import (
	"context"
	"sync"

	"github.com/kv3fs/kv3fs/kvstore/kv"
)

// shelf is what outlives the stores that are opened over it.
type shelf struct {
	mu     sync.Mutex
	blocks map[kv.Key][][]byte
	opened int
	wrap   func(kv.Store) kv.Store
}

// open is an Options.Open.
func (s *shelf) open(_ context.Context, w Want) (kv.Store, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.blocks == nil {
		s.blocks = map[kv.Key][][]byte{}
	}
	s.opened++
	var store kv.Store = &shelfStore{shelf: s, layout: w.Layout}
	if s.wrap != nil {
		store = s.wrap(store)
	}
	return store, nil
}

// shelfStore is a store for tests: what it is asked is done before it returns.
type shelfStore struct {
	*shelf
	layout kv.Layout
}

func (s *shelfStore) Layout() kv.Layout { return s.layout }

func (s *shelfStore) there(k kv.Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	parts := s.blocks[k]
	for _, p := range parts {
		if p == nil {
			return false
		}
	}
	return parts != nil
}

func (s *shelfStore) Lookup(_ context.Context, keys []kv.Key, found []bool) error {
	for i, k := range keys {
		found[i] = s.there(k)
	}
	return nil
}

func (s *shelfStore) LookupPrefix(_ context.Context, keys []kv.Key) (int, error) {
	for i, k := range keys {
		if !s.there(k) {
			return i, nil
		}
	}
	return len(keys), nil
}

func (s *shelfStore) Prefetch([]kv.Key) {}

func (s *shelfStore) Load(ctx context.Context, shards []kv.Shard) (*kv.Task, error) {
	t := kv.NewTask(ctx, shards)
	for i, sh := range shards {
		if !s.there(sh.Key) {
			t.Settle(i, kv.ErrMiss)
			continue
		}
		s.mu.Lock()
		copy(sh.Buf, s.blocks[sh.Key][sh.Index])
		s.mu.Unlock()
		t.Settle(i, nil)
	}
	return t, nil
}

func (s *shelfStore) Save(ctx context.Context, shards []kv.Shard) (*kv.Task, error) {
	t := kv.NewTask(ctx, shards)
	for i, sh := range shards {
		s.mu.Lock()
		if s.blocks[sh.Key] == nil {
			s.blocks[sh.Key] = make([][]byte, s.layout.Shards())
		}
		s.blocks[sh.Key][sh.Index] = append([]byte(nil), sh.Buf...)
		s.mu.Unlock()
		t.Settle(i, nil)
	}
	return t, nil
}

func (s *shelfStore) Flush(context.Context) error { return nil }
func (s *shelfStore) Stats() kv.Stats             { return kv.Stats{Store: "Shelf"} }
func (s *shelfStore) Close() error                { return nil }
