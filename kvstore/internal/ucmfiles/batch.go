package ucmfiles

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/kv3fs/kv3fs/kvstore/internal/workerpool"
	"github.com/kv3fs/kv3fs/kvstore/kv"
)

// opsAtOnce is how many moves are handed to the engine together.
const opsAtOnce = 64

// batch is a task on its way through the store.
type batch struct {
	s      *Store
	task   *kv.Task
	shards []kv.Shard // its own: the caller's may change while there is still a look at them
	dump   bool
	held   atomic.Int64 // tokens of the store's room
	left   atomic.Int64 // shards
	stop   func() bool
}

// begin takes a batch in. It waits while there is too much to do.
func (s *Store) begin(ctx context.Context, shards []kv.Shard, dump bool) (*batch, error) {
	if err := s.o.Layout.CheckShards(shards); err != nil {
		return nil, err
	}
	if err := s.enter(); err != nil {
		return nil, err
	}
	weight := int64(min(len(shards), s.o.RunningQueueDepth))
	if err := s.admit(ctx, weight); err != nil {
		s.leave()
		return nil, err
	}
	b := &batch{s: s, task: kv.NewTask(ctx, shards), shards: slices.Clone(shards), dump: dump}
	s.active.Add(1) // for the goroutine that goes through the shards
	b.held.Store(weight)
	b.left.Store(int64(len(shards)))
	b.stop = context.AfterFunc(s.closing, b.task.Cancel)
	return b, nil
}

// admit takes tokens, within the timeout.
func (s *Store) admit(ctx context.Context, weight int64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if s.room.TryAcquire(weight) {
		return nil
	}
	bound, cancel := context.WithTimeout(ctx, s.o.Timeout)
	defer cancel()
	defer context.AfterFunc(s.closing, cancel)()
	if s.room.Acquire(bound, weight) == nil {
		return nil
	}
	switch {
	case s.closing.Err() != nil:
		return kv.ErrClosed
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return fmt.Errorf("%w: %d shards are under way already", kv.ErrTimeout, s.o.RunningQueueDepth)
}

// settle ends a shard.
func (b *batch) settle(i int, err error) {
	err = b.explain(err)
	b.count(err)
	if b.held.Add(-1) >= 0 {
		b.s.room.Release(1)
	}
	last := b.left.Add(-1) == 0
	b.task.Settle(i, err)
	if last {
		b.stop()
		b.s.leave()
	}
}

func (b *batch) settleAll(shards []int, err error) {
	for _, i := range shards {
		b.settle(i, err)
	}
}

// explain puts errors into the words of the contract.
func (b *batch) explain(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled) && b.s.closing.Err() != nil:
		return kv.ErrClosed
	case errors.Is(err, workerpool.ErrOverdue):
		return fmt.Errorf("%w: %w", kv.ErrTimeout, err)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("%w: %w", kv.ErrFull, err)
	case errors.Is(err, syscall.EMFILE):
		return fmt.Errorf("%w: raise the limit (ulimit -n), or have fewer blocks under way", err)
	case err == kv.ErrTimeout:
		return fmt.Errorf("%w: too much that was asked of %s has not come back", err, strings.Join(b.s.o.Roots, ", "))
	}
	return err
}

func (b *batch) count(err error) {
	c, size := &b.s.counters, b.s.o.Layout.ShardBytes
	switch {
	case b.dump && err == nil:
		c.SavedShards.Add(1)
		c.SavedBytes.Add(size)
	case b.dump:
		c.FailedSaves.Add(1)
	case err == nil:
		c.LoadedShards.Add(1)
		c.LoadedBytes.Add(size)
	case errors.Is(err, kv.ErrMiss):
		c.MissedShards.Add(1)
	default:
		c.FailedLoads.Add(1)
	}
}

// run is shards that follow each other in the file, in the batch and in memory.
type run struct {
	first, n int
	buf      []byte
}

// runFrom is the longest run that begins with a shard of the batch and of which all
// may take part.
func (b *batch) runFrom(first int, may func(i int) bool) run {
	shard := b.shards[first]
	r := run{first: first, n: 1, buf: shard.Buf}
	for i := first + 1; i < len(b.shards) && may(i); i++ {
		next := b.shards[i]
		if next.Key != shard.Key || next.Index != shard.Index+r.n || !follows(r.buf, next.Buf) {
			break
		}
		r.n++
		r.buf = r.buf[:len(r.buf)+len(next.Buf)]
	}
	return r
}

// follows tells whether b begins in memory where a ends and a's slice reaches over
// it, as pieces of one buffer do.
func follows(a, b []byte) bool {
	return cap(a) >= len(a)+len(b) && &a[:len(a)+1][len(a)] == &b[0]
}
