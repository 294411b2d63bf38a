// Package kvstore keeps blocks of KV cache: it is what the connectors of LMCache,
// UCM and RTP-LLM do, as a Go library. Blocks are named by a hash of their tokens
// and of all tokens before them, looked up, loaded and dumped in batches through a
// chain of stores, and what comes back is always what was stored.
//
//	store, err := kvstore.Open("Cache|Ds3fs", kvstore.Config{
//		Namespace:       keys.Namespace{Model: "Qwen/QwQ-32B", BlockTokens: 128, Layers: 64, TPSize: 2},
//		BlockSize:       16 << 20, // of this rank, all layers
//		ShardSize:       256 << 10, // a layer's part
//		StorageBackends: "/mnt/3fs",
//	})
//	defer store.Close()
//
//	chain, err := keys.NewChain(namespace)             // names for the prompt's blocks
//	blocks := chain.Append(tokens)
//	n, err := store.LookupPrefix(ctx, blocks)          // how many of the first are there
//	task, err := store.Load(ctx, layout.ByLayer(blocks[:n], buffers))
//	for layer := range layout.Shards() {
//		<-task.Landed(layer)                           // all blocks have this layer
//		...                                            // compute with it meanwhile
//	}
//	err = task.Wait(ctx)                               // a miss is kvstore.ErrMiss: compute it
//	task, err = store.Save(ctx, layout.ByBlock(blocks[n:], fresh))
//
// # Stores
//
// A chain is one of these, or Cache in front of one of these:
//
//	Posix    a file per block in any directory; UCM's Posix store reads and writes the same files
//	Ds3fs    a file per block on a 3FS, through its rings; UCM's Ds3fs store likewise
//	Segment  blocks packed into large files: no metadata operation per block; holds its size
//	Pages    pages of one large file, handed out by kv3fs's page service; many processes share it
//	Empty    keeps nothing: Cache|Empty is a cache in memory alone
//
// Cache keeps blocks in host memory, its own or shared by processes. What a load
// misses there fills it; a dump is done when it has the block, which then goes on
// to the next store in the background. Flush waits for that.
//
// Store is the contract, the same for all. [Config] has every setting with its
// default; the names are UCM's where UCM has one.
package kvstore
