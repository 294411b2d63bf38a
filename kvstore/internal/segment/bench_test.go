package segment

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

const million = 1 << 20

// sparse makes a directory of one-page blocks that has only headers and indexes, and no
// data.
func sparse(b *testing.B, blocks int) Options {
	b.Helper()
	l := kv.Layout{BlockBytes: pageBytes, ShardBytes: pageBytes}
	const slots = 1 << 16
	o := options(b.TempDir(), l, blocks/slots+2, slots)
	o.reserve = func(f *os.File, sizeBytes int64) error { return f.Truncate(sizeBytes) }
	g, err := newGeometry(l, o.SegmentBytes)
	if err != nil {
		b.Fatal(err)
	}
	super := record{layout: l, segmentBytes: g.segmentBytes}
	write := func(name string, at int64, raw []byte) {
		f, err := os.OpenFile(filepath.Join(o.Dir, name), os.O_CREATE|os.O_WRONLY, 0o644)
		if err == nil {
			_, err = f.WriteAt(raw, at)
			f.Close()
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	write(superName, 0, super.encode(superMagic))
	for n := range blocks / slots {
		h := record{number: uint32(n), namespace: namespace, generation: uint64(n + 1), layout: l, segmentBytes: g.segmentBytes}
		raw := make([]byte, g.indexPages()*pageBytes)
		for p := range g.indexPages() {
			page := raw[p*pageBytes : (p+1)*pageBytes]
			for i := p * indexSlots; i < min((p+1)*indexSlots, g.slots); i++ {
				setIndexed(page, i-p*indexSlots, keyOf(n*slots+i))
			}
			sealIndex(page, h.number, p, h.generation)
		}
		write(segmentName(h.number), 0, h.encode(headerMagic))
		write(segmentName(h.number), g.indexAt(), raw)
	}
	return o
}

// BenchmarkReopenMillion opens a store of a million blocks, and reports how much memory
// its index takes.
func BenchmarkReopenMillion(b *testing.B) {
	o := sparse(b, million)
	for b.Loop() {
		before := heapBytes()
		start := time.Now()
		s, err := Open(o)
		took := time.Since(start)
		if err != nil || s.Stats().Blocks != million {
			b.Fatal(err)
		}
		b.ReportMetric(float64(took.Milliseconds()), "reopen-ms")
		b.ReportMetric(float64(heapBytes()-before)/million, "B/block")
		b.StopTimer()
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

// BenchmarkScan opens a store whose last segment has no index, as after a kill -9, and
// reports the time for each head.
func BenchmarkScan(b *testing.B) {
	const slots = 1 << 16
	o := sparse(b, slots)
	noIndex := make([]byte, (slots+indexSlots-1)/indexSlots*pageBytes)
	for b.Loop() {
		put(b, filepath.Join(o.Dir, segmentName(0)), o.SegmentBytes-int64(len(noIndex)), noIndex)
		start := time.Now()
		s, err := Open(o)
		b.ReportMetric(float64(time.Since(start).Nanoseconds())/slots, "ns/head")
		if err != nil {
			b.Fatal(err)
		}
		s.Close()
	}
}

// BenchmarkLookup512 asks for 512 keys of a million.
func BenchmarkLookup512(b *testing.B) {
	s, err := Open(sparse(b, million))
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	var batches [64][]kv.Key
	for i := range batches {
		for k := range 512 {
			batches[i] = append(batches[i], keyOf((i*512+k)*7919%million))
		}
	}
	found := make([]bool, 512)
	for i := 0; b.Loop(); i++ {
		if err := s.Lookup(context.Background(), batches[i%len(batches)], found); err != nil || !found[7] {
			b.Fatal(err)
		}
	}
}

// BenchmarkLoad reads 2 MiB blocks that the page cache has, with and without comparing
// checksums.
func BenchmarkLoad(b *testing.B) {
	for _, sums := range []kv.Checksums{kv.ChecksumsAuto, kv.ChecksumsOff} {
		b.Run("checksums="+string(sums), func(b *testing.B) { benchLoad(b, sums) })
	}
}

func benchLoad(b *testing.B, sums kv.Checksums) {
	l := kv.Layout{BlockBytes: 2 << 20, ShardBytes: 2 << 20}
	o := options(b.TempDir(), l, 4, 32)
	o.Checksums = sums
	s, err := Open(o)
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	keys := keysOf(0, 32)
	shards := shardsOf(l, keys...)
	save(b, s, keys...)
	b.SetBytes(int64(len(keys)) * l.BlockBytes)
	for b.Loop() {
		task, err := s.Load(context.Background(), shards)
		if err == nil {
			err = task.Wait(context.Background())
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	for _, shard := range shards {
		if wrong, _ := content(shard.Key, shard.Index).Check(shard.Buf); wrong > 0 {
			b.Errorf("block %s: %d wrong bytes", shard.Key, wrong)
		}
	}
}

func heapBytes() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
