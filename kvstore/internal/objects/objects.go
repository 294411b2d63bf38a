// Package objects keeps each block as one object of a backend that a program brings: a
// service, a data base, another library. The backend moves bytes and knows nothing of
// blocks. This package adds what the contract of stores requires: identity and checksums
// in front of each block, shards that come in several batches, writers that differ,
// bounded waits, and damage that is a miss.
//
// An object is a record of package blockhead, then the block. Its name is the fingerprint
// of the namespace and the key, both in hexadecimal, with a slash between them.
package objects

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"sync"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/assembly"
	"github.com/kv3fs/kv3fs/kvstore/internal/batch"
	"github.com/kv3fs/kv3fs/kvstore/internal/blockhead"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/workerpool"
)

// Backend is kvstore.Backend, which has its contract.
type Backend interface {
	Has(ctx context.Context, names []string, found []bool) error
	Get(ctx context.Context, name string, off int64, buf []byte) error
	Put(ctx context.Context, name string, object []byte) error
	Delete(ctx context.Context, names []string) error
	List(ctx context.Context, prefix string) iter.Seq2[string, error]
	Close() error
}

// Options are the options of New. Timeout is required; of the rest, what is zero has its
// default.
type Options struct {
	Name      string // of the store, in statistics and errors
	Layout    kv.Layout
	Namespace kv.Fingerprint

	// Calls is how many calls of the backend run at once; 32.
	Calls int

	// UnfinishedBytes bounds the objects of blocks that are being saved, which are in memory
	// until the backend has them, but one block is always let in; 1 GiB.
	UnfinishedBytes int64

	// Timeout bounds each call of the backend.
	Timeout time.Duration

	Checksums kv.Checksums
}

const (
	defaultCalls           = 32
	defaultUnfinishedBytes = 1 << 30

	// mostShards is how many shards are under way before Load and Save wait.
	mostShards = 32768

	// mostNames is how many names a call of the backend gets.
	mostNames = 1024
)

// Store is a kv.Store.
type Store struct {
	o       Options
	backend Backend
	prefix  string

	count  kv.Counters
	group  *batch.Group
	limit  *batch.Limit
	pool   *workerpool.Pool
	blocks *assembly.Table[[]byte] // unfinished blocks, each with its object
	room   *batch.Limit            // for their objects

	closeOnce sync.Once
	closeErr  error
}

var _ kv.Store = (*Store)(nil)

// New returns a store over a backend, which it closes.
func New(b Backend, o Options) *Store {
	if o.Calls == 0 {
		o.Calls = defaultCalls
	}
	if o.UnfinishedBytes == 0 {
		o.UnfinishedBytes = defaultUnfinishedBytes
	}
	s := &Store{o: o, backend: b, prefix: o.Namespace.String() + "/", limit: batch.LimitShards(mostShards), pool: workerpool.New(o.Calls, o.Timeout)}
	s.room = batch.LimitBatches(s.mostUnfinished())
	s.group = batch.NewGroup(o.Layout, &s.count, o.Timeout)
	s.blocks = assembly.New[[]byte](o.Layout.Shards(), func(shard kv.Shard) uint64 { return blockhead.Sum(shard.Buf) })
	return s
}

// objectBytes is the size of a block's object.
func (s *Store) objectBytes() int64 { return blockhead.Size + s.o.Layout.BlockBytes }

// mostUnfinished is how many blocks may be unfinished at once.
func (s *Store) mostUnfinished() int { return int(max(s.o.UnfinishedBytes/s.objectBytes(), 1)) }

func (s *Store) name(key kv.Key) string { return s.prefix + key.String() }

func (s *Store) names(keys []kv.Key) []string {
	all := make([]string, len(keys))
	for i, key := range keys {
		all[i] = s.name(key)
	}
	return all
}

// call runs one call of the backend in the pool and waits for it. After an overdue one the
// backend may still use what it was given. A panic is an error.
func (s *Store) call(ctx context.Context, what string, do func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // an overdue call should give up
	var failed error
	done := make(chan error, 1)
	s.pool.Go(workerpool.Job{
		Context: ctx,
		Run:     func() { failed = guard(func() error { return do(ctx) }) },
		Done:    func(err error) { done <- err },
	})
	err := <-done
	if err == nil {
		err = failed
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return kv.ErrMiss
	case err == kv.ErrMiss, err == kv.ErrClosed, err == ctx.Err():
		return err
	}
	return fmt.Errorf("store %s: %s: %w", s.o.Name, what, err)
}

