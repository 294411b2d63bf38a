package fault

import (
	"context"
	"slices"
	"sync"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// Load calls next's. A batch without faults is passed on whole.
func (s *Store) Load(ctx context.Context, shards []kv.Shard) (*kv.Task, error) {
	return s.begin(ctx, Load, shards, s.next.Load)
}

// Save calls next's. A shard that is dropped never reaches next.
func (s *Store) Save(ctx context.Context, shards []kv.Shard) (*kv.Task, error) {
	return s.begin(ctx, Save, shards, s.next.Save)
}

type move func(context.Context, []kv.Shard) (*kv.Task, error)

func (s *Store) begin(ctx context.Context, m Method, shards []kv.Shard, next move) (*kv.Task, error) {
	if err := s.Layout().CheckAnyShards(shards); err != nil {
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

// batch is a batch with faults. It does not use package batch, which explains and counts
// errors: a fault's error must reach the caller as it is, and next counts the rest.
type batch struct {
	store  *Store
	task   *kv.Task
	shards []kv.Shard
	hits   []hit
	next   move
	parts  sync.WaitGroup
}

// run goes through the shards in order and passes on those that do not fail and are not
// held, as many together as possible: a batch of whole blocks is a writer, so one that is
// only slow must reach next whole.
func (b *batch) run() {
	defer b.parts.Wait()
	sound := 0 // no shard from here on has a fault so far
	for i := range b.shards {
		h := &b.hits[i]
		if h.none() {
			continue
		}
		if h.slow() {
			if err := h.before(b.task.Context(), b.store.quit); err == nil {
				continue
			}
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

// pass hands shards to next and settles them as next does.
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
			b.task.SetVersion(from+i, task.Version(i))
			b.task.Settle(from+i, err)
		}
	})
}
