package kvstore_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/kv3fs/kv3fs/kvstore"
	"github.com/kv3fs/kv3fs/kvstore/keys"
)

// A turn of an engine: what is there is loaded, layer by layer, and what is not is
// computed and dumped.
func Example() {
	dir, err := os.MkdirTemp("", "kv")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	model := keys.Namespace{Model: "example/tiny", BlockTokens: 4, Layers: 2}
	store, err := kvstore.Open("Cache|Segment", kvstore.Config{
		Namespace:            model,
		BlockSize:            64 << 10,
		ShardSize:            32 << 10, // a layer's part
		StorageBackends:      dir,
		SegmentCapacityBytes: 16 << 20,
		CacheBufferBytes:     4 << 20,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	ctx, layout := context.Background(), store.Layout()

	serve := func(prompt ...uint32) {
		chain, err := keys.NewChain(model)
		if err != nil {
			log.Fatal(err)
		}
		blocks := chain.Append(prompt)
		memory := make([][]byte, len(blocks))
		for i := range memory {
			memory[i] = make([]byte, layout.BlockBytes)
		}
		hits, err := store.LookupPrefix(ctx, blocks)
		if err != nil {
			log.Fatal(err)
		}
		if hits > 0 {
			load, err := store.Load(ctx, layout.ByLayer(blocks[:hits], memory))
			if err != nil {
				log.Fatal(err)
			}
			for layer := range layout.Shards() {
				<-load.Landed(layer) // all blocks have it: compute with it
			}
			if err := load.Wait(ctx); err != nil {
				log.Fatal(err) // an engine computes what is kvstore.ErrMiss
			}
		}
		// ... compute the rest, then keep it.
		if hits < len(blocks) {
			dump, err := store.Save(ctx, layout.ByBlock(blocks[hits:], memory[hits:]))
			if err != nil {
				log.Fatal(err)
			}
			if err := dump.Wait(ctx); err != nil {
				log.Fatal(err)
			}
		}
		fmt.Printf("%d of %d blocks were there\n", hits, len(blocks))
	}
	serve(1, 2, 3, 4, 5, 6, 7, 8)
	serve(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)
	serve(1, 2, 3, 9, 5, 6, 7, 8) // another beginning: nothing in common
	// Output:
	// 0 of 2 blocks were there
	// 2 of 3 blocks were there
	// 0 of 2 blocks were there
}
