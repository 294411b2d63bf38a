package cache_test

import (
	"fmt"
	"runtime"
	"sync"
	"testing"

	"github.com/kv3fs/kv3fs/kvstore/internal/cache"
	"github.com/kv3fs/kv3fs/kvstore/internal/empty"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// BenchmarkWarmLoad loads 128 blocks of 2 MiB that are all in memory, and compares that
// with copying the same bytes by as many goroutines.
func BenchmarkWarmLoad(b *testing.B) {
	b.Run("copy", func(b *testing.B) {
		src, dst := make([]byte, 256<<20), filled(blocks(kv.Layout{BlockBytes: 2 << 20, ShardBytes: 2 << 20}, keys(0, 128)...))
		content(src, key(1), 1)
		b.SetBytes(int64(len(src)))
		for b.Loop() {
			var all sync.WaitGroup
			streams := min(4, runtime.NumCPU())
			for g := range streams {
				all.Go(func() {
					for n := g; n < len(dst); n += streams {
						copy(dst[n].Buf, src[n<<21:])
					}
				})
			}
			all.Wait()
		}
	})
	for _, shards := range []int64{1, 64} {
		l := kv.Layout{BlockBytes: 2 << 20, ShardBytes: 2 << 20 / shards}
		for _, sums := range []kv.Checksums{kv.ChecksumsAuto, kv.ChecksumsOff} {
			b.Run(fmt.Sprintf("shards=%d/checksums=%s", shards, sums), func(b *testing.B) {
				s, err := cache.New(empty.New(l), cache.Options{CapacityBytes: 256 * l.BlockBytes, Checksums: sums})
				if err != nil {
					b.Fatal(err)
				}
				defer s.Close()
				all := keys(0, 128)
				save(b, s, all...)
				batch := filled(blocks(l, all...)) // filled, so its pages are present
				b.SetBytes(128 * l.BlockBytes)
				for b.Loop() {
					t, err := s.Load(b.Context(), batch)
					if err != nil {
						b.Fatal(err)
					}
					if err := t.Wait(b.Context()); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkLookup512 looks up keys that are all in memory.
func BenchmarkLookup512(b *testing.B) {
	l := kv.Layout{BlockBytes: 4096, ShardBytes: 4096}
	s, err := cache.New(empty.New(l), cache.Options{CapacityBytes: 100_000 * 4096})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	for n := 0; n < 70_000; n += 1000 {
		save(b, s, keys(n, 1000)...)
	}
	found := make([]bool, 512)
	n := 0
	var batches [][]kv.Key
	for i := range 100 {
		batches = append(batches, keys(i*600, 512))
	}
	for b.Loop() {
		if err := s.Lookup(b.Context(), batches[n%100], found); err != nil || !found[0] {
			b.Fatal(err, found[0])
		}
		n++
	}
}
