package blockfiles

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/assembly"
	"github.com/kv3fs/kv3fs/kvstore/internal/batch"
	"github.com/kv3fs/kv3fs/kvstore/internal/blockhead"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/sums"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
	"github.com/kv3fs/kv3fs/kvstore/internal/workerpool"
)

// Store is a kv.Store that registers memory, deletes blocks and lists them.
type Store struct {
	o      Options
	roots  []*root
	engine transfer.Engine

	lookups *workerpool.Pool
	opens   *workerpool.Pool // all other calls but moving bytes
	compute *workerpool.Pool // checksums

	handles    *handles
	reads      *places // for the blocks that loads have open
	drafts     drafts
	unreadable unreadable
	stale      time.Duration // for how long an open that answers ESTALE is tried again
	packs      packs
	leftovers  leftovers
	unfinished *assembly.Table[*temporary]
	committing sync.Map                 // keys whose blocks are recorded and not yet visible
	young      atomic.Pointer[sync.Map] // keys that were in committing at any time since a compaction began
	writer     string                   // in the names of temporary files
	written    atomic.Int64
	counters   kv.Counters
	group      *batch.Group
	limits     [2]*batch.Limit // by batch.Method: loads do not wait until dumps have ended

	close  func() error
	upkeep chan struct{} // closed when maintain has ended
}

var (
	_ kv.Store     = (*Store)(nil)
	_ kv.Registrar = (*Store)(nil)
)

// root is a directory with blocks.
type root struct {
	dir  string
	sums *sums.Logs
}

// Open opens the store. On an error the caller must close the engine.
func Open(o Options) (*Store, error) {
	if err := o.fillDefaults(); err != nil {
		return nil, err
	}
	s := &Store{
		o:       o,
		stale:   min(staleTime, o.Timeout/2),
		engine:  o.Engine,
		handles: newHandles(min(o.OpenFiles, o.Places)),
		reads:   newPlaces(o.Places, o.Timeout),
		drafts:  drafts{places: newPlaces(o.Places, o.Timeout)},
		writer:  fmt.Sprintf("%08x", rand.Uint32()),
		limits: [2]*batch.Limit{
			batch.Load: batch.LimitShards(o.RunningQueueDepth),
			batch.Save: batch.LimitShards(o.RunningQueueDepth),
		},
		upkeep: make(chan struct{}),
	}
	s.unfinished = assembly.New[*temporary](o.Layout.Shards(), func(shard kv.Shard) uint64 { return blockhead.Sum(shard.Buf) })
	s.group = batch.NewGroup(o.Layout, &s.counters, o.Timeout)
	if o.Device != nil {
		s.group.TakeMemoryOf(o.Device)
	}
	if err := s.openRoots(); err != nil {
		return nil, err
	}
	growDescriptors(o.Places)
	s.lookups, s.opens = workerpool.New(o.Lookups, o.Timeout), workerpool.New(o.Opens, o.Timeout)
	s.compute = workerpool.New(runtime.GOMAXPROCS(0), 0)
	s.close = sync.OnceValue(s.shutdown)
	go s.maintain()
	return s, nil
}

// openRoots makes the directories of the roots and opens their logs, in the time that the options
// give.
func (s *Store) openRoots() error {
	shape := sums.Shape{Namespace: s.o.Namespace, BlockBytes: s.o.Layout.BlockBytes, Shards: s.o.Layout.Shards()}
	var roots []*root
	closeAll := func() {
		for _, r := range roots {
			_ = r.sums.Close()
		}
	}
	err := Bounded(s.o.Timeout, s.o.Roots, func() error {
		for _, dir := range s.o.Roots {
			err := makeDirs(dir, s.o.TempDir, quarantineDir)
			var logs *sums.Logs
			if err == nil {
				logs, err = sums.OpenIn(filepath.Join(dir, s.o.SumsDir), shape)
			}
			if err != nil {
				closeAll()
				return unusable(dir, err)
			}
			roots = append(roots, &root{dir: dir, sums: logs})
		}
		return nil
	}, closeAll)
	if err == nil {
		s.roots = roots
	}
	return err
}

