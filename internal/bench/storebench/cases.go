package storebench

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/bench/measure"
	"github.com/kv3fs/kv3fs/kvstore"
)

// Ways to the blocks, as reports name them.
const (
	WayRing          = "ring"
	WayDs3fs         = "Ds3fs"
	WayChain         = "Cache|Ds3fs"
	WayChainNoSums   = "Cache|Ds3fs unchecked"
	WayChainOpening  = "Cache|Ds3fs, files not open"
	WayPlainOpening  = "plain threads that open in the mount"
	WayUCM           = "UCM's way"
	WayUCMNoSums     = "UCM's way unchecked" // by a daemon without checksums
	WayLimited       = "UCM's way, capacity" // of a daemon with --capacity
	WayLimitedNoSums = "UCM's way, capacity, unchecked"
	WayPlain         = "plain threads"
	WayCopy          = "memory copy"
	WaySegment       = "Segment"
	WaySegmentNoSums = "Segment unchecked"
	WayCache         = "Cache"
)

// openRing opens a chain with Ds3fs, which keeps openFiles files open between loads.
func (b *bench) openRing(chain string, sums kvstore.Checksums, openFiles int, cache *kvstore.CacheOptions) (*kvstore.Store, error) {
	return kvstore.Open(chain, kvstore.Config{
		Namespace: namespace(), Layout: b.o.layout(), Checksums: sums, Cache: cache,
		Ds3fs: &kvstore.Ds3fsOptions{
			Mount: b.daemon.Mount, Rings: 1, OpenFiles: openFiles, RingOptions: kvstore.RingOptions{RingEntries: b.o.Depth},
		},
	})
}

// cacheStreams returns the number of copiers, which is that of the memory copy's threads.
func cacheStreams() int { return min(4, runtime.NumCPU()) }

// allFiles returns the number of blocks in all sets.
func (b *bench) allFiles() int { return 2 * b.o.Blocks }

// openChain opens a cache with space for one load in front of Ds3fs. fromNext returns how
// many of the loads must have come from Ds3fs.
func (b *bench) openChain(sums kvstore.Checksums, openFiles int, fromNext func(loads int) int) (*way, error) {
	s, err := b.openRing("Cache|Ds3fs", sums, openFiles, &kvstore.CacheOptions{CapacityBytes: b.o.loadBytes(), Copiers: cacheStreams()})
	if err != nil {
		return nil, err
	}
	w := wayOf(s, b.bufs)
	w.verify = func(loads int) error {
		behind := *s.Stats().Next
		got, want := behind.LoadedShards, int64(fromNext(loads)*b.o.Blocks)*int64(b.o.layout().Shards())
		if got != want {
			return fmt.Errorf("%d shards came from behind the cache, and %d should have", got, want)
		}
		return allHaveSums(behind)
	}
	return w, nil
}

// allHaveSums returns an error if blocks had no checksum, whose cost is to be measured.
func allHaveSums(s kvstore.Stats) error {
	if s.UnverifiedShards > 0 {
		return fmt.Errorf("of %d shards no checksum was found", s.UnverifiedShards)
	}
	return nil
}

// openAlone opens Ds3fs with registered memory of its own, as a cache has.
func (b *bench) openAlone(context.Context) (_ *way, err error) {
	s, err := b.openRing("Ds3fs", kvstore.ChecksumsAuto, b.allFiles(), nil)
	if err != nil {
		return nil, err
	}
	bufs, err := newBuffers(b.o.Blocks, b.o.BlockBytes)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	w := wayOf(s, bufs)
	w.verify = func(int) error { return allHaveSums(s.Stats()) }
	w.close = func() error { return errors.Join(s.Close(), bufs.close()) }
	if err := s.Register(bufs.mem.Name(), bufs.mem.Bytes()); err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

// cold measures loads of blocks that are not in memory: a cache with space for one of two
// sets never has the other.
func (b *bench) cold(ctx context.Context, rep *Report) (err error) {
	if err := b.store(ctx); err != nil {
		return err
	}
	chain := func(sums kvstore.Checksums, openFiles int) func(context.Context) (*way, error) {
		every := func(loads int) int { return loads }
		return func(context.Context) (*way, error) { return b.openChain(sums, openFiles, every) }
	}
	all := []*contender{
		{name: WayRing, open: func(ctx context.Context) (*way, error) { return openPlainRing(ctx, b.daemon.Mount, b.sets, b.o.Depth) }},
		{name: WayChain, open: chain(kvstore.ChecksumsAuto, b.allFiles())},
		{name: WayChainNoSums, open: chain(kvstore.ChecksumsOff, b.allFiles())},
		{name: WayDs3fs, open: b.openAlone},
		{name: WayChainOpening, open: chain(kvstore.ChecksumsAuto, 1)},
	}
	if b.o.direct() {
		for _, x := range all {
			x.before = func() error { return dropCaches(b.daemon.Data) }
		}
	}
	rep.Cold, err = b.turns(ctx, all, b.sets)
	return err
}

// store saves both sets where Ds3fs keeps blocks.
func (b *bench) store(ctx context.Context) (err error) {
	s, err := b.openRing("Ds3fs", kvstore.ChecksumsAuto, b.allFiles(), nil)
	if err != nil {
		return err
	}
	for _, set := range b.sets {
		set.fill(b.bufs.parts)
		if err := set.saveInto(ctx, s, b.bufs.parts); err != nil {
			return errors.Join(err, s.Close())
		}
	}
	return s.Close()
}

// dropCaches drops the files below dir from the page cache.
func dropCaches(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		f, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a store that is being opened tries its directory with a file
		}
		if err != nil {
			return err
		}
		defer f.Close()
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			return err
		}
		return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	})
}

