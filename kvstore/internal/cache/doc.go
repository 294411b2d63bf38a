// Package cache is a kv.Store that keeps blocks in the memory of this host, in front of
// another store, called next. Loads that it cannot serve fill it. Saves return when it
// has the blocks; they go on to next in the background.
//
// Package table, below, says which states a slot of the memory has and who may change
// them. In addition a process keeps, for slots that are its own:
//
//	filling     of a Loading slot: which shards next is loading, and which shards of
//	            which batches wait for them. It ends when none is being loaded.
//	assembly    of a Saving slot: which shards have been copied. It ends when all have,
//	            or when none has come for a while.
//	dirtyBlock  of a Dirty slot: it ends when next has taken the block, or has not.
//
// A Load is planned at once, under the lock. A shard that is in memory is pinned and
// copied. One that is being loaded waits. Any other gets a slot, and next loads it into
// that. If there is no space, or another process works on the block, next loads it
// directly into the caller's buffer. A Save is planned by one goroutine, batch by batch,
// because it may have to wait for space.
//
// The lock is a mutex and, inside it, the table's own lock if other processes share the
// cache. While the table cannot be locked, everything is passed on to next.
package cache
