package blockfiles

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/sums"
	"github.com/kv3fs/kv3fs/kvstore/internal/workerpool"
)

// lookupChunk is how many keys one job of the pool looks up, one after the other.
const lookupChunk = 8

// Lookup looks for the file of every block.
func (s *Store) Lookup(ctx context.Context, keys []kv.Key, found []bool) error {
	if err := kv.CheckFound(keys, found); err != nil {
		return err
	}
	answers, err := s.scan(ctx, s.lookups, keys, func(_ int, key kv.Key, asOf time.Time) (bool, error) {
		return s.has(key, asOf)
	})
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

// LookupPrefix looks up blocks in order, and looks for packs where one has no file of its
// own.
func (s *Store) LookupPrefix(ctx context.Context, keys []kv.Key) (int, error) {
	keys = slices.Clone(keys)
	n := 0
	for more := -1; more != 0 && n < len(keys); {
		files, err := s.prefix(ctx, keys[n:])
		if err != nil {
			return 0, err
		}
		n += files
		if more, err = s.findPacks(ctx, keys[n:]); err != nil {
			return 0, err
		}
		n += more
	}
	if err := s.group.Err(); err != nil {
		return 0, err
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	s.counters.LookedUp.Add(int64(len(keys)))
	s.counters.Found.Add(int64(n))
	return n, nil
}

// prefix returns how many of the first blocks are there, and looks up several at once. It
// looks up none behind the first that is missing, except for those that were being looked up
// at the same time.
func (s *Store) prefix(ctx context.Context, keys []kv.Key) (int, error) {
	var gap atomic.Int64 // the first key that is known to be missing
	gap.Store(int64(len(keys)))
	answers, err := s.scan(ctx, s.lookups, keys, func(i int, key kv.Key, asOf time.Time) (bool, error) {
		if int64(i) > gap.Load() {
			return false, nil
		}
		there, err := s.has(key, asOf)
		if err == nil && !there {
			lower(&gap, int64(i))
		}
		return there, err
	})
	if err != nil {
		return 0, err
	}
	n := 0
	for n < len(answers) && answers[n] {
		n++
	}
	return n, nil
}

// scan calls query for every key, several at once in the pool, and returns the answers.
// asOf is when it began.
func (s *Store) scan(ctx context.Context, pool *workerpool.Pool, keys []kv.Key, query func(i int, key kv.Key, asOf time.Time) (bool, error)) ([]bool, error) {
	if err := s.group.Enter(); err != nil {
		return nil, err
	}
	defer s.group.Leave()
	// A call that hangs may return long after the caller has left, so it has memory of
	// its own.
	keys = slices.Clone(keys)
	answers := make([]bool, len(keys))
	ctx, cancel := s.group.With(ctx)
	defer cancel()
	var (
		asOf   = time.Now()
		wg     sync.WaitGroup
		mu     sync.Mutex
		failed error
	)
	for begin := 0; begin < len(keys); begin += lookupChunk {
		chunk := keys[begin:min(begin+lookupChunk, len(keys))]
		var err error
		wg.Add(1)
		pool.Go(workerpool.Job{
			Context: ctx,
			Run: func() {
				for i, key := range chunk {
					if ctx.Err() != nil {
						return
					}
					if answers[begin+i], err = query(begin+i, key, asOf); err != nil {
						return
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
	if err := s.group.Err(); err != nil {
		return nil, err
	}
	if failed == nil {
		failed = ctx.Err()
	}
	return answers, s.overdue(failed)
}

// overdue makes a call that did not return in time a kv.ErrTimeout.
func (s *Store) overdue(err error) error {
	if err == workerpool.ErrOverdue || errors.Is(err, unix.ETIMEDOUT) && !errors.Is(err, kv.ErrTimeout) {
		return fmt.Errorf("%w: blocks in %s: %w", kv.ErrTimeout, s.o.Roots[0], err)
	}
	return err
}

func lower(x *atomic.Int64, to int64) {
	for {
		now := x.Load()
		if now <= to || x.CompareAndSwap(now, to) {
			return
		}
	}
}

// has reports whether a block is there that Load would try. asOf is when the caller
// began to look.
func (s *Store) has(key kv.Key, asOf time.Time) (bool, error) {
	there, err := s.any(key, asOf, func(at sighting) (bool, error) { return s.isLoadable(key, at) })
	if there || err != nil {
		return there, err
	}
	return s.hasPacked(key)
}

// sighting is a file that has the place, the type and the size of a block.
type sighting struct {
	root  *root
	place Place
	path  string
	st    unix.Statx_t
	found sums.Finding
}

// isLoadable reports whether Load would try a file.
func (s *Store) isLoadable(key kv.Key, at sighting) (bool, error) {
	if !s.acceptable(at.root, at.found, at.st.Mode) || s.unreadable.has(key, at.st.Ino) {
		return false, nil
	}
	if len(at.found.Sums) > 0 {
		return true, nil
	}
	finished, err := s.isFinishedAt(at.root, key, at.place, at.path)
	if err != nil && s.unreadable.opened(key, at.st.Ino, err) {
		return false, nil
	}
	return finished, err
}

// any reports whether a file has the type and the size of a block, and is wanted.
func (s *Store) any(key kv.Key, asOf time.Time, wanted func(sighting) (bool, error)) (bool, error) {
	var failed error // in one place; the block may be in another
	for r, place := range s.spotsOf(key) {
		path, st, there, err := isThere(r, place)
		if err != nil {
			failed = err
		}
		if !there || r.lacksSide(place) {
			continue
		}
		found, err := r.sums.Find(key, asOf)
		if err != nil {
			failed = err
			continue
		}
		switch is, err := wanted(sighting{r, place, path, st, found}); {
		case err != nil:
			failed = err
		case is:
			return true, nil
		}
	}
	return false, failed
}

// isThere reports whether a file in the place of a block has its type and size, and
// returns the place and its attributes.
func isThere(r *root, place Place) (path string, st unix.Statx_t, there bool, err error) {
	path, st, err = find(r, place)
	switch {
	case gone(err):
		return path, st, false, nil
	case err != nil:
		return path, st, false, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return path, st, isBlock(st, place), nil
}
