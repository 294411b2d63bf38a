package kv

import (
	"context"
	"iter"
)

// A Store keeps blocks of KV cache: fixed-size, immutable, each under the Key that
// stands for its content. It is a cache: any block may be gone at any time, and a caller
// that misses one computes it. A Store returns only the block that was saved under the
// key; when in doubt it misses.
//
// Concurrency. Any number of goroutines may call any method, Close included. What is
// under way when Close is called ends with ErrClosed.
//
// Buffers. From the call of Load or Save until a shard is settled (see Task) its Buf
// belongs to the store. Afterwards the store neither reads the Buf of a save nor writes
// that of a load, unless the shard's error is ErrAbandoned. After a failed load the
// content of the Buf is undefined. The slice of shards belongs to the store until the
// task is done. Slices of keys, and found, belong to it until the method returns.
//
// Errors. An error that Load or Save itself returns is about the batch: nothing of it was
// begun. A shard's own error is about that shard alone; the others go on. What each
// error obliges the caller to do is in package kvstore. A BatchError is a mistake of the
// caller. The errors of contexts are returned as they are.
//
// Failures. A block exists whole or not at all. It exists once all of its shards have
// been saved, in one batch or several, and settled without error; a block whose shards
// stop coming is dropped. Saving a block that exists changes nothing and succeeds. In
// stores that keep blocks in a file system, a block that Flush has covered survives a
// kill -9 of the process; after a power cut it is either whole or a miss.
//
// Two writers of one block do not disturb each other, and if their bytes differ, one of
// them wins whole. A batch with all shards of a block is one writer; all batches of a
// Store with a part of it are one writer together. If two of these bring different bytes
// for one shard while the block is unfinished, it is dropped: its shards fail with
// ErrConflict until none has come for 10 s, or a batch brings all of them. What one Load
// returns of a block is of one Save.
//
// Every wait is bounded: it ends when nothing has progressed for the store's timeout.
//
// This is kvstore.Store's contract, except that package kvstore copies the slice of
// shards.
type Store interface {
	// Layout returns the size of all blocks.
	Layout() Layout

	// Lookup sets found[i] to whether the block keys[i] exists, and begins with
	// CheckFound. It reads no data: a block that is found can still turn out to be damaged
	// or gone when it is loaded. After an error the content of found is undefined.
	Lookup(ctx context.Context, keys []Key, found []bool) error

	// LookupPrefix returns how many of the first keys exist without a gap.
	LookupPrefix(ctx context.Context, keys []Key) (int, error)

	// Prefetch is a hint that these blocks are wanted soon, the most urgent first. It does
	// not wait, and the store may ignore any of them. It copies keys.
	Prefetch(keys []Key)

	// Load fills the buffers. It returns when the batch is queued, and waits for that
	// while the store has too much to do. ctx cancels the batch, also after Load has
	// returned. Shards are begun in the order given, so an engine that computes layer by
	// layer lists all shards of the first layer first.
	Load(ctx context.Context, shards []Shard) (*Task, error)

	// Save stores the content of the buffers. It queues the batch as Load does. Where a
	// store passes blocks on to another one, a shard is settled when the first has it.
	Save(ctx context.Context, shards []Shard) (*Task, error)

	// Delete removes the blocks under these keys; a key that does not exist is no error.
	// After it has returned nil, none of them is found until it is saved again. A Load
	// under way returns the block's bytes or ErrMiss; a Save under way may store the block
	// or not. A chain deletes from every store. A deletion that a later Flush has covered
	// survives a kill -9. After an error each of the blocks may exist or not.
	Delete(ctx context.Context, keys []Key) error

	// Keys yields the key of every block that exists and belongs to the store's
	// namespace, in no particular order and each at most once. Blocks that come or go
	// meanwhile may be among them or not. Other calls wait for it for no longer than a few
	// milliseconds, and the loop may make such calls. An error is yielded once, with a
	// zero Key, and ends the sequence.
	Keys(ctx context.Context) iter.Seq2[Key, error]

	// Flush waits until every block whose save was done before the call has arrived in
	// the last store of the chain, or has failed to. The error then says how many have
	// failed since the last Flush.
	Flush(ctx context.Context) error

	// Stats returns what was counted so far.
	Stats() Stats

	// Close ends what is under way, waits until no buffer is in use, and releases
	// everything. A chain closes its stores front to back; each first writes what it had
	// accepted, within its timeout. After an error abandoned buffers may still be in
	// use. Closing twice is harmless.
	Close() error
}

// A Registrar is a store that can move data between its storage and shared memory
// without a copy.
type Registrar interface {
	// Register tells the store of the object /dev/shm/<name>, which mem maps from its
	// start. Buffers inside it are used in place from now on. mem stays mapped until Close.
	Register(name string, mem []byte) error
}

// A Memory is a store that keeps blocks in memory, in front of another store.
type Memory interface {
	// InMemory returns how many of the blocks are whole in memory now.
	InMemory(keys []Key) int
}
