package kvstore

import (
	"context"
	"iter"

	"github.com/kv3fs/kv3fs/kvstore/device"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// A Store keeps blocks of KV cache: of one size, immutable, each under the Key that
// stands for its content. It is a cache: any block may be gone at any time, and a caller
// that misses one computes it. A Store returns only the block that was saved under the
// key; when in doubt it misses. [Open] opens one.
//
// # Concurrency
//
// Any number of goroutines may call any method, Close included. Calls and batches under
// way when Close is called end with [ErrClosed].
//
// # Buffers
//
// From the call of Load or Save until a shard is settled (see [Task]) its Buf belongs to
// the store. Afterwards the store neither reads the Buf of a save nor writes that of a
// load, unless the shard's error is [ErrAbandoned]. After a failed load the content of
// the Buf is undefined. The slices of keys and shards, and the places that shards point
// to, belong to the caller again when the method returns.
//
// # Errors
//
// An error that Load or Save itself returns is about the batch: nothing of it was begun.
// A shard's own error is about that shard alone; the others go on.
//
//   - [ErrMiss], and [ErrCorrupt], which is one: compute the block, then save it.
//   - [ErrFull]: do nothing. The block is not kept.
//   - [ErrConflict]: the same; see Failures.
//   - [ErrTimeout], and errors of the storage: treat as ErrMiss. The same call may
//     succeed later.
//   - [ErrAbandoned], which is an ErrTimeout: also do not use the buffer's memory before
//     a Close that returns no error.
//   - [BatchError]: a mistake in the calling program.
//   - The errors of contexts are returned as they are.
//
// # Failures
//
// A block exists whole or not at all. It exists once all of its shards have been saved,
// in one batch or several, and settled without error; a block whose shards stop coming
// is dropped. Saving a block that exists changes nothing and succeeds. In stores that
// keep blocks in a file system, a block that Flush has covered survives a kill -9 of the
// process; after a power cut it is either whole or a miss.
//
// Two writers of one block do not disturb each other. If they have computed different
// bytes, one of them wins whole. Whose a shard is, a store knows in this way: a batch with
// all shards of a block is one writer, also beside others in the same Store; all batches
// of a Store with a part of it are one writer together. So if two of these bring
// different bytes for one shard while the block is unfinished, it is dropped: its shards
// fail with [ErrConflict] until none has come for 10 s, or a batch brings all of them. Where two
// computations of a block may run at once, save whole blocks in one batch, or open a Store
// for each: in one Store, parts of two that never overlap cannot be told apart.
//
// What one Load returns of a block is of one Save. If the block is deleted and saved anew
// with other bytes meanwhile, shards of one of the two are returned; the others fail with
// [ErrMiss].
//
// Every wait is bounded by [Config.Timeout].
type Store struct {
	chain  kv.Store      // the first store of the chain
	device device.Device // whose memory shards may name, or nil
}

// Device returns the device whose memory shards may name instead of a Buf. For a chain with
// Cache it is that of [CacheOptions], or else one whose memory is the host's; for Gds alone
// that of [GdsOptions]. Where it is nil, such shards are refused with a [BatchError].
//
// What the contract says of a Buf holds for memory of the device. A shard of a Load is
// settled, and its layer has landed, when its bytes are on the device: any stream may read
// them then. A Save reads them when the shard's [device.Place] allows it.
func (s *Store) Device() device.Device { return s.device }

// Layout returns the size of all blocks and of their shards.
func (s *Store) Layout() Layout { return Layout(s.chain.Layout()) }

// Lookup sets found[i] to whether the block keys[i] exists. A found that is not as long
// as keys is a [BatchError], and nothing is written to it. Lookup reads no data: a block
// that is found can still turn out to be damaged or gone when it is loaded. After an
// error the content of found is undefined.
func (s *Store) Lookup(ctx context.Context, keys []Key, found []bool) error {
	return public(s.chain.Lookup(ctx, keys, found))
}

// LookupPrefix returns how many of the first keys exist without a gap.
func (s *Store) LookupPrefix(ctx context.Context, keys []Key) (int, error) {
	n, err := s.chain.LookupPrefix(ctx, keys)
	return n, public(err)
}

// Contains reports whether the block exists. Lookup is faster for many keys.
func (s *Store) Contains(ctx context.Context, key Key) (bool, error) {
	found := make([]bool, 1)
	err := s.Lookup(ctx, []Key{key}, found)
	return err == nil && found[0], err
}

// Prefetch is a hint that these blocks are wanted soon, the most urgent first. It does
// not wait, and the store may ignore any of them.
func (s *Store) Prefetch(keys []Key) { s.chain.Prefetch(keys) }

// Load fills the buffers. It returns when the batch is queued, and waits for that while
// the store has too much to do. ctx cancels the batch, also after Load has returned.
// Shards are begun in the order given, so an engine that computes layer by layer lists
// all shards of the first layer first: see [Layout.ByLayer].
func (s *Store) Load(ctx context.Context, shards []Shard) (*Task, error) {
	return begin(ctx, shards, s.chain.Load)
}

// Save stores the content of the buffers. It queues the batch as Load does. In a chain a
// shard is settled when the first store has it; see Flush.
func (s *Store) Save(ctx context.Context, shards []Shard) (*Task, error) {
	return begin(ctx, shards, s.chain.Save)
}

func begin(ctx context.Context, shards []Shard, do func(context.Context, []kv.Shard) (*kv.Task, error)) (*Task, error) {
	batch := make([]kv.Shard, len(shards))
	for i, shard := range shards {
		batch[i] = kv.Shard(shard)
		if shard.Device != nil {
			at := *shard.Device // which is the caller's again, as the slice is
			batch[i].Device = &at
		}
	}
	task, err := do(ctx, batch)
	if err != nil {
		return nil, public(err)
	}
	return &Task{task}, nil
}

// Delete removes blocks from every store of the chain. A key that does not exist is no
// error. After Delete has returned nil none of the blocks is found until it is saved
// again. A Load under way returns the block's bytes or [ErrMiss]; a Save under way may
// store the block or not. A deletion that a later Flush has covered survives a kill -9.
// After an error each of the blocks may exist or not.
func (s *Store) Delete(ctx context.Context, keys []Key) error {
	return public(s.chain.Delete(ctx, keys))
}

// Keys yields the key of every block that exists and belongs to the store's namespace,
// each at most once and in no particular order. Blocks that are saved, evicted or
// deleted meanwhile may be among them or not. Other calls wait for Keys for no longer
// than a few milliseconds. An error is yielded once, with a zero Key, and ends the
// sequence.
func (s *Store) Keys(ctx context.Context) iter.Seq2[Key, error] {
	return func(yield func(Key, error) bool) {
		for key, err := range s.chain.Keys(ctx) {
			if !yield(key, public(err)) {
				return
			}
		}
	}
}

// purgeBatch is how many keys Purge deletes in one call.
const purgeBatch = 1024

// Purge deletes every block of the store's namespace that existed when it was called,
// and returns how many it deleted. Blocks saved meanwhile may be deleted or not. After
// an error each of the others may exist or not.
func (s *Store) Purge(ctx context.Context) (deleted int, err error) {
	batch := make([]Key, 0, purgeBatch)
	purge := func() error {
		if len(batch) == 0 {
			return nil
		}
		if err := s.Delete(ctx, batch); err != nil {
			return err
		}
		deleted += len(batch)
		batch = batch[:0]
		return nil
	}
	for key, err := range s.Keys(ctx) {
		if err != nil {
			return deleted, err
		}
		if batch = append(batch, key); len(batch) == purgeBatch {
			if err := purge(); err != nil {
				return deleted, err
			}
		}
	}
	return deleted, purge()
}

// Flush waits until every block whose save was done before the call has arrived in the
// last store of the chain, or has failed to. The error then says how many blocks have
// failed since the last Flush.
func (s *Store) Flush(ctx context.Context) error { return public(s.chain.Flush(ctx)) }

// Stats returns what was counted so far, for each store of the chain.
func (s *Store) Stats() Stats { return statsOf(s.chain.Stats()) }

// Register tells the store of shared memory that it may use in place: the object
// /dev/shm/<name>, which mem maps from its start, as those of package memory do. Stores
// that move data through rings then need no copy for buffers inside mem. All others use
// any memory in place; with them Register does nothing. mem stays mapped until Close.
func (s *Store) Register(name string, mem []byte) error {
	if r, ok := s.chain.(kv.Registrar); ok {
		return public(r.Register(name, mem))
	}
	return nil
}

// Close ends what is under way, waits until no buffer is in use, and releases
// everything. A chain closes its stores front to back; each first writes what it had
// accepted, within its timeout. After an error abandoned buffers may still be in use.
// Closing twice is harmless.
func (s *Store) Close() error { return public(s.chain.Close()) }
