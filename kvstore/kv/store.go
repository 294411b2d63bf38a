package kv

import (
	"context"
	"iter"
)

// A Store keeps blocks of KV cache: fixed-size, immutable, each under the Key that
// stands for its content. It is a cache: any block may be gone at any time, and a
// caller that misses one computes it. What it returns is always the block that was
// dumped under that key; when in doubt it misses.
//
// Who may call at once. Every method may be called by any number of goroutines,
// Close included: what is under way then ends with ErrClosed.
//
// Who owns the buffers. From the call of Load or Dump until a shard is settled
// (see Task) its Buf belongs to the store. The store then has let go of it: nothing
// of a Dump is read and nothing of a Load is written any more, unless the shard's
// error is ErrAbandoned. After a failed Load the Buf's content is undefined. Keys,
// shards and the slices that hold them are the store's until the task is done.
//
// What an error obliges. An error that Load or Dump itself returns is about the
// batch: nothing of it was begun. A shard's own error is about that shard alone;
// the others go on. ErrMiss (and ErrCorrupt, which is one): compute the block, then
// Dump it. ErrFull: nothing; the block is not kept. ErrTimeout, and errors of the
// storage: as ErrMiss, and the same call may work later. ErrAbandoned: moreover do
// not use that memory again before a Close without an error. A BatchError is a mistake of the caller.
// The contexts' own errors come back as they are.
//
// What holds after a failure. A block exists whole or not at all: it is there when
// all of its shards have been dumped, in one batch or several, and were settled
// without error; a block whose shards stop coming is dropped. Dumping a block that
// is there already changes nothing and succeeds. Two writers of one block do not
// disturb each other. A block that Flush has covered outlives a kill -9 of the
// process in stores that keep things on a file system; after a power cut it is
// either whole or a miss.
//
// Every wait has a bound: the store's timeout (timeout_ms).
type Store interface {
	// Layout is the size of all blocks.
	Layout() Layout

	// Lookup sets found[i] to whether the block keys[i] is there, whole; found is as
	// long as keys. It reads no data: a block that is found can still turn out to be
	// damaged or gone when it is loaded. On an error found says nothing.
	Lookup(ctx context.Context, keys []Key, found []bool) error

	// LookupPrefix is how many of the first keys are there without a gap.
	LookupPrefix(ctx context.Context, keys []Key) (int, error)

	// Prefetch is a hint that these blocks are wanted soon, best first. It does not
	// wait, and the store may ignore all or part of it. Keys are copied.
	Prefetch(keys []Key)

	// Load fills the buffers. It returns when the batch is queued, which waits while
	// the store has too much to do; ctx cancels the batch, then and later. Shards are
	// begun in the order given, so an engine that computes layer by layer gives all
	// shards of the first layer first.
	Load(ctx context.Context, shards []Shard) (*Task, error)

	// Save stores the buffers' content, in the same way. Where a store passes blocks
	// on to another one, a shard is settled when the first has it.
	Save(ctx context.Context, shards []Shard) (*Task, error)

	// Flush waits until every block whose dump was done before the call has arrived
	// in the last store of the chain, or has failed to: then the error says how many
	// have since the last Flush.
	Flush(ctx context.Context) error

	// Stats is what happened so far.
	Stats() Stats

	// Close ends what is under way, waits until no buffer is in use, and releases
	// everything; a chain closes its stores from the front, each after what it had
	// accepted is written, within its timeout. On an error buffers that were abandoned
	// may still be in use. Closing twice is harmless.
	Close() error
}

// A Registrar is a store that can move bytes between its storage and shared memory
// without a copy of its own.
type Registrar interface {
	// Register makes memory known whose object is /dev/shm/<name> and that mem maps
	// from its start. Buffers inside it are from now on used in place. mem stays
	// mapped until Close.
	Register(name string, mem []byte) error
}

// A Deleter is a store that removes blocks on request.
type Deleter interface {
	// Delete removes the blocks under these keys; a key that is not there is no error.
	// After it has returned nil, none of them is found until it is saved again. A Load
	// under way returns the block's bytes or ErrMiss; a Save under way may win or lose.
	// A chain deletes from every store. A Delete that a later Flush has covered
	// outlives a kill -9. After an error any of the blocks may be there or gone.
	Delete(ctx context.Context, keys []Key) error
}

// A Lister is a store that goes through what it holds.
type Lister interface {
	// Keys yields the key of every block that is there, whole, and belongs to the
	// store's namespace, in no particular order and each at most once. Blocks that come
	// or go meanwhile may be seen or not. It holds up no other call for longer than a
	// few milliseconds. An error is yielded once, with a zero Key, and ends it.
	Keys(ctx context.Context) iter.Seq2[Key, error]
}
