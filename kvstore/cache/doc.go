// Package cache is a kv.Store of blocks in the memory of this host before another
// store. Loads that it cannot serve fill it; saves return when it has them and go on
// to the other store, called next, in the background.
//
// Package table, below, says what states a slot of the memory has and who may change
// them. Beyond that a process keeps, for slots that are its own:
//
//	filling     of a Loading slot: which shards are on their way from next, and which
//	            shards of which batches wait for them. It ends when none is on its way.
//	assembly    of a Saving slot: which shards have been copied. It ends when all have,
//	            or when none has come for a while.
//	dirtyBlock  of a Dirty slot: until next has taken the block, or has not.
//
// A Load is planned at once, under the lock: each of its shards is in memory, and is
// pinned and copied; or on its way, and waits; or gets a slot and is asked of next; or
// there is no space, or another process is at it, and next loads it straight into the
// caller's buffer. A Save is planned by one goroutine, batch by batch, because it may
// have to wait for space.
//
// The lock is a mutex, and inside it the table's own where other processes share the
// cache. When the table cannot be had, everything goes through to next.
package cache
