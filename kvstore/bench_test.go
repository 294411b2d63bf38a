package kvstore

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/meter"
)

// BenchmarkLoad compares loads from a cache through this package, which copies the
// slice of shards and measures each, with the same loads from the cache itself. A load
// is 16 blocks of 64 layers, a prompt of 2048 tokens. Shards of 4 KiB are smaller than
// any model's; those of a large model have 256 KiB and more.
func BenchmarkLoad(b *testing.B) {
	for _, shardBytes := range []int64{4 << 10, 256 << 10} {
		l := Layout{BlockBytes: 64 * shardBytes, ShardBytes: shardBytes}
		s := openTest(b, "Cache|Empty", func(c *Config) {
			c.Layout = l
			c.Cache.CapacityBytes = 32 * l.BlockBytes
		})
		blocks := testKeys(16)
		bufs, want := make([][]byte, len(blocks)), make([][]byte, len(blocks))
		for i := range bufs {
			bufs[i] = bytes.Repeat(blocks[i][:], int(l.BlockBytes)/len(blocks[i]))
			want[i] = bytes.Clone(bufs[i])
		}
		task, err := s.Save(b.Context(), l.ByBlock(blocks, bufs))
		if err == nil {
			err = task.Wait(b.Context())
		}
		if err != nil {
			b.Fatal(err)
		}
		run := func(name string, load func() error) {
			b.Run(fmt.Sprintf("%s/%dKiB", name, shardBytes>>10), func(b *testing.B) {
				b.SetBytes(16 * l.BlockBytes)
				b.ReportAllocs()
				for _, buf := range bufs {
					clear(buf) // the block was saved from here
				}
				for b.Loop() {
					if err := load(); err != nil {
						b.Fatal(err)
					}
				}
				for i, buf := range bufs {
					if !bytes.Equal(buf, want[i]) {
						b.Errorf("block %d: wrong bytes", i)
					}
				}
			})
		}
		shards, inner := l.ByLayer(blocks, bufs), kv.Layout(l).ByLayer(blocks, bufs)
		cache := s.chain.(*meter.Store).Store
		run("package", func() error {
			task, err := s.Load(b.Context(), shards)
			if err != nil {
				return err
			}
			return task.Wait(b.Context())
		})
		run("store", func() error {
			task, err := cache.Load(b.Context(), inner)
			if err != nil {
				return err
			}
			return task.Wait(b.Context())
		})
	}
}
