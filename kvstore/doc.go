// Package kvstore keeps blocks of KV cache for Go programs, as the connectors of
// LMCache, UCM and RTP-LLM do in Python and C++. A block is a fixed run of tokens' keys
// and values and is named by a hash of its tokens and of all tokens before them. Blocks
// are looked up, loaded and saved in batches through a chain of stores. A load returns
// what was saved, or a miss.
//
//	store, err := kvstore.Open("Cache|Ds3fs", kvstore.Config{
//		Namespace: keys.Namespace{Model: "Qwen/QwQ-32B", BlockTokens: 128, Layers: 64},
//		Layout:    kvstore.Layout{BlockBytes: 32 << 20, ShardBytes: 512 << 10}, // a shard is a layer's part
//		Ds3fs:     &kvstore.Ds3fsOptions{Mount: "/mnt/3fs"},
//	})
//	layout := store.Layout()
//	n, err := store.LookupPrefix(ctx, blocks)                      // how many of the first blocks are stored
//	load, err := store.Load(ctx, layout.ByLayer(blocks[:n], bufs)) // into your memory, layer by layer
//	<-load.Landed(0)
//	err = load.LandedErr(0) // nil: compute with layer 0 while the others land
//	save, err := store.Save(ctx, layout.ByBlock(blocks[n:], fresh))
//	err = save.Wait(ctx)
//	err = store.Close() // writes what was saved, and gives the memory back
//
// Package keys makes the keys of a prompt's blocks. The example of this package is a
// whole turn of an engine, with its errors.
//
// # Stores
//
// A chain is one of these stores, or Cache, Segment or both with one of these stores behind
// them:
//
//   - Posix keeps a file for each block in any directory. UCM's Posix store reads and
//     writes the same files.
//   - Ds3fs keeps a file for each block on a 3FS and moves it through rings. UCM's Ds3fs
//     store reads and writes the same files.
//   - Segment packs blocks into large files. It needs no metadata operation for a block
//     and enforces its capacity.
//   - Pages keeps blocks in pages of one large file, which kv3fs's page service hands
//     out. Many processes share it.
//   - LMCache keeps a file for each block, through rings on a 3FS. LMCache's remote 3FS
//     connector, its FS connector and its L2 adapters read and write the same files.
//   - Gds keeps a pair of files for each block. LMCache's GDS backend reads and writes the
//     same files.
//   - RtpLlm keeps blocks in the files of RTP-LLM's own 3FS tier, Kvcm in those of Tair
//     KVCM, through which RTP-LLM stores today. They read what these write, and the
//     other way round.
//   - Empty keeps nothing: Cache|Empty is a cache in memory alone.
//   - A store of your own: see [Registry].
//
// Segment in front of another store keeps on the host's own disk what was saved there or read
// from the other: Cache|Segment|Ds3fs is host memory, the host's disk, and what all hosts share.
//
// Cache keeps blocks in host memory, private or shared by processes. A load that misses
// the cache fills it. A save is done when the cache has the block; the cache then writes
// it to the next store in the background, and Flush waits for that.
//
// [Store] and [Task] document the contract, which is the same for all chains. [Config]
// documents every setting with its default.
package kvstore
