package kv

import (
	"errors"
	"fmt"
)

var (
	// ErrMiss: the store does not have it. Compute it.
	ErrMiss = errors.New("kvstore: no such block")

	// ErrCorrupt: something is stored under that key and it is not this block:
	// its identity or a checksum is wrong, or it is cut short. It is an ErrMiss,
	// and the block is out of the way for the next Dump.
	ErrCorrupt = errors.New("kvstore: block damaged")

	// ErrFull: no room, and nothing that may make room within the store's
	// timeout. The block is not stored.
	ErrFull = errors.New("kvstore: full")

	// ErrTimeout: the storage did not answer within the store's timeout.
	ErrTimeout = errors.New("kvstore: storage did not answer in time")

	// ErrAbandoned is an ErrTimeout after which something outside this process's
	// control, a call into the kernel or a daemon, may still write into the shard's
	// buffer or read from it. Use that memory again after a Close that returned no
	// error; after one that did, never: leave it mapped, and to nobody else.
	ErrAbandoned = errors.New("kvstore: storage may still use the buffer")

	// ErrClosed: the store is closed.
	ErrClosed = errors.New("kvstore: closed")
)

// CorruptError is an ErrCorrupt, and so an ErrMiss, that says what was found.
type CorruptError struct {
	Key   Key
	Where string // a file, a page, an offset
	What  string
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("kvstore: block %s in %s: %s", e.Key, e.Where, e.What)
}

// Is makes it both.
func (e *CorruptError) Is(target error) bool { return target == ErrCorrupt || target == ErrMiss }

// BatchError is the caller's mistake: a batch that was refused as a whole.
type BatchError struct {
	Shard  int // its place in the batch, -1 where it is about all of it
	Key    Key
	Reason string
}

func (e *BatchError) Error() string {
	if e.Shard < 0 {
		return "kvstore: batch refused: " + e.Reason
	}
	return fmt.Sprintf("kvstore: batch refused: shard %d, of block %s: %s", e.Shard, e.Key, e.Reason)
}

// abandoned is ErrAbandoned and ErrTimeout in one.
type abandoned struct{ what string }

func (e *abandoned) Error() string { return ErrAbandoned.Error() + ": " + e.what }
func (e *abandoned) Is(target error) bool {
	return target == ErrAbandoned || target == ErrTimeout
}

// Abandoned is the ErrAbandoned that says what did not answer.
func Abandoned(what string) error { return &abandoned{what} }
