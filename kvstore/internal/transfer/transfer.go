// Package transfer moves bytes between files and memory for the stores that keep blocks
// in files: by system calls, or through the rings of a 3FS. The stores write their small
// files and headers themselves: segment headers and indexes, checksum logs, the label of
// a page file.
package transfer

import (
	"context"
	"os"

	"github.com/kv3fs/kv3fs/kvstore/device"
)

// Op is one move of len(Buf) bytes between Buf and File at Offset.
type Op struct {
	File   File
	Offset int64
	Buf    []byte
	Write  bool

	// Device, unless it is nil, is the memory instead of Buf: Bytes of a device's, for
	// engines that move these.
	Device *device.Place
	Bytes  int

	// Ahead makes a write overtake those that wait: it is short and completes what others
	// have begun. Reads overtake writes in any case.
	Ahead bool

	// Piece, which may be nil, is called with the bytes that are moved while they are in
	// the processor's cache. An engine either calls it for all of them, in order, before
	// Done and from one goroutine, or never. After a kv.ErrAbandoned it may still be
	// called.
	Piece func(piece []byte)

	// Done is called exactly once, from any goroutine, with how many bytes were moved:
	// fewer than len(Buf) without an error only at the end of the file. The buffer is
	// the caller's again, unless the error is a kv.ErrAbandoned. Done must be short and
	// must not wait, so it must not call Do, which waits while the queue is full.
	Done func(n int, err error)

	// Late, which may be nil, is called when the storage has finished after all with a move
	// that Done was given a kv.ErrAbandoned for. It may never be.
	Late func()
}

// Len returns how many bytes are to be moved.
func (op Op) Len() int {
	if op.Device != nil {
		return op.Bytes
	}
	return len(op.Buf)
}

// Engine moves bytes. Any number of goroutines may call its methods.
//
// Reads overtake the writes that wait, and do not wait for room in the queue of these. An
// engine bounds how many bytes of writes it has under way at once, since a read waits for
// those in the device. Writes keep a share.
//
// Errors are those of the storage, or: kv.ErrTimeout for a move that made no progress within
// the engine's timeout and whose buffer is free nevertheless, kv.ErrAbandoned for one whose
// buffer is not, kv.ErrClosed after Close, and the context's own.
type Engine interface {
	// Open takes f over for moves. On an error f stays the caller's. Ops of a file may run
	// at once and in any order.
	Open(f *os.File) (File, error)

	// Do begins the moves in the order given, reads before writes, and returns when all are begun or queued. It
	// waits while the queue is full. Moves that have not begun when ctx ends fail with
	// its error, also after Do has returned. Every op's Done is called, whatever happens.
	Do(ctx context.Context, ops []Op)

	// Register implements kv.Registrar: buffers inside mem are used in place from now on.
	// An engine that uses every buffer in place does nothing.
	Register(name string, mem []byte) error

	// Close waits for what has begun, at most for the engine's timeout. What has not begun
	// fails with kv.ErrClosed. Close the files first.
	Close() error
}

// File is a file that ops may name.
type File interface {
	// Size returns the file's length, asked of the file system.
	Size() (int64, error)

	// Close closes the file. Call it when no op names the file any more.
	Close() error
}
