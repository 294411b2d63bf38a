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

	"github.com/kv3fs/kv3fs/internal/measure"
	"github.com/kv3fs/kv3fs/kvstore/cache"
	"github.com/kv3fs/kv3fs/kvstore/empty"
	"github.com/kv3fs/kv3fs/kvstore/kv"
	"github.com/kv3fs/kv3fs/kvstore/ring"
	"github.com/kv3fs/kv3fs/kvstore/segment"
)

// Ways to the blocks, as reports name them.
const (
	WayRing          = "ring"
	WayDs3fs         = "Ds3fs"
	WayChain         = "Cache|Ds3fs"
	WayChainNoSums   = "Cache|Ds3fs unchecked"
	WayUCM           = "UCM's way"
	WayCopy          = "memory copy"
	WaySegment       = "Segment"
	WaySegmentNoSums = "Segment unchecked"
	WayCache         = "Cache"
)

func (b *bench) openRing(sums kv.Checksums) (*ring.Store, error) {
	return ring.Open(ring.Options{
		Mount: b.daemon.Mount, Layout: b.o.layout(), Namespace: namespace(), DirectIO: b.o.direct(), Checksums: sums,
		Streams: 1, Entries: b.o.Depth, OpenFiles: 2 * b.o.Blocks,
	})
}

// cacheStreams is as many copiers as the memory copy has threads.
func cacheStreams() int { return min(4, runtime.NumCPU()) }

// openChain puts a cache before Ds3fs.
func (b *bench) openChain(cacheBytes int64, sums kv.Checksums) (*cache.Store, error) {
	next, err := b.openRing(sums)
	if err != nil {
		return nil, err
	}
	s, err := cache.New(next, cache.Options{CapacityBytes: cacheBytes, Namespace: namespace(), Streams: cacheStreams(), Checksums: sums})
	if err != nil {
		return nil, errors.Join(err, next.Close())
	}
	return s, nil
}

// chains adds the chain with and without checking to a field.
func (b *bench) chains(f *field, cacheBytes int64) ([]*cache.Store, error) {
	var all []*cache.Store
	for _, sums := range []kv.Checksums{kv.ChecksumsAuto, kv.ChecksumsOff} {
		name := WayChain
		if sums == kv.ChecksumsOff {
			name = WayChainNoSums
		}
		s, err := b.openChain(cacheBytes, sums)
		if err != nil {
			return nil, err
		}
		f.add(ofStore(name, s, b.bufs), nil)
		all = append(all, s)
	}
	return all, nil
}

// fromNext fails where not so many loads of all blocks came from the store behind
// the cache.
func (b *bench) fromNext(s *cache.Store, loads int) error {
	got, want := s.Stats().Next.LoadedShards, int64(loads*b.o.Blocks)*int64(b.o.layout().Shards())
	if got != want {
		return fmt.Errorf("%d shards came from behind the cache, and %d should have", got, want)
	}
	return nil
}

// cold is loads of what is in no memory of the stores': a cache that has room for one
// of two sets never has the other.
func (b *bench) cold(ctx context.Context, rep *Report) (err error) {
	if err := b.store(ctx); err != nil {
		return err
	}
	var f field
	defer f.close(&err)
	if err := f.add(newPlainRing(b.daemon.Mount, b.sets, b.bufs, b.o.Depth)); err != nil {
		return err
	}
	chains, err := b.chains(&f, b.o.loadBytes())
	if err != nil {
		return err
	}
	alone, err := b.openRing(kv.ChecksumsAuto)
	if err != nil {
		return err
	}
	f.add(ofStore(WayDs3fs, alone, b.bufs), nil)
	if err := alone.Register(b.bufs.mem.Name(), b.bufs.mem.Bytes()); err != nil {
		return err
	}
	if err := f.add(newUCM(b.daemon.Mount, b.o.layout(), b.bufs)); err != nil {
		return err
	}
	if rep.Cold, err = b.turns(ctx, &f, b.sets); err != nil {
		return err
	}
	for i, s := range chains {
		if err := b.fromNext(s, f.all[1+i].loads); err != nil {
			return fmt.Errorf("%s was to be cold: %w", f.all[1+i].name, err)
		}
	}
	return nil
}

