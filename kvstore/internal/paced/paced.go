// Package paced is a store of a given speed: the bytes are moved by the store
// behind it, and arrive when those of the simulated one would.
package paced

import (
	"context"
	"iter"
	"sync"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/kv"
)

// Options are the simulated store's speed.
type Options struct {
	BytesPerSecond float64       // in each direction; 0: no bound
	Latency        time.Duration // from the start of a shard's move to its end, beside its bytes
}

// Store is a store in front of another. Shards of a batch go one after the other
// through a pipe that all batches share, first come, first served, and are settled
// in the order given: when the pipe has let them through and the store behind has
// moved them, whichever is later. A batch that is cancelled has had its time of the
// pipe all the same. Lookups are as fast as they are.
type Store struct {
	next         kv.Store
	o            Options
	loads, dumps pipe
	closing      chan struct{}
	closeOnce    sync.Once
	mu           sync.Mutex // of joining and closing
	closed       bool
	batches      sync.WaitGroup
}

// New paces next, which it closes when it is closed. Where next is a kv.Registrar,
// so is what it returns.
func New(next kv.Store, o Options) kv.Store {
	s := &Store{next: next, o: o, closing: make(chan struct{})}
	if r, ok := next.(kv.Registrar); ok {
		return &registrar{s, r}
	}
	return s
}

// registrar is a Store that passes the ability on.
type registrar struct {
	*Store
	kv.Registrar
}

// Layout is that of the store behind.
func (s *Store) Layout() kv.Layout { return s.next.Layout() }

// Lookup asks the store behind.
func (s *Store) Lookup(ctx context.Context, keys []kv.Key, found []bool) error {
	return s.next.Lookup(ctx, keys, found)
}

// LookupPrefix asks the store behind.
func (s *Store) LookupPrefix(ctx context.Context, keys []kv.Key) (int, error) {
	return s.next.LookupPrefix(ctx, keys)
}

// Prefetch passes the hint on.
func (s *Store) Prefetch(keys []kv.Key) { s.next.Prefetch(keys) }

// Load is the other store's, and no faster than the pipe.
func (s *Store) Load(ctx context.Context, shards []kv.Shard) (*kv.Task, error) {
	return s.pass(ctx, shards, &s.loads, s.next.Load)
}

// Save is the other store's, and no faster than the pipe.
func (s *Store) Save(ctx context.Context, shards []kv.Shard) (*kv.Task, error) {
	return s.pass(ctx, shards, &s.dumps, s.next.Save)
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

// Stats are the other store's: a pace counts nothing.
func (s *Store) Stats() kv.Stats { return s.next.Stats() }

// Close closes the store behind, and gives back at once what that has let go of.
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
	if err := s.next.Layout().CheckShards(shards); err != nil {
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

// deliver settles the shards of outer in their order, each when inner has and its
// time has come: the first at the given one, and each of the others so much later
// than the one before.
func (s *Store) deliver(inner, outer *kv.Task, first time.Time, each float64) {
	errs, ready := make([]error, inner.Len()), make([]bool, inner.Len())
	next := 0
	for i, err := range inner.All() {
		errs[i], ready[i] = err, true
		for ; next < len(ready) && ready[next]; next++ {
			s.wait(outer.Context(), first.Add(time.Duration(float64(next)*each)))
			outer.Settle(next, errs[next])
		}
	}
}

// wait waits for due, but not when the batch is cancelled or the store closes.
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
	free time.Time // when what was asked for so far is through
}

// reserve makes a place for n shards: when the first is through, and how many
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
	p.free = begin.Add(time.Duration(float64(n) * each))
	return begin.Add(time.Duration(each)), each
}
