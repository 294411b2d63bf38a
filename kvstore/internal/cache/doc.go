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
// A Load is planned at once, under the lock. Each of its shards is either in memory, and
// is pinned and copied; or is being loaded, and waits; or gets a slot, and next is asked
// for it; or finds no space, or another process at work on it, and next loads it straight
// into the caller's buffer. A Save is planned by one goroutine, batch by batch, because it
// may have to wait for space.
//
// The lock is a mutex, and inside it the table's own where other processes share the
// cache. While the table cannot be locked, everything goes through to next.
package cache
