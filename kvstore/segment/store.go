package segment

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/kvstore/internal/assembly"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
	"github.com/kv3fs/kv3fs/kvstore/internal/workerpool"
	"github.com/kv3fs/kv3fs/kvstore/kv"
)

// Store is a kv.Store.
type Store struct {
	o      Options
	geo    geometry
	dir    *directory
	engine transfer.Engine
	log    *slog.Logger
	count  kv.Counters

	heads      *heads
	calls      *workerpool.Pool
	work       *workers
	unfinished *assembly.Table[place]

	// closing ends when Close begins: batches are cancelled, the store's own goroutines
	// return.
	closing context.Context
	stop    context.CancelFunc
	tasks   sync.WaitGroup // what Close waits for: batches that are not done, above all
	owned   sync.WaitGroup // keeper and sealer
	once    sync.Once
	closed  error // of Close

	keeperWanted chan struct{}
	sealerWanted chan struct{}

	clock atomic.Uint32 // ticks at every block that is loaded

	// mu is held for memory only, never for a system call.
	mu         sync.RWMutex
	isClosed   bool
	table      *table
	generation uint64 // the latest
	segments   []*segment
	active     *segment
	ready      []*segment
	free       []*segment
	full       []*segment    // those filled first are recycled first
	isReady    chan struct{} // closed and replaced when a segment becomes ready
	trouble    error         // of the last segment that could not be begun
	failures   int           // segments that could not be written to, since the last block was
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
// the file system has no room for the capacity.
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
		unfinished:   assembly.New[place](o.Layout.Shards()),
		keeperWanted: make(chan struct{}, 1),
		sealerWanted: make(chan struct{}, 1),
		isReady:      make(chan struct{}),
	}
	s.closing, s.stop = context.WithCancel(context.Background())
	if err := s.open(); err != nil {
		return nil, errors.Join(err, s.letGo())
	}
	s.work = newWorkers(min(maxWorkers, runtime.GOMAXPROCS(0)))
	s.owned.Go(s.keep)
	s.owned.Go(s.sealAll)
	poke(s.sealerWanted) // for what the last process has left
	return s, nil
}

// letGo releases what open has taken. Files go before the engine, the memory that the
// engine may use after it. Its error says what never came back.
func (s *Store) letGo() error {
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
	if s.heads != nil {
		s.heads.close()
	}
	if s.dir != nil {
		errs = append(errs, s.dir.close())
	}
	return errors.Join(errs...)
}

// Close is kv.Store's. Segments that were written to get an index, so that the next
// Open need not read heads.
func (s *Store) Close() error {
	s.once.Do(func() {
		s.mu.Lock()
		s.isClosed = true
		s.mu.Unlock()
		s.stop()
		s.tasks.Wait()
		s.owned.Wait()
		s.drop(s.unfinished.Expire(0))
		s.work.close()
		var all sync.WaitGroup
		for _, seg := range s.segments {
			all.Go(func() { s.sealAtClose(seg) })
		}
		all.Wait()
		s.closed = s.letGo()
	})
	return s.closed
}

// Layout is kv.Store's.
func (s *Store) Layout() kv.Layout { return s.o.Layout }

// Lookup is kv.Store's. It looks into memory alone.
func (s *Store) Lookup(ctx context.Context, keys []kv.Key, found []bool) error {
	if err := kv.CheckFound(keys, found); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.isClosed {
		return kv.ErrClosed
	}
	n := 0
	for i, key := range keys {
		if _, found[i] = s.table.find(key); found[i] {
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
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.isClosed {
		return 0, kv.ErrClosed
	}
	n := 0
	for n < len(keys) {
		if _, ok := s.table.find(keys[n]); !ok {
			break
		}
		n++
	}
	s.count.LookedUp.Add(int64(min(n+1, len(keys))))
	s.count.Found.Add(int64(n))
	return n, nil
}

// Prefetch does nothing: the index is in memory, and blocks of the size of a layer's or
// more are read at the device's speed without being announced.
func (s *Store) Prefetch([]kv.Key) {}

// Flush is kv.Store's. There is nothing to wait for: a dump is settled when the kernel
// has its data and then its head, which a kill -9 does not take back.
func (s *Store) Flush(ctx context.Context) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.isClosed {
		return kv.ErrClosed
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
	s.mu.RLock()
	if s.isClosed {
		s.mu.RUnlock()
		return kv.ErrClosed
	}
	s.tasks.Add(1) // Close waits for it
	s.mu.RUnlock()
	defer s.tasks.Done()
	return s.engine.Register(name, mem)
}

// explain turns what the engine said into what a caller is told.
func (s *Store) explain(err error, seg *segment) error {
	switch {
	case errors.Is(err, context.Canceled) && s.closing.Err() != nil:
		return kv.ErrClosed
	case isOurs(err):
		return err
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return fmt.Errorf("%w: %s: %w", kv.ErrFull, seg.file.Name(), err)
	}
	return fmt.Errorf("segment store: %s: %w", seg.file.Name(), err)
}

// isOurs says whether an error is not the storage's.
func isOurs(err error) bool {
	for _, known := range []error{context.Canceled, context.DeadlineExceeded, kv.ErrTimeout, kv.ErrClosed} {
		if errors.Is(err, known) {
			return true
		}
	}
	return false
}