// warm measures loads of blocks that are in the cache.
func (b *bench) warm(ctx context.Context, rep *Report) (err error) {
	first := func(int) int { return 1 }
	rep.Warm, err = b.turns(ctx, []*contender{
		{name: WayCopy, open: func(context.Context) (*way, error) { return openCopy(b.sets[0], b.bufs, cacheStreams()) }},
		{name: WayChain, open: func(context.Context) (*way, error) { return b.openChain(kvstore.ChecksumsAuto, b.allFiles(), first) }},
		{name: WayChainNoSums, open: func(context.Context) (*way, error) { return b.openChain(kvstore.ChecksumsOff, b.allFiles(), first) }},
	}, b.sets[:1])
	return err
}

// segments measures loads from segments, with and without checksums.
func (b *bench) segments(ctx context.Context, rep *Report) error {
	open := func(sums kvstore.Checksums) (*kvstore.Store, error) {
		return b.openSegment("segments", b.o.layout(), 2*b.o.loadBytes(), sums)
	}
	s, err := open(kvstore.ChecksumsAuto)
	if err != nil {
		return err
	}
	b.sets[0].fill(b.bufs.parts)
	if err := errors.Join(b.sets[0].saveInto(ctx, s, b.bufs.parts), s.Close()); err != nil {
		return err
	}
	as := func(name string, sums kvstore.Checksums) *contender {
		return &contender{name: name, open: func(context.Context) (*way, error) {
			s, err := open(sums)
			if err != nil {
				return nil, err
			}
			return wayOf(s, b.bufs), nil
		}}
	}
	rep.Segment, err = b.turns(ctx, []*contender{as(WaySegment, kvstore.ChecksumsAuto), as(WaySegmentNoSums, kvstore.ChecksumsOff)}, b.sets[:1])
	return err
}

func (b *bench) openSegment(name string, l kvstore.Layout, capacityBytes int64, sums kvstore.Checksums) (*kvstore.Store, error) {
	return kvstore.Open("Segment", kvstore.Config{
		Namespace: namespace(), Layout: l, Checksums: sums,
		Segment: &kvstore.SegmentOptions{
			// Beside the daemon's data: on the same disk, and removed with it.
			Dir:           filepath.Join(filepath.Dir(b.daemon.Data), name),
			CapacityBytes: capacityBytes + 64<<20, DirectIO: b.o.direct(),
		},
	})
}

// lookups measures how long lookups take.
func (b *bench) lookups(ctx context.Context, rep *Report) (err error) {
	l := kvstore.Layout{BlockBytes: alignment, ShardBytes: alignment}
	index := blocksOf(3, b.o.IndexBlocks, l)
	indexBytes := int64(b.o.IndexBlocks) * l.BlockBytes
	inCache, err := kvstore.Open("Cache|Empty", kvstore.Config{
		Namespace: namespace(), Layout: l, Cache: &kvstore.CacheOptions{CapacityBytes: 2 * indexBytes},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, inCache.Close()) }()
	inSegments, err := b.openSegment("index", l, 4*indexBytes, kvstore.ChecksumsAuto)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, inSegments.Close()) }()
	all := []*queried{{name: WayCache, store: inCache}, {name: WaySegment, store: inSegments}}
	for _, a := range all {
		if err := a.fill(ctx, index); err != nil {
			return err
		}
	}
	p50, p99 := map[string][]float64{}, map[string][]float64{}
	err = measure.Turns(ctx, b.o.rounds(), all, func(ctx context.Context, a *queried, turn measure.Turn) error {
		half, most, err := a.sample(ctx, index, b.o.Keys, turn.Time, turn.Round)
		if err == nil && turn.Counts() {
			p50[a.name], p99[a.name] = append(p50[a.name], half), append(p99[a.name], most)
			b.progress.Step()
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, a := range all {
		rep.Lookups = append(rep.Lookups, Lookup{Store: a.name, P50Ms: measure.SpreadOf(p50[a.name]), P99Ms: measure.SpreadOf(p99[a.name])})
	}
	return nil
}

// calls counts the system calls of a hit, if they can be traced.
func (b *bench) calls(ctx context.Context, rep *Report) error {
	c, err := countCalls(ctx, b.o.Binary, filepath.Dir(b.daemon.Data))
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		rep.CallsSkipped = err.Error()
		return nil
	}
	rep.Calls = c
	return nil
}
