// Package transfer moves bytes between files and memory for the stores that keep
// blocks in files: by system calls, or through the rings of a 3FS.
package transfer

import (
	"context"
	"os"
)

// Op is one move of len(Buf) bytes between Buf and File at Offset.
type Op struct {
	File   File
	Offset int64
	Buf    []byte
	Write  bool

	// Piece, which may be nil, is for who wants to look at the bytes while the
	// processor has them at hand. An engine that can calls it with all that is moved,
	// in order and before Done, from one goroutine; another one never does. After a
	// kv.ErrAbandoned it may still be called.
	Piece func(piece []byte)

	// Done is called exactly once, from any goroutine, with the bytes that were
	// moved: fewer than len(Buf) without an error only where the file ends. The
	// buffer is the caller's again, unless the error is a kv.ErrAbandoned. Done must
	// be short and must not wait, so it must not call Do, which does while the queue is
	// full.
	Done func(n int, err error)
}

// Engine moves bytes. Any number of goroutines may call its methods.
//
// Errors are those of the storage, or: kv.ErrTimeout for a move that did not end
// in the engine's time and whose buffer is free nevertheless, kv.ErrAbandoned for
// one whose buffer is not, kv.ErrClosed after Close, and the context's own.
type Engine interface {
	// Open takes f over for moves; on an error it stays the caller's. Ops of a file may
	// run at once and in any order.
	Open(f *os.File) (File, error)

	// Do begins the moves in the order given and returns when all are begun or
	// queued; it waits while the queue is full. Moves that are not begun when ctx
	// ends get its error, also after Do has returned. Every op's Done is called,
	// whatever happens.
	Do(ctx context.Context, ops []Op)

	// Register is kv.Registrar's: buffers inside mem are used in place from now on.
	// An engine that uses every buffer in place does nothing.
	Register(name string, mem []byte) error

	// Close waits for what has begun, no longer than the engine's time; what has not
	// gets kv.ErrClosed. Files are closed before it.
	Close() error
}

// File is a file that ops may name.
type File interface {
	// Size asks the file system for the file's length.
	Size() (int64, error)

	// Close gives it back, once no op names it any more.
	Close() error
}