// guard turns a panic of the backend into an error.
func guard(do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return do()
}

// enter begins a call that is not a batch. Its context also ends with Close.
func (s *Store) enter(ctx context.Context) (_ context.Context, leave func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	if err := s.group.Enter(); err != nil {
		return nil, nil, err
	}
	inner, done := s.group.With(ctx)
	return inner, func() {
		done()
		s.group.Leave()
	}, nil
}

// Layout implements kv.Store.
func (s *Store) Layout() kv.Layout { return s.o.Layout }

// Prefetch does nothing: a backend takes no hints.
func (s *Store) Prefetch([]kv.Key) {}

// Lookup implements kv.Store.
func (s *Store) Lookup(ctx context.Context, keys []kv.Key, found []bool) error {
	if err := kv.CheckFound(keys, found); err != nil {
		return err
	}
	ctx, leave, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	for at := 0; at < len(keys); at += mostNames {
		some := keys[at:min(at+mostNames, len(keys))]
		there, err := s.has(ctx, some)
		if err != nil {
			return s.group.Explain(err)
		}
		copy(found[at:], there)
	}
	s.lookedUp(len(keys), found)
	return nil
}

// LookupPrefix implements kv.Store.
func (s *Store) LookupPrefix(ctx context.Context, keys []kv.Key) (int, error) {
	ctx, leave, err := s.enter(ctx)
	if err != nil {
		return 0, err
	}
	defer leave()
	n := 0
	for at := 0; at < len(keys) && n == at; at += mostNames {
		there, err := s.has(ctx, keys[at:min(at+mostNames, len(keys))])
		if err != nil {
			return 0, s.group.Explain(err)
		}
		for _, is := range there {
			if !is {
				break
			}
			n++
		}
	}
	s.count.LookedUp.Add(int64(len(keys)))
	s.count.Found.Add(int64(n))
	return n, nil
}

func (s *Store) lookedUp(keys int, found []bool) {
	s.count.LookedUp.Add(int64(keys))
	for _, is := range found {
		if is {
			s.count.Found.Add(1)
		}
	}
}

// has asks the backend about keys. The slices that it gives away are its own.
func (s *Store) has(ctx context.Context, keys []kv.Key) ([]bool, error) {
	names, found := s.names(keys), make([]bool, len(keys))
	err := s.call(ctx, "Has", func(ctx context.Context) error { return s.backend.Has(ctx, names, found) })
	if err != nil {
		return nil, err
	}
	return found, nil
}

// Delete implements kv.Store.
func (s *Store) Delete(ctx context.Context, keys []kv.Key) error {
	ctx, leave, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	for at := 0; at < len(keys); at += mostNames {
		if err := s.remove(ctx, s.names(keys[at:min(at+mostNames, len(keys))])); err != nil {
			return s.group.Explain(err)
		}
	}
	return nil
}

func (s *Store) remove(ctx context.Context, names []string) error {
	return s.call(ctx, "Delete", func(ctx context.Context) error { return s.backend.Delete(ctx, names) })
}

// Flush has nothing to wait for: a save is done when the backend has the object.
func (s *Store) Flush(ctx context.Context) error {
	_, leave, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	s.expire()
	return nil
}

// expire drops blocks whose shards have stopped coming.
func (s *Store) expire() {
	for _, b := range s.blocks.Expire(s.o.Timeout) {
		s.drop(b)
	}
}

func (s *Store) drop(b *assembly.Block[[]byte]) {
	s.blocks.Finish(b)
	s.room.Give()
	s.count.DroppedBlocks.Add(1)
}

// Stats implements kv.Store.
func (s *Store) Stats() kv.Stats { return s.count.Stats(s.o.Name) }

// Close implements kv.Store. A backend that still has not returned from a call is not
// closed: it may use a buffer.
func (s *Store) Close() error {
	s.closeOnce.Do(func() {
		s.group.Close()
		if err := s.pool.Close(); err != nil {
			s.closeErr = fmt.Errorf("store %s: %w: %w", s.o.Name, kv.Abandoned("a call of the backend has not returned"), err)
			return
		}
		if err := guard(s.backend.Close); err != nil {
			s.closeErr = fmt.Errorf("store %s: Close: %w", s.o.Name, err)
		}
	})
	return s.closeErr
}