// Bounded runs a call to the file systems of directories that may hang, and waits for it no longer
// than the timeout. late is called if it returns nil after that.
func Bounded(timeout time.Duration, dirs []string, do func() error, late func()) error {
	done, expired := make(chan error), make(chan struct{})
	go func() {
		err := do()
		select {
		case done <- err:
		case <-expired:
			if err == nil {
				late()
			}
		}
	}()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		close(expired)
		return fmt.Errorf("kvstore: open %s: %w after %v: the file system does not answer; check its mount and its server", strings.Join(dirs, ", "), kv.ErrTimeout, timeout)
	}
}

// Layout returns the size of all blocks.
func (s *Store) Layout() kv.Layout { return s.o.Layout }

// Prefetch does nothing: there is no memory here to fetch into.
func (s *Store) Prefetch([]kv.Key) {}

// Flush has nothing to wait for: the last shard of a block is settled when the block is in
// its place, or with the error that says that it is not.
func (s *Store) Flush(ctx context.Context) error {
	if err := s.group.Err(); err != nil {
		return err
	}
	return ctx.Err()
}

// Stats returns what was counted so far.
func (s *Store) Stats() kv.Stats {
	stats := s.counters.Stats(s.o.Name)
	if s.o.Device != nil {
		stats.DeviceCopies, stats.DeviceTransfers = s.o.DeviceCopies(), s.o.DeviceTransfers()
	}
	return stats
}

// Register registers memory with the engine.
func (s *Store) Register(name string, mem []byte) error { return s.engine.Register(name, mem) }

// placesOf returns the places where a block may be, first the one it is written to, whatever
// its root.
func (s *Store) placesOf(key kv.Key) ([]Place, error) {
	if g, ok := s.o.Format.(Generations); ok {
		return g.Places(key)
	}
	place, err := s.o.Format.Place(key)
	if err != nil {
		return nil, err
	}
	return []Place{place}, nil
}

// spotsOf yields the places of a block in each root, first the one it is written to, and none
// for a key that can have no block.
func (s *Store) spotsOf(key kv.Key) iter.Seq2[*root, Place] {
	return func(yield func(*root, Place) bool) {
		places, err := s.placesOf(key)
		if err != nil {
			return
		}
		first := s.o.Format.Root(key, len(s.roots))
		for i := range s.roots {
			for _, place := range places {
				if !yield(s.roots[(first+i)%len(s.roots)], place) {
					return
				}
			}
		}
	}
}

// placeOf returns the place of a key. For one that can have no block it is the root itself,
// which is no file.
func (s *Store) placeOf(key kv.Key) Place {
	place, err := s.o.Format.Place(key)
	if err != nil {
		return Place{Dir: ".", Bytes: -1}
	}
	return place
}

func (r *root) in(p Place) string { return filepath.Join(r.dir, p.Dir, p.Name) }

// path returns where a block is.
func (s *Store) path(r *root, key kv.Key) string { return r.in(s.placeOf(key)) }

// Close ends what is under way, drops what is unfinished and closes everything.
func (s *Store) Close() error { return s.close() }

func (s *Store) shutdown() error {
	s.group.Close() // the wait for each shard is bounded
	var errs []error
	select {
	case <-s.upkeep:
	case <-time.After(s.o.Timeout):
		errs = append(errs, fmt.Errorf("kvstore: close: tidying up %s has not ended: %w", s.o.Roots[0], kv.ErrTimeout))
	}
	s.dropUnfinished(0)
	for _, h := range s.handles.close() {
		s.closeFile(h.file)
	}
	errs = append(errs, within(context.Background(), s.opens, s.closeLogs))
	errs = append(errs, s.lookups.Close(), s.opens.Close(), s.engine.Close(), s.compute.Close())
	return errors.Join(errs...)
}

func (s *Store) closeLogs() error {
	var errs []error
	for _, r := range s.roots {
		errs = append(errs, r.sums.Close())
	}
	return errors.Join(errs...)
}

// within runs a call that may hang in a pool and waits for it no longer than the
// pool's time. After an error the call may still be running.
func within(ctx context.Context, pool *workerpool.Pool, do func() error) error {
	result := make(chan error, 1)
	var err error
	pool.Go(workerpool.Job{
		Context: ctx,
		Run:     func() { err = do() },
		Done: func(failed error) {
			if failed == nil {
				failed = err
			}
			result <- failed
		},
	})
	return <-result
}

// closeFile closes a file without waiting for it. While the file system hangs, the file
// stays open.
func (s *Store) closeFile(f transfer.File) {
	s.opens.Go(workerpool.Job{Run: func() { _ = f.Close() }})
}
