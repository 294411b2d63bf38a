package kvstore

import "github.com/kv3fs/kv3fs/kvstore/kv"

// The contract is package kv's, so that stores need not know this package.
type (
	// Store keeps blocks; see [kv.Store] for who may call what, who owns the buffers
	// and what holds after a failure.
	Store = kv.Store
	// Task is a batch on its way.
	Task = kv.Task
	// Shard is one part of a block and the caller's memory for it.
	Shard = kv.Shard
	// Layout is the size of blocks and of their parts.
	Layout = kv.Layout
	// Key names a block.
	Key = kv.Key
	// Stats is what a store has counted.
	Stats = kv.Stats
	// Registrar is a store that can use the caller's shared memory in place.
	Registrar = kv.Registrar
	// CorruptError says what was found instead of a block; it is an ErrMiss.
	CorruptError = kv.CorruptError
	// BatchError is a batch that was refused as a whole.
	BatchError = kv.BatchError
	// Checksums says what a store makes of checksums.
	Checksums = kv.Checksums
)

// The errors of shards; see [kv.Store] for what each obliges.
var (
	ErrMiss      = kv.ErrMiss
	ErrCorrupt   = kv.ErrCorrupt
	ErrFull      = kv.ErrFull
	ErrTimeout   = kv.ErrTimeout
	ErrAbandoned = kv.ErrAbandoned
	ErrClosed    = kv.ErrClosed
)
