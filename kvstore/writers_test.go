package kvstore_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/kv3fs/kv3fs/kvstore"
	"github.com/kv3fs/kv3fs/kvstore/keys"
)

// A Store is a writer: parts that two of them save make no block, even if they never
// overlap, and the one that brings the rest has its own block.
func TestPartsOfTwoStoresMakeNoBlock(t *testing.T) {
	for _, chain := range []string{"Posix", "Cache|Posix"} {
		t.Run(chain, func(t *testing.T) {
			layout := kvstore.Layout{BlockBytes: 4096, ShardBytes: 1024}
			dir := t.TempDir()
			var stores [2]*kvstore.Store
			for i := range stores {
				c := kvstore.Config{
					Namespace: keys.Namespace{Model: "m", BlockTokens: 16, Layers: 4}, Layout: layout,
					Posix: &kvstore.PosixOptions{Dirs: []string{dir}},
				}
				if chain != "Posix" {
					c.Cache = &kvstore.CacheOptions{CapacityBytes: 1 << 20, Shared: true, SharedName: fmt.Sprintf("test-writers-%d", os.Getpid())}
				}
				s, err := kvstore.Open(chain, c)
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				stores[i] = s
			}
			shards := func(n, writer int) []kvstore.Shard {
				return layout.ByBlock([]kvstore.Key{{byte(n)}}, [][]byte{bytes.Repeat([]byte{byte(writer + 1)}, int(layout.BlockBytes))})
			}
			save := func(writer int, part []kvstore.Shard) {
				t.Helper()
				task, err := stores[writer].Save(t.Context(), part)
				if err == nil {
					err = task.Wait(t.Context())
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			load := func(n int) ([]kvstore.Shard, error) {
				got := shards(n, -1)
				task, err := stores[n%2].Load(t.Context(), got)
				if err == nil {
					err = task.Wait(t.Context())
				}
				return got, err
			}
			for n := range 10 {
				save(0, shards(n, 0)[:2])
				save(1, shards(n, 1)[2:])
				if _, err := load(n); !errors.Is(err, kvstore.ErrMiss) {
					t.Fatalf("halves of two stores: %v; want a miss", err)
				}
				save(1, shards(n, 1)[:2])
				got, err := load(n)
				if err != nil {
					t.Fatal(err)
				}
				for _, shard := range got {
					if shard.Buf[0] != 2 {
						t.Fatalf("shard %d is of store %d", shard.Index, shard.Buf[0]-1)
					}
				}
			}
		})
	}
}
