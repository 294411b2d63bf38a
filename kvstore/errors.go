package kvstore

import (
	"errors"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// The errors of shards and calls. [Store] says what each obliges the caller to do.
var (
	// ErrMiss means that the store does not have the block. Compute it.
	ErrMiss = kv.ErrMiss

	// ErrCorrupt means that what is stored under the key is not the block: its identity
	// or a checksum is wrong, or it is cut short. It is also an ErrMiss, and the damaged
	// block is out of the way of the next Save. See [CorruptError].
	ErrCorrupt = kv.ErrCorrupt

	// ErrFull means that there is no space, and that nothing freed any within the
	// timeout. The block is not stored.
	ErrFull = kv.ErrFull

	// ErrTimeout means that the storage did not answer within [Config.Timeout].
	ErrTimeout = kv.ErrTimeout

	// ErrAbandoned is an ErrTimeout after which something outside this process's
	// control, a call into the kernel or a daemon, may still access the shard's buffer.
	// Use that memory again only after a Close that returned no error. If Close returns
	// an error, never use it again: leave it mapped and give it to nothing else.
	ErrAbandoned = kv.ErrAbandoned

	// ErrConflict means that shards of the block came in several batches, and with
	// different bytes: two writers save it at the same time. The block is not stored. Save
	// all of it in one batch.
	ErrConflict = kv.ErrConflict

	// ErrClosed means that the store is closed.
	ErrClosed = kv.ErrClosed

	// ErrPending means that a layer has not landed yet: see [Task.LandedErr].
	ErrPending = kv.ErrPending
)

// CorruptError is an [ErrCorrupt], and so an [ErrMiss], that says what was found.
type CorruptError struct {
	Key   Key
	Where string // a file, a page, an offset
	What  string
}

func (e *CorruptError) Error() string { return (*kv.CorruptError)(e).Error() }

// Is reports true for both [ErrCorrupt] and [ErrMiss], so callers may test for either.
func (e *CorruptError) Is(target error) bool { return (*kv.CorruptError)(e).Is(target) }

// BatchError is a mistake in the calling program: a batch that was refused as a whole.
type BatchError struct {
	Shard  int // its place in the batch; -1 where the mistake is about the whole batch
	Key    Key
	Reason string
}

func (e *BatchError) Error() string { return (*kv.BatchError)(e).Error() }

// public converts the types of errors that stores return into those of this package.
func public(err error) error {
	switch e := err.(type) {
	case nil:
		return nil
	case *kv.CorruptError:
		return (*CorruptError)(e)
	case *kv.BatchError:
		return (*BatchError)(e)
	}
	if err == kv.ErrMiss { // by far the most frequent
		return err
	}
	var corrupt *kv.CorruptError
	var batch *kv.BatchError
	if errors.As(err, &corrupt) || errors.As(err, &batch) {
		return wrapped{err}
	}
	return err
}

// wrapped is an error that wraps one of package kv's. It makes errors.As find that as
// an error of this package.
type wrapped struct{ err error }

func (w wrapped) Error() string { return w.err.Error() }
func (w wrapped) Unwrap() error { return w.err }

func (w wrapped) As(target any) bool {
	switch target := target.(type) {
	case **CorruptError:
		var e *kv.CorruptError
		if errors.As(w.err, &e) {
			*target = (*CorruptError)(e)
			return true
		}
	case **BatchError:
		var e *kv.BatchError
		if errors.As(w.err, &e) {
			*target = (*BatchError)(e)
			return true
		}
	}
	return false
}
