package fault

import (
	"context"
	"slices"
	"sync"

	"github.com/kv3fs/kv3fs/kvstore/kv"
)

// Load is next's. A batch in which nothing goes wrong is next's own.
func (s *Store) Load(ctx context.Context, shards []kv.Shard) (*kv.Task, error) {
	return s.begin(ctx, Load, shards, s.next.Load)
}

// Save is next's. A shard that is dropped is never seen by next.
func (s *Store) Save(ctx context.Context, shards []kv.Shard) (*kv.Task, error) {
	return s.begin(ctx, Dump, shards, s.next.Save)
}

type move func(context.Context, []kv.Shard) (*kv.Task, error)

func (s *Store) begin(ctx context.Context, m Method, shards []kv.Shard, next move) (*kv.Task, error) {
	if err := s.Layout().CheckShards(shards); err != nil {
		return nil, err
	}
	hits := make([]hit, len(shards))
	for i, shard := range shards {
		hits[i] = s.strike(m, shard.Key, shard.Index)
	}
	if !slices.ContainsFunc(hits, func(h hit) bool { return !h.none() }) {
		return next(ctx, shards)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, kv.ErrClosed
	}
	b := &batch{store: s, task: kv.NewTask(ctx, shards), shards: shards, hits: hits, next: next}
	s.batches.Go(b.run)
	return b.task, nil
}

// batch is one in which something goes wrong.
type batch struct {
	store  *Store
	task   *kv.Task
	shards []kv.Shard
	hits   []hit
	next   move
	parts  sync.WaitGroup
}

// run goes through the shards in their order, and passes on what nothing is wrong
// with, run by run.
func (b *batch) run() {
	defer b.parts.Wait()
	sound := 0 // from here on they are
	for i := range b.shards {
		h := &b.hits[i]
		if h.none() {
			continue
		}
		b.pass(sound, i)
		sound = i + 1
		err := h.before(b.task.Context(), b.store.quit)
		switch {
		case err != nil || h.drop:
			b.task.Settle(i, err)
		default:
			b.pass(i, i+1)
		}
	}
	b.pass(sound, len(b.shards))
}

// pass hands shards to the next store, and has them settled as they are there.
func (b *batch) pass(from, to int) {
	if from == to {
		return
	}
	task, err := b.next(b.task.Context(), b.shards[from:to])
	if err != nil {
		for i := from; i < to; i++ {
			b.task.Settle(i, err)
		}
		return
	}
	b.parts.Go(func() {
		for i, err := range task.All() {
			h := &b.hits[from+i]
			if err == nil && h.flip {
				h.flipBit(b.shards[from+i].Buf)
			}
			b.task.Settle(from+i, err)
		}
	})
}
