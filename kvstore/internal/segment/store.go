package segment

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/assembly"
	"github.com/kv3fs/kv3fs/kvstore/internal/batch"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
	"github.com/kv3fs/kv3fs/kvstore/internal/workerpool"
)

// Store is a kv.Store.
type Store struct {
	o      Options
	geo    geometry
	dir    *directory
	engine transfer.Engine
	log    *slog.Logger
	count  kv.Counters

	heads      *heads // that are read
	newHeads   *heads // that are written: loads do not wait until there is room for these
	calls      *workerpool.Pool
	cpu        *workerpool.Pool // for what is too long for an engine's Done: checksums above all
	unfinished *assembly.Table[place]

	group *batch.Group
	owned sync.WaitGroup // keeper and sealer
	close func() error   // runs shutdown once

	keeperWanted chan struct{}
	sealerWanted chan struct{}
	reading      atomic.Int64 // blocks that are being read
	lastRead     atomic.Int64 // when reading last ended, unix nanoseconds

	places chan struct{} // a lock, see lockPlaces

	doubt atomic.Bool // whether trouble has a failure, or untested is set

	clock atomic.Uint32 // ticks at every block that is loaded

	// mu is held for memory only, never for a system call.
	mu         sync.RWMutex
	table      *table
	unreadable map[uint32]time.Time // slots of the table whose last read failed, and until when that counts
	generation uint64               // the latest
	segments   []*segment
	active     *segment
	ready      []*segment
	free       []*segment
	full       []*segment    // those filled first are recycled first
	isReady    chan struct{} // closed and replaced when a segment becomes ready
	trouble    trouble
	untested   *segment // the latest to become active, until something is written
	listings   []*listing
}

var (
	_ kv.Store     = (*Store)(nil)
	_ kv.Registrar = (*Store)(nil)
)

// Name is the store's in chains.
const Name = "Segment"

// maxWorkers is how many goroutines compute checksums at most: each does several
// gigabytes a second.
const maxWorkers = 8

// Open opens the store in a directory, or makes one. It fails with kv.ErrFull where
// the file system has no space for the capacity.
func Open(o Options) (*Store, error) {
	if err := o.complete(); err != nil {
		if o.Engine != nil {
			_ = o.Engine.Close()
		}
		return nil, err
	}
	s := &Store{
		o: o, engine: o.Engine, log: o.Logger,
		calls:        workerpool.New(callers, o.Timeout),
		unfinished:   assembly.New[place](o.Layout.Shards(), sumOf),
		keeperWanted: make(chan struct{}, 1),
		sealerWanted: make(chan struct{}, 1),
		isReady:      make(chan struct{}),
		unreadable:   map[uint32]time.Time{},
		places:       make(chan struct{}, 1),
	}
	s.group = batch.NewGroup(o.Layout, &s.count, o.Timeout)
	s.close = sync.OnceValue(s.shutdown)
	if err := s.open(); err != nil {
		return nil, errors.Join(err, s.releaseAll())
	}
	s.cpu = workerpool.New(min(maxWorkers, runtime.GOMAXPROCS(0)), 0)
	s.owned.Go(s.keep)
	s.owned.Go(s.sealAll)
	poke(s.sealerWanted) // for segments that the last process left unsealed
	return s, nil
}

// releaseAll releases what open has taken: files before the engine, and the memory that the
// engine may use after it. Its error says what never came back.
func (s *Store) releaseAll() error {
	var errs []error
	for _, seg := range s.segments {
		if seg.data != nil {
			errs = append(errs, seg.data.Close())
		}
		if seg.file != nil {
			errs = append(errs, seg.file.Close())
		}
	}
	errs = append(errs, s.calls.Close(), s.engine.Close())
	for _, h := range []*heads{s.heads, s.newHeads} {
		if h != nil {
			h.close()
		}
	}
	if s.dir != nil {
		errs = append(errs, s.dir.close())
	}
	return errors.Join(errs...)
}

// Close is kv.Store's. Segments that were written to get an index, so that the next
// Open need not read heads.
func (s *Store) Close() error {
	return s.close()
}

func (s *Store) shutdown() error {
	s.group.Close()
	s.owned.Wait()
	s.drop(s.unfinished.Expire(0))
	err := s.cpu.Close()
	var all sync.WaitGroup
	for _, seg := range s.segments {
		all.Go(func() { s.sealAtClose(seg) })
	}
	all.Wait()
	return errors.Join(err, s.releaseAll())
}

// compute queues work that keeps a processor busy for a while.
func (s *Store) compute(do func()) { s.cpu.Go(workerpool.Job{Run: do}) }

// computeBulk queues such work for a save, which that for loads overtakes.
func (s *Store) computeBulk(do func()) { s.cpu.Go(workerpool.Job{Bulk: 1, Run: do}) }

// Layout is kv.Store's.
func (s *Store) Layout() kv.Layout { return s.o.Layout }

// Lookup is kv.Store's. It uses the index in memory alone.
func (s *Store) Lookup(ctx context.Context, keys []kv.Key, found []bool) error {
	if err := kv.CheckFound(keys, found); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := s.group.Err(); err != nil {
		return err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	n := 0
	for i, key := range keys {
		if _, found[i] = s.foundLocked(key); found[i] {
			n++
		}
	}
	s.count.LookedUp.Add(int64(len(keys)))
	s.count.Found.Add(int64(n))
	return nil
}

// LookupPrefix is kv.Store's.
func (s *Store) LookupPrefix(ctx context.Context, keys []kv.Key) (int, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if err := s.group.Err(); err != nil {
		return 0, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	n := 0
	for n < len(keys) {
		if _, ok := s.foundLocked(keys[n]); !ok {
			break
		}
		n++
	}
	s.count.LookedUp.Add(int64(min(n+1, len(keys))))
	s.count.Found.Add(int64(n))
	return n, nil
}

// Prefetch does nothing: the index is in memory, and blocks are large enough to be read
// at the device's speed without a hint.
func (s *Store) Prefetch([]kv.Key) {}

// Flush is kv.Store's. There is nothing to wait for: a save is settled when the kernel
// has its data and then its head, which a kill -9 does not take back.
func (s *Store) Flush(ctx context.Context) error {
	if err := s.group.Err(); err != nil {
		return err
	}
	return ctx.Err()
}

// Stats is kv.Store's.
func (s *Store) Stats() kv.Stats {
	stats := s.count.Stats(Name)
	s.mu.RLock()
	defer s.mu.RUnlock()
	stats.Blocks = int64(s.table.count)
	stats.CapacityBytes = s.o.CapacityBytes
	return stats
}

// Register is kv.Registrar's.
func (s *Store) Register(name string, mem []byte) error {
	if err := s.group.Enter(); err != nil {
		return err
	}
	defer s.group.Leave()
	return s.engine.Register(name, mem)
}

// explain adds the name of the file to an error of the storage.
func (seg *segment) explain(err error) error {
	if isOurs(err) {
		return err
	}
	return fmt.Errorf("segment store: %s: %w", seg.file.Name(), err)
}

// isOurs reports whether an error is this package's or the caller's, not the storage's.
func isOurs(err error) bool {
	for _, known := range []error{context.Canceled, context.DeadlineExceeded, kv.ErrTimeout, kv.ErrClosed} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}
