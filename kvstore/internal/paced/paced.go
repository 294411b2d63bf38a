// Package paced slows a store down to the speed of a simulated storage. The store behind
// it moves the bytes, and shards are settled when the simulated storage would have moved
// them.
package paced

import (
	"context"
	"iter"
	"sync"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// Options are the speed of the simulated storage.
type Options struct {
	BytesPerSecond float64       // in each direction; 0: no bound
	Latency        time.Duration // of each shard, besides its bytes
}

// Store is a store in front of another. Shards of a batch go one after the other through
// a pipe that all batches in the same direction share, first come, first served. They are
// settled in the order given: when the pipe has let them through and the store behind has
// moved them, whichever is later. A cancelled batch still uses its time of the pipe.
// Lookups are not slowed down.
type Store struct {
	next         kv.Store
	o            Options
	loads, saves pipe
	closing      chan struct{}
	closeOnce    sync.Once
	mu           sync.Mutex // guards closed, and batches.Add against Close
	closed       bool
	batches      sync.WaitGroup
}

// New slows next down and closes it when it is closed. The result is a kv.Registrar if
// next is.
func New(next kv.Store, o Options) kv.Store {
	s := &Store{next: next, o: o, closing: make(chan struct{})}
	if r, ok := next.(kv.Registrar); ok {
		return &registrar{s, r}
	}
	return s
}

// registrar is a Store that passes Register on.
type registrar struct {
	*Store
	kv.Registrar
}

// Layout returns that of the store behind.
func (s *Store) Layout() kv.Layout { return s.next.Layout() }

// Lookup is that of the store behind.
func (s *Store) Lookup(ctx context.Context, keys []kv.Key, found []bool) error {
	return s.next.Lookup(ctx, keys, found)
}

// LookupPrefix is that of the store behind.
func (s *Store) LookupPrefix(ctx context.Context, keys []kv.Key) (int, error) {
	return s.next.LookupPrefix(ctx, keys)
}

// Prefetch passes the hint on.
func (s *Store) Prefetch(keys []kv.Key) { s.next.Prefetch(keys) }

// Load is that of the store behind, at the speed of the pipe.
func (s *Store) Load(ctx context.Context, shards []kv.Shard) (*kv.Task, error) {
	return s.pass(ctx, shards, &s.loads, s.next.Load)
}

// Save is that of the store behind, at the speed of the pipe.
func (s *Store) Save(ctx context.Context, shards []kv.Shard) (*kv.Task, error) {
	return s.pass(ctx, shards, &s.saves, s.next.Save)
}

// Delete deletes from the store behind.
func (s *Store) Delete(ctx context.Context, keys []kv.Key) error {
	return s.next.Delete(ctx, keys)
}

// Keys lists the store behind.
func (s *Store) Keys(ctx context.Context) iter.Seq2[kv.Key, error] {
	return s.next.Keys(ctx)
}

// Flush flushes the store behind.
func (s *Store) Flush(ctx context.Context) error { return s.next.Flush(ctx) }

// Stats returns those of the store behind.
func (s *Store) Stats() kv.Stats { return s.next.Stats() }

// Close closes the store behind, and settles at once what that has settled.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.closeOnce.Do(func() { close(s.closing) })
	err := s.next.Close()
	s.batches.Wait()
	return err
}

type begin func(context.Context, []kv.Shard) (*kv.Task, error)

func (s *Store) pass(ctx context.Context, shards []kv.Shard, p *pipe, next begin) (*kv.Task, error) {
	if err := s.next.Layout().CheckAnyShards(shards); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, kv.ErrClosed
	}
	s.batches.Add(1)
	s.mu.Unlock()
	outer := kv.NewTask(ctx, shards)
	first, each := p.reserve(len(shards), s.next.Layout().ShardBytes, s.o.BytesPerSecond)
	inner, err := next(outer.Context(), shards)
	if err != nil {
		outer.Cancel()
		s.batches.Done()
		return nil, err
	}
	go func() {
		defer s.batches.Done()
		s.deliver(inner, outer, first.Add(s.o.Latency), each)
	}()
	return outer, nil
}

// deliver settles the shards of outer in their order, each when inner has settled it and
// its time has come: first is that of the first shard, and the others follow at
// intervals of each nanoseconds.
func (s *Store) deliver(inner, outer *kv.Task, first time.Time, each float64) {
	errs, ready := make([]error, inner.Len()), make([]bool, inner.Len())
	next := 0
	for i, err := range inner.All() {
		errs[i], ready[i] = err, true
		for ; next < len(ready) && ready[next]; next++ {
			s.wait(outer.Context(), first.Add(duration(float64(next)*each)))
			outer.SetVersion(next, inner.Version(next))
			outer.Settle(next, errs[next])
		}
	}
}

// wait waits until due, or until the batch is cancelled or the store closes.
func (s *Store) wait(ctx context.Context, due time.Time) {
	left := time.Until(due)
	if left <= 0 {
		return
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-s.closing:
	}
}

// pipe is one direction.
type pipe struct {
	mu   sync.Mutex
	free time.Time // when everything reserved so far is through
}

// reserve reserves time for n shards. It returns when the first is through, and how many
// nanoseconds each of the others takes.
func (p *pipe) reserve(n int, shardBytes int64, bytesPerSecond float64) (first time.Time, each float64) {
	if bytesPerSecond > 0 {
		each = float64(shardBytes) / bytesPerSecond * float64(time.Second)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	begin := time.Now()
	if p.free.After(begin) {
		begin = p.free
	}
	p.free = begin.Add(duration(float64(n) * each))
	return begin.Add(duration(each)), each
}

// duration returns so many nanoseconds, or centuries where a Duration cannot hold them.
func duration(ns float64) time.Duration { return time.Duration(min(ns, 1<<62)) }
