package tier

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/batch"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

var (
	_ kv.Store     = (*Store)(nil)
	_ kv.Registrar = (*Store)(nil)
)

// Store is a near store in front of a far one.
type Store struct {
	near, far         kv.Store
	nearName, farName string
	layout            kv.Layout
	o                 Options
	count             kv.Counters
	filled, passed    atomic.Int64 // blocks kept near; bytes of loads that came from far

	group        *batch.Group
	loads, saves *batch.Limit
	health       *health
	unsent       *unsent
	memory       *memory // for blocks from far
	outgoing     *memory // for blocks to far, several in each
	partials     partials
	services     sync.WaitGroup // watch, keepers, filler
	senders      sync.WaitGroup
	ctx          context.Context // of these goroutines: it ends with Close
	cancel       context.CancelFunc
	close        func() error // runs shutdown once

	mu       sync.Mutex
	keeps    map[kv.Key]*keep
	ready    chan *keep            // whole, for the keepers
	wanted   chan kv.Key           // for the filler
	isWanted map[kv.Key]struct{}   // what is in wanted
	searched time.Time             // when keeps were last searched for idle ones, for want of memory
	owed     map[kv.Key]bool       // blocks that a Delete has left near and perhaps not far; true: perhaps not near either
	reading  map[*reading]struct{} // loads from far that are under way
	saving   map[*saving]bool      // saves to the near store that are under way
	deleting map[kv.Key]int        // calls of Delete that are under way
}

const (
	batchesAtOnce = 1024 // of Load, and of Save; more wait
	wantedAtOnce  = 4096 // blocks for the filler; more are left out
)

// New returns near in front of far. It owns both: Close closes them. After an error they are
// the caller's.
func New(near, far kv.Store, o Options) (*Store, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	l := near.Layout()
	if l != far.Layout() {
		return nil, fmt.Errorf("kvstore: blocks of %s are %+v, those of %s %+v", near.Stats().Store, l, far.Stats().Store, far.Layout())
	}
	s := &Store{
		near: near, far: far, nearName: near.Stats().Store, farName: far.Stats().Store, layout: l, o: o,
		loads: batch.LimitBatches(batchesAtOnce), saves: batch.LimitBatches(batchesAtOnce),
		isWanted: map[kv.Key]struct{}{}, owed: map[kv.Key]bool{}, partials: partials{patience: o.Timeout, shards: l.Shards()},
		keeps: map[kv.Key]*keep{}, reading: map[*reading]struct{}{}, saving: map[*saving]bool{}, deleting: map[kv.Key]int{},
		wanted: make(chan kv.Key, wantedAtOnce),
	}
	s.memory = newMemory(l.BlockBytes, blocksIn(o.FillBytes, l.BlockBytes), func() {
		o.Logger.Warn("calls have not returned so often that a store may still use all memory for blocks from far; nothing is kept near until some do", "near", s.nearName, "far", s.farName)
	})
	s.outgoing = newMemory(int64(s.sendAtOnce())*l.BlockBytes, senders+mostLost, func() {
		o.Logger.Warn("calls have not returned so often that a store may still use all memory for blocks to far; nothing is sent until some do", "near", s.nearName, "far", s.farName)
	})
	s.ready = make(chan *keep, s.memory.buffers)
	s.health = newHealth(far, s.farName, o.Logger)
	s.unsent = newUnsent(o.WaitingBlocks)
	s.group = batch.NewGroup(l, &s.count, o.Timeout)
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.close = sync.OnceValue(s.shutdown)
	s.services.Go(func() { s.health.watch(s.ctx) })
	for range keepers {
		s.services.Go(s.keeper)
	}
	s.services.Go(s.filler)
	for range senders {
		s.senders.Go(s.sender)
	}
	return s, nil
}

// Layout is that of both stores.
func (s *Store) Layout() kv.Layout { return s.layout }

// Register tells both stores of the memory.
func (s *Store) Register(name string, mem []byte) error {
	for _, store := range []kv.Store{s.near, s.far} {
		if r, ok := store.(kv.Registrar); ok {
			if err := r.Register(name, mem); err != nil {
				return err
			}
		}
	}
	return nil
}

// named says which store an error is of. A miss is nobody's.
func named(store string, err error) error {
	if err == nil || errors.Is(err, kv.ErrMiss) || errors.Is(err, kv.ErrClosed) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return fmt.Errorf("%s: %w", store, err)
}

// Prefetch has what is not near brought there.
func (s *Store) Prefetch(keys []kv.Key) {
	if s.group.Enter() != nil {
		return
	}
	defer s.group.Leave()
	found := make([]bool, len(keys))
	if s.near.Lookup(s.ctx, keys, found) != nil {
		return
	}
	for i, key := range keys {
		if !found[i] {
			s.want(key)
		}
	}
}

// Keys is kv.Store's: what is near, then what is far beyond that.
func (s *Store) Keys(ctx context.Context) iter.Seq2[kv.Key, error] {
	return func(yield func(kv.Key, error) bool) {
		inner, cancel := s.group.With(ctx)
		defer cancel()
		seen := map[kv.Key]bool{}
		for _, of := range []struct {
			name string
			kv.Store
		}{{s.nearName, s.near}, {s.farName, s.far}} {
			err := s.group.Err()
			if err == nil && of.Store == s.far {
				err = s.health.err()
			}
			if err != nil {
				yield(kv.Key{}, err)
				return
			}
			for key, err := range of.Keys(inner) {
				if err != nil {
					yield(kv.Key{}, named(of.name, s.group.Explain(err)))
					return
				}
				if seen[key] {
					continue
				}
				if of.Store == s.near {
					seen[key] = true
				}
				if !yield(key, nil) {
					return
				}
			}
		}
	}
}

// Flush waits until everything that was saved is far, or has failed to get there.
func (s *Store) Flush(ctx context.Context) error {
	if err := s.group.Enter(); err != nil {
		return err
	}
	defer s.group.Leave()
	inner, cancel := s.group.With(ctx)
	defer cancel()
	err := s.flushUnsent(inner)
	if away := s.health.err(); away != nil {
		err = errors.Join(err, away)
	} else {
		err = errors.Join(err, named(s.farName, s.far.Flush(inner)))
	}
	return s.group.Explain(errors.Join(err, named(s.nearName, s.near.Flush(inner))))
}

// Stats returns what was counted of both stores together under the name of the near one, as
// a cache counts what it passes on, and then what the far one has counted.
func (s *Store) Stats() kv.Stats {
	near, far := s.near.Stats(), s.far.Stats()
	stats := s.count.Stats(s.nearName)
	stats.DroppedBlocks += near.DroppedBlocks
	stats.CorruptBlocks, stats.QuarantinedBlocks, stats.EvictedBlocks = near.CorruptBlocks, near.QuarantinedBlocks, near.EvictedBlocks
	stats.UnverifiedShards = near.UnverifiedShards
	stats.Blocks, stats.CapacityBytes = near.Blocks, near.CapacityBytes
	stats.PassedBytes, stats.FilledBlocks, stats.UnsentBlocks = s.passed.Load(), s.filled.Load(), s.unsent.len()
	stats.Next = &far
	return stats
}

// Close sends what was accepted, within the timeout, and closes both stores.
func (s *Store) Close() error { return s.close() }

func (s *Store) shutdown() error {
	s.group.Close()
	s.drain()
	s.drainKeeps()
	s.cancel()
	s.senders.Wait()
	s.services.Wait()
	err := s.report()
	return errors.Join(err, named(s.nearName, s.near.Close()), named(s.farName, s.far.Close()))
}
