package ucmfiles

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/kvstore/internal/workerpool"
	"github.com/kv3fs/kv3fs/kvstore/kv"
)

// lookupChunk is how many keys one call asks for, one after the other.
const lookupChunk = 8

// Lookup asks the file system for every block.
func (s *Store) Lookup(ctx context.Context, keys []kv.Key, found []bool) error {
	if err := kv.CheckFound(keys, found); err != nil {
		return err
	}
	answers, err := s.scan(ctx, keys, false)
	if err != nil {
		return err
	}
	n := 0
	for i := range found {
		found[i] = answers[i]
		if found[i] {
			n++
		}
	}
	s.counters.LookedUp.Add(int64(len(keys)))
	s.counters.Found.Add(int64(n))
	return nil
}

// LookupPrefix asks in order and not beyond the first that is not there, give or
// take what was asked at the same time.
func (s *Store) LookupPrefix(ctx context.Context, keys []kv.Key) (int, error) {
	answers, err := s.scan(ctx, keys, true)
	if err != nil {
		return 0, err
	}
	n := 0
	for n < len(answers) && answers[n] {
		n++
	}
	s.counters.LookedUp.Add(int64(len(keys)))
	s.counters.Found.Add(int64(n))
	return n, nil
}

// scan looks for blocks, several at once. With prefix those behind a gap do not
// matter.
func (s *Store) scan(ctx context.Context, keys []kv.Key, prefix bool) ([]bool, error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.leave()
	// Its own memory: what hangs may come back when the caller has long gone.
	keys = append([]kv.Key(nil), keys...)
	answers := make([]bool, len(keys))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.closing, cancel)()
	var (
		began  = time.Now()
		gap    atomic.Int64
		wg     sync.WaitGroup
		mu     sync.Mutex
		failed error
	)
	gap.Store(int64(len(keys)))
	for begin := 0; begin < len(keys); begin += lookupChunk {
		chunk := keys[begin:min(begin+lookupChunk, len(keys))]
		var err error
		wg.Add(1)
		s.lookups.Go(workerpool.Job{
			Context: ctx,
			Run: func() {
				for i, key := range chunk {
					if prefix && int64(begin+i) > gap.Load() || ctx.Err() != nil {
						return
					}
					if answers[begin+i], err = s.has(key, began); err != nil {
						return
					}
					if !answers[begin+i] {
						lower(&gap, int64(begin+i))
					}
				}
			},
			Done: func(unfinished error) {
				defer wg.Done()
				if unfinished == nil {
					unfinished = err
				}
				if unfinished != nil {
					mu.Lock()
					defer mu.Unlock()
					failed = unfinished
				}
			},
		})
	}
	wg.Wait()
	if s.closing.Err() != nil {
		return nil, kv.ErrClosed
	}
	if failed == nil {
		failed = ctx.Err()
	}
	if failed == workerpool.ErrOverdue {
		failed = fmt.Errorf("%w: look for blocks in %s: %w", kv.ErrTimeout, s.o.Roots[0], failed)
	}
	return answers, failed
}

func lower(x *atomic.Int64, to int64) {
	for {
		now := x.Load()
		if now <= to || x.CompareAndSwap(now, to) {
			return
		}
	}
}

// has tells whether a block is there that Load would try, as of a time.
func (s *Store) has(key kv.Key, asOf time.Time) (bool, error) {
	var failed error // of a directory; the block may be in another one
	for r := range s.rootsOf(key) {
		path := s.path(r, key)
		st, err := status(unix.AT_FDCWD, path)
		switch {
		case err == nil && s.isBlock(st):
		case err == nil || gone(err):
			continue
		default:
			failed = &os.PathError{Op: "stat", Path: path, Err: err}
			continue
		}
		found, err := r.sums.Find(key, asOf)
		if err != nil {
			failed = err
			continue
		}
		if s.acceptable(found) {
			return true, nil
		}
	}
	return false, failed
}
