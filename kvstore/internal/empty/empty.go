// Package empty is a store that accepts every block and keeps none. At the end of a
// chain, only the stores before it keep blocks; alone, it shows how an engine performs
// without a store.
package empty

import (
	"context"
	"iter"
	"sync"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// Store is a kv.Store that misses everything.
type Store struct {
	layout   kv.Layout
	counters kv.Counters

	mu     sync.RWMutex // held for reading while buffers are in use
	closed bool
}

var _ kv.Store = (*Store)(nil)

// New returns a store for blocks of a layout.
func New(layout kv.Layout) *Store { return &Store{layout: layout} }

// Layout implements kv.Store.
func (s *Store) Layout() kv.Layout { return s.layout }

// Lookup finds nothing.
func (s *Store) Lookup(ctx context.Context, keys []kv.Key, found []bool) error {
	if err := kv.CheckFound(keys, found); err != nil {
		return err
	}
	if err := s.usable(ctx); err != nil {
		return err
	}
	s.counters.LookedUp.Add(int64(len(keys)))
	clear(found)
	return nil
}

// LookupPrefix finds nothing.
func (s *Store) LookupPrefix(ctx context.Context, keys []kv.Key) (int, error) {
	if err := s.usable(ctx); err != nil {
		return 0, err
	}
	s.counters.LookedUp.Add(int64(len(keys)))
	return 0, nil
}

// Prefetch does nothing.
func (s *Store) Prefetch([]kv.Key) {}

// Load misses every shard, before it returns.
func (s *Store) Load(ctx context.Context, shards []kv.Shard) (*kv.Task, error) {
	return s.settle(ctx, shards, func(kv.Shard) error {
		s.counters.MissedShards.Add(1)
		return kv.ErrMiss
	})
}

// Save drops every shard, before it returns.
func (s *Store) Save(ctx context.Context, shards []kv.Shard) (*kv.Task, error) {
	return s.settle(ctx, shards, func(shard kv.Shard) error {
		s.counters.SavedShards.Add(1)
		s.counters.SavedBytes.Add(int64(len(shard.Buf)))
		return nil
	})
}

func (s *Store) settle(ctx context.Context, shards []kv.Shard, how func(kv.Shard) error) (*kv.Task, error) {
	if err := s.layout.CheckShards(shards); err != nil {
		return nil, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return nil, kv.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	t := kv.NewTask(ctx, shards)
	for i, shard := range shards {
		t.Settle(i, how(shard))
	}
	return t, nil
}

// Delete has nothing to remove.
func (s *Store) Delete(ctx context.Context, _ []kv.Key) error { return s.usable(ctx) }

// Keys yields nothing, or an error if the store is closed.
func (s *Store) Keys(ctx context.Context) iter.Seq2[kv.Key, error] {
	return func(yield func(kv.Key, error) bool) {
		if err := s.usable(ctx); err != nil {
			yield(kv.Key{}, err)
		}
	}
}

// Flush has nothing to wait for.
func (s *Store) Flush(ctx context.Context) error { return s.usable(ctx) }

// Stats implements kv.Store. The store holds no blocks.
func (s *Store) Stats() kv.Stats {
	stats := s.counters.Stats("Empty")
	stats.Blocks = 0
	return stats
}

// Close implements kv.Store.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return nil
}

func (s *Store) usable(ctx context.Context) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return kv.ErrClosed
	}
	return ctx.Err()
}