// store puts both sets where Ds3fs and UCM keep blocks.
func (b *bench) store(ctx context.Context) (err error) {
	s, err := b.openRing(kv.ChecksumsAuto)
	if err != nil {
		return err
	}
	for _, set := range b.sets {
		set.fill(b.bufs.parts)
		if err := set.dumpInto(ctx, s, b.bufs.parts); err != nil {
			return errors.Join(err, s.Close())
		}
	}
	if err := s.Close(); err != nil || !b.o.direct() {
		return err
	}
	return dropCaches(b.daemon.Data)
}

// dropCaches has the page cache forget the files below dir.
func dropCaches(dir string) error {
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		f, err := os.Open(path)
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

// warm is loads of what is in the cache's memory.
func (b *bench) warm(ctx context.Context, rep *Report) (err error) {
	var f field
	defer f.close(&err)
	one := b.sets[:1]
	if err := f.add(newCopy(one[0], b.bufs, cacheStreams())); err != nil {
		return err
	}
	chains, err := b.chains(&f, b.o.loadBytes())
	if err != nil {
		return err
	}
	for _, s := range chains {
		if err := one[0].loadFrom(ctx, s, b.bufs.parts); err != nil {
			return err
		}
	}
	if rep.Warm, err = b.turns(ctx, &f, one); err != nil {
		return err
	}
	for _, s := range chains {
		if err := b.fromNext(s, 1); err != nil {
			return fmt.Errorf("the cache was to be warm: %w", err)
		}
	}
	return nil
}

// segments is loads from segments, with and without checking.
func (b *bench) segments(ctx context.Context, rep *Report) (err error) {
	var f field
	defer f.close(&err)
	for _, sums := range []kv.Checksums{kv.ChecksumsAuto, kv.ChecksumsOff} {
		name := WaySegment
		if sums == kv.ChecksumsOff {
			name = WaySegmentNoSums
		}
		s, err := b.openSegment(name, b.o.layout(), 2*b.o.loadBytes(), sums)
		if err != nil {
			return err
		}
		f.add(ofStore(name, s, b.bufs), nil)
		b.sets[0].fill(b.bufs.parts)
		if err := b.sets[0].dumpInto(ctx, s, b.bufs.parts); err != nil {
			return err
		}
	}
	rep.Segment, err = b.turns(ctx, &f, b.sets[:1])
	return err
}

func (b *bench) openSegment(name string, l kv.Layout, capacityBytes int64, sums kv.Checksums) (*segment.Store, error) {
	return segment.Open(segment.Options{
		// Beside the daemon's data: on the same disk, and removed with it.
		Dir:    filepath.Join(filepath.Dir(b.daemon.Data), name),
		Layout: l, Namespace: namespace(), CapacityBytes: capacityBytes + 64<<20, DirectIO: b.o.direct(), Checksums: sums,
	})
}

// lookups is how long it takes to be told what is there.
func (b *bench) lookups(ctx context.Context, rep *Report) (err error) {
	l := kv.Layout{BlockBytes: alignment, ShardBytes: alignment}
	index := blocksOf(3, b.o.IndexBlocks, l)
	indexBytes := int64(b.o.IndexBlocks) * l.BlockBytes
	inCache, err := cache.New(empty.New(l), cache.Options{CapacityBytes: 2 * indexBytes, Namespace: namespace()})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, inCache.Close()) }()
	inSegments, err := b.openSegment("index", l, 4*indexBytes, kv.ChecksumsAuto)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, inSegments.Close()) }()
	all := []*asked{{name: WayCache, store: inCache}, {name: WaySegment, store: inSegments}}
	for _, a := range all {
		if err := a.fill(ctx, index); err != nil {
			return err
		}
	}
	p50, p99 := map[string][]float64{}, map[string][]float64{}
	for round := range b.o.Runs {
		for i := range all {
			a := all[(i+round)%len(all)]
			half, most, err := a.sample(ctx, index, b.o.Keys, b.o.RunTime, round)
			if err != nil {
				return err
			}
			p50[a.name], p99[a.name] = append(p50[a.name], half), append(p99[a.name], most)
			b.done()
		}
	}
	for _, a := range all {
		rep.Lookups = append(rep.Lookups, Lookup{Store: a.name, P50Ms: measure.SpreadOf(p50[a.name]), P99Ms: measure.SpreadOf(p99[a.name])})
	}
	return nil
}

// calls counts what a hit asks of the kernel, where that can be seen.
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
