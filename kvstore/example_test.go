package kvstore_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/kv3fs/kv3fs/kvstore"
	"github.com/kv3fs/kv3fs/kvstore/keys"
)

// A turn of an engine: blocks that are stored are loaded layer by layer, and the rest is
// computed and saved.
func Example() {
	dir, err := os.MkdirTemp("", "kv")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	model := keys.Namespace{Model: "example/tiny", BlockTokens: 4, Layers: 2}
	store, err := kvstore.Open("Cache|Segment", kvstore.Config{
		Namespace: model,
		Layout:    kvstore.Layout{BlockBytes: 64 << 10, ShardBytes: 32 << 10}, // a shard is a layer's part
		Cache:     &kvstore.CacheOptions{CapacityBytes: 4 << 20},
		Segment:   &kvstore.SegmentOptions{Dir: dir, CapacityBytes: 16 << 20},
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
				<-load.Landed(layer)
				if load.LandedErr(layer) != nil {
					hits = 0 // a block was lost meanwhile: compute the whole prompt
					break
				}
				// ... every block has this layer: compute with it.
			}
			if err := load.Wait(ctx); err != nil && !errors.Is(err, kvstore.ErrMiss) {
				log.Print(err) // the storage failed; what it did not load is computed, too
			}
		}
		// ... compute the rest, then save it.
		if hits < len(blocks) {
			save, err := store.Save(ctx, layout.ByBlock(blocks[hits:], memory[hits:]))
			if err != nil {
				log.Fatal(err)
			}
			if err := save.Wait(ctx); err != nil {
				log.Print(err) // these blocks are not kept
			}
		}
		fmt.Printf("%d of %d blocks were stored\n", hits, len(blocks))
	}
	serve(1, 2, 3, 4, 5, 6, 7, 8)
	serve(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)
	serve(1, 2, 3, 9, 5, 6, 7, 8) // another beginning: no block in common
	// Output:
	// 0 of 2 blocks were stored
	// 2 of 3 blocks were stored
	// 0 of 2 blocks were stored
}
