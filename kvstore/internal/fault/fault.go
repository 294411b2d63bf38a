// Package fault is a decorator for tests: it makes a store's calls fail, hang or return
// wrong data as configured. Without faults it behaves as the store behind it.
package fault

import (
	"context"
	"errors"
	"iter"
	"sync"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// Store is next with faults.
type Store struct {
	next kv.Store
	quit chan struct{}

	mu      sync.Mutex
	closed  bool
	batches sync.WaitGroup // that have faults
	faults  []*fault

	once     sync.Once
	closeErr error
}

var (
	_ kv.Store     = (*Store)(nil)
	_ kv.Registrar = (*Store)(nil)
)

// New puts faults before next, which it closes.
func New(next kv.Store, faults ...Fault) *Store {
	s := &Store{next: next, quit: make(chan struct{})}
	s.Set(faults...)
	return s
}

// Set replaces the faults. Calls that an earlier fault holds stay held.
func (s *Store) Set(faults ...Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = nil
	for _, f := range faults {
		s.faults = append(s.faults, &fault{Fault: f})
	}
}

// Hits returns how often each of the faults has struck since Set.
func (s *Store) Hits() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	hits := make([]int, len(s.faults))
	for i, f := range s.faults {
		hits[i] = f.hits
	}
	return hits
}

// Layout returns next's.
func (s *Store) Layout() kv.Layout { return s.next.Layout() }

// Lookup calls next's. Flip inverts answers; Drop finds nothing.
func (s *Store) Lookup(ctx context.Context, keys []kv.Key, found []bool) error {
	if err := kv.CheckFound(keys, found); err != nil {
		return err
	}
	hits := make([]hit, len(keys))
	drop := false
	for i, k := range keys {
		hits[i] = s.strike(Lookup, k, 0)
		if err := hits[i].before(ctx, s.quit); err != nil {
			return err
		}
		drop = drop || hits[i].drop
	}
	if drop {
		clear(found)
		return nil
	}
	if err := s.next.Lookup(ctx, keys, found); err != nil {
		return err
	}
	for i, h := range hits {
		if h.flip {
			found[i] = !found[i]
		}
	}
	return nil
}

// LookupPrefix calls next's. Drop and Flip find nothing.
func (s *Store) LookupPrefix(ctx context.Context, keys []kv.Key) (int, error) {
	for _, k := range keys {
		h := s.strike(LookupPrefix, k, 0)
		if err := h.before(ctx, s.quit); err != nil {
			return 0, err
		}
		if h.drop || h.flip {
			return 0, nil
		}
	}
	return s.next.LookupPrefix(ctx, keys)
}

// Delete calls next's. Drop leaves a block where it is and reports it as deleted.
func (s *Store) Delete(ctx context.Context, keys []kv.Key) error {
	var passed []kv.Key
	for _, k := range keys {
		h := s.strike(Delete, k, 0)
		if err := h.before(ctx, s.quit); err != nil {
			return err
		}
		if !h.drop {
			passed = append(passed, k)
		}
	}
	return s.next.Delete(ctx, passed)
}

// Keys yields next's. Drop leaves a key out.
func (s *Store) Keys(ctx context.Context) iter.Seq2[kv.Key, error] {
	return func(yield func(kv.Key, error) bool) {
		for k, err := range s.next.Keys(ctx) {
			if err != nil {
				yield(k, err)
				return
			}
			h := s.strike(Keys, k, 0)
			if err := h.before(ctx, s.quit); err != nil {
				yield(kv.Key{}, err)
				return
			}
			if !h.drop && !yield(k, nil) {
				return
			}
		}
	}
}

// Prefetch calls next's: a hint has no faults.
func (s *Store) Prefetch(keys []kv.Key) { s.next.Prefetch(keys) }

// Flush calls next's. With Drop it only reports success.
func (s *Store) Flush(ctx context.Context) error {
	h := s.strike(Flush, kv.Key{}, 0)
	if err := h.before(ctx, s.quit); err != nil {
		return err
	}
	if h.drop {
		return nil
	}
	return s.next.Flush(ctx)
}

// Stats returns next's: what a fault has kept from next is not counted.
func (s *Store) Stats() kv.Stats { return s.next.Stats() }

// Register calls next's if next registers memory.
func (s *Store) Register(name string, mem []byte) error {
	if r, ok := s.next.(kv.Registrar); ok {
		return r.Register(name, mem)
	}
	return nil
}

// Close ends what is held, and closes next even if a fault makes it fail.
func (s *Store) Close() error {
	s.once.Do(func() {
		s.mu.Lock()
		s.closed = true
		s.mu.Unlock()
		h := s.strike(Close, kv.Key{}, 0)
		err := h.before(context.Background(), nil)
		close(s.quit)
		s.closeErr = errors.Join(err, s.next.Close())
		s.batches.Wait()
	})
	return s.closeErr
}
