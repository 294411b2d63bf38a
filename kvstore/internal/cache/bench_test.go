package cache_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

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
				batch := blocks(l, all...)
				for _, shard := range batch {
					content(shard.Buf, key(-1), 0) // so its pages are present, with other bytes
				}
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
				if slices.ContainsFunc(batch, func(s kv.Shard) bool { return !right(s) }) {
					b.Error("wrong bytes were loaded")
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

// BenchmarkLoadBeside measures loads of a block of 4 KiB from memory, one after the other:
// alone, while 10^6 keys are looked up again and again, while a dump waits for space, and,
// for comparison, while another goroutine computes. With fewer processors than goroutines
// that compute, the scheduler lets a load wait whatever the others do.
func BenchmarkLoadBeside(b *testing.B) {
	const loads, looked = 200_000, 1_000_000
	l := kv.Layout{BlockBytes: 4096, ShardBytes: 4096}
	for _, beside := range []string{"nothing", "computing", "a lookup", "a waiting dump"} {
		b.Run(beside, func(b *testing.B) {
			shelf := newShelf(l, newThings())
			g := holdSaves(shelf)
			s, err := cache.New(shelf, cache.Options{CapacityBytes: 64 * l.BlockBytes})
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			defer g.release()
			save(b, s, keys(0, 16)...)
			all, found := keys(0, looked), make([]bool, looked)
			ready, stop, stopped := make(chan struct{}), make(chan struct{}), make(chan struct{})
			begins := sync.OnceFunc(func() { close(ready) })
			go func() {
				defer close(stopped)
				defer begins()
				for {
					select {
					case <-stop:
						return
					default:
					}
					switch beside {
					case "computing":
						begins()
						for n := range found {
							found[n] = !found[n]
						}
					case "a lookup":
						begins()
						if err := s.Lookup(b.Context(), all, found); err != nil {
							b.Error(err)
							return
						}
					case "a waiting dump":
						ctx, cancel := context.WithCancel(b.Context())
						task, err := s.Save(ctx, filled(blocks(l, keys(100, 128)...)))
						if err == nil {
							begins()
							<-stop
							cancel()
							err = task.Wait(b.Context())
						}
						cancel()
						if err == nil {
							b.Error("the dump has found space")
						}
						return
					default:
						begins()
						<-stop
					}
				}
			}()
			one := blocks(l, keys(0, 16)...)
			took := make([]time.Duration, 0, loads)
			<-ready
			for b.Loop() {
				for n := range loads {
					begun := time.Now()
					task, err := s.Load(b.Context(), one[n%16:][:1])
					if err == nil {
						err = task.Wait(b.Context())
					}
					if err != nil {
						b.Fatal(err)
					}
					took = append(took, time.Since(begun))
				}
			}
			close(stop)
			<-stopped
			if slices.ContainsFunc(one, func(s kv.Shard) bool { return !right(s) }) {
				b.Error("wrong bytes were loaded")
			}
			slices.Sort(took)
			for unit, at := range map[string]int{"p50-us": len(took) / 2, "p99-us": len(took) * 99 / 100, "p999-us": len(took) * 999 / 1000, "max-us": len(took) - 1} {
				b.ReportMetric(float64(took[at].Microseconds()), unit)
			}
		})
	}
}
