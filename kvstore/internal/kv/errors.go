package kv

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"
)

var (
	// ErrMiss means that the store does not have the block. Compute it.
	ErrMiss = errors.New("kvstore: no such block")

	// ErrCorrupt means that what is stored under the key is not the block: its identity
	// or a checksum is wrong, or it is cut short. It is also an ErrMiss, and the damaged
	// block is out of the way of the next Save.
	ErrCorrupt = errors.New("kvstore: block damaged")

	// ErrFull means that there is no space, and that nothing freed any within the
	// store's timeout. The block is not stored.
	ErrFull = errors.New("kvstore: full")

	// ErrTimeout means that the storage did not answer within the store's timeout.
	ErrTimeout = errors.New("kvstore: storage did not answer in time")

	// ErrAbandoned is an ErrTimeout after which something outside this process's
	// control, a call into the kernel or a daemon, may still access the shard's buffer.
	// Use that memory again only after a Close that returned no error. If Close returns
	// an error, never use it again: leave it mapped and give it to nothing else.
	ErrAbandoned = errors.New("kvstore: storage may still use the buffer")

	// ErrConflict means that shards of the block came in several batches, and with
	// different bytes: two writers save it at the same time. The block is not stored. Save
	// all of it in one batch.
	ErrConflict = errors.New("kvstore: two writers of a block differ")

	// ErrClosed means that the store is closed.
	ErrClosed = errors.New("kvstore: closed")

	// ErrPending means that shards of a layer are not settled yet.
	ErrPending = errors.New("kvstore: layer has not landed")
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

// Is reports true for both ErrCorrupt and ErrMiss, so callers may test for either.
func (e *CorruptError) Is(target error) bool { return target == ErrCorrupt || target == ErrMiss }

// BatchError is the caller's mistake: the whole batch was refused.
type BatchError struct {
	Shard  int // its place in the batch; -1 where the mistake is about the whole batch
	Key    Key
	Reason string
}

func (e *BatchError) Error() string {
	if e.Shard < 0 {
		return "kvstore: batch refused: " + e.Reason
	}
	return fmt.Sprintf("kvstore: batch refused: shard %d, of block %s: %s", e.Shard, e.Key, e.Reason)
}

// CheckFound returns a BatchError unless found has one place for each key. Every Lookup
// begins with it.
func CheckFound(keys []Key, found []bool) error {
	if len(found) != len(keys) {
		return &BatchError{Shard: -1, Reason: fmt.Sprintf("found has %d places for %d keys; make it as long as keys", len(found), len(keys))}
	}
	return nil
}

// unreadables are what a disk or a file system answers that cannot read what it is to read.
var unreadables = []syscall.Errno{
	syscall.EIO,
	syscall.EBADMSG, syscall.EUCLEAN, // a file system: a checksum of its own is wrong, its structure is damaged
	syscall.ENODATA, syscall.EILSEQ, syscall.EREMOTEIO, // a disk: bad sector, wrong protection data, failed target
}

// IsUnreadable reports whether an error says that the storage cannot read something: it is lost, or it is out of
// reach for a while. A file system whose servers are away answers EIO as a broken disk does. So such an error proves
// nothing about what is there: do without it for UnreadableFor, and neither delete it nor remember it for longer.
func IsUnreadable(err error) bool { return isOneOf(err, unreadables) }

// UnreadableFor is how long something that could not be read is taken for missing.
const UnreadableFor = time.Minute

// aways are what a file system answers that has lost its servers, or a mount that has lost its daemon.
var aways = []syscall.Errno{
	syscall.ETIMEDOUT, syscall.ENOTCONN, syscall.ESHUTDOWN, syscall.ECONNABORTED, syscall.ECONNREFUSED, syscall.ECONNRESET,
	syscall.EHOSTDOWN, syscall.EHOSTUNREACH, syscall.ENETDOWN, syscall.ENETUNREACH,
}

// IsAway reports whether an error says that the storage does not answer, or is not connected, so that other calls
// will fail in the same way for a while.
func IsAway(err error) bool { return errors.Is(err, ErrTimeout) || isOneOf(err, aways) }

func isOneOf(err error, errnos []syscall.Errno) bool {
	return slices.ContainsFunc(errnos, func(e syscall.Errno) bool { return errors.Is(err, e) })
}

// abandoned is ErrAbandoned and ErrTimeout in one.
type abandoned struct{ what string }

func (e *abandoned) Error() string { return ErrAbandoned.Error() + ": " + e.what }

func (e *abandoned) Is(target error) bool {
	return target == ErrAbandoned || target == ErrTimeout
}

// Abandoned returns an ErrAbandoned that says what did not answer.
func Abandoned(what string) error { return &abandoned{what} }
