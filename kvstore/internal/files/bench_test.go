package files_test

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/kvstore/internal/files"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

const benchBlocks = 128

// benchStore returns a store with blocks of 2 MiB, and the shards to load them.
func benchStore(b *testing.B, o files.Options) (kv.Store, []kv.Shard) {
	b.Helper()
	o.Layout = kv.Layout{BlockBytes: 2 << 20, ShardBytes: 2 << 20}
	o.Dirs = []string{b.TempDir()}
	s := open(b, o)
	raw, err := unix.Mmap(-1, 0, benchBlocks<<21, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	must(b, err)
	b.Cleanup(func() { unix.Munmap(raw) })
	var bufs [][]byte
	for i := range benchBlocks {
		buf := raw[i<<21:][: 2<<20 : 2<<20]
		copy(buf, content(key(i), 0))
		bufs = append(bufs, buf)
	}
	shards := o.Layout.ByBlock(keys(benchBlocks), bufs)
	task, err := s.Save(b.Context(), shards)
	must(b, err)
	must(b, task.Wait(b.Context()))
	return s, shards
}

func BenchmarkLoad(b *testing.B) {
	for name, o := range map[string]files.Options{
		"checked":   {Streams: 4},
		"unchecked": {Streams: 4, Checksums: kv.ChecksumsOff},
		"default":   {},
		"128":       {Streams: 128},
	} {
		b.Run(name, func(b *testing.B) {
			s, shards := benchStore(b, o)
			var want [][]byte
			for _, shard := range shards {
				want = append(want, bytes.Clone(shard.Buf))
				clear(shard.Buf) // the block was saved from here
			}
			b.SetBytes(benchBlocks << 21)
			for b.Loop() {
				task, err := s.Load(b.Context(), shards)
				must(b, err)
				must(b, task.Wait(b.Context()))
			}
			for i, shard := range shards {
				if !bytes.Equal(shard.Buf, want[i]) {
					b.Errorf("block %d: wrong bytes", i)
				}
			}
		})
	}
}

func BenchmarkLookup512(b *testing.B) {
	s, _ := benchStore(b, files.Options{})
	all, found := make([]kv.Key, 512), make([]bool, 512)
	for i := range all {
		all[i] = key(i % benchBlocks)
	}
	for b.Loop() {
		must(b, s.Lookup(b.Context(), all, found))
	}
}
