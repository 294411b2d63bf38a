package ringio

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/kv3fs/kv3fs/internal/invariants"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
	"github.com/kv3fs/kv3fs/usrbio"
)

// move is an op that is under way, in one piece or several. The lock of its direction
// guards it.
type move struct {
	op    transfer.Op
	ctx   context.Context // that of the call to Do, which returns before the move ends
	file  *file
	iov   *usrbio.Iov // of registered memory that holds the buffer; nil: it is staged
	iovAt int64

	queued  bool      // in the direction's queue
	since   time.Time // when it came, or its latest piece was cut
	next    int       // bytes of the buffer that pieces were cut for
	pending int       // pieces under way; the move is settled when it is 0 and not queued
	end     int       // where the file ends, by the shortest read so far
	err     error
	told    bool // Done was called
}

// over reports whether no more pieces are to be cut.
func (m *move) over() bool { return m.err != nil || m.next >= m.end }

// fail notes the first error. One that says that memory is abandoned replaces any other.
func (m *move) fail(err error) {
	if m.err == nil || errors.Is(err, kv.ErrAbandoned) {
		m.err = err
	}
}

// arrived notes that got of the n bytes of a piece were moved.
func (m *move) arrived(from, n, got int) {
	switch {
	case got == n:
	case m.op.Write: // a ring writes everything or fails
		m.fail(m.fileError(io.ErrShortWrite))
	default:
		m.end = min(m.end, from+got)
	}
}

// settle calls Done. It is called once, without the direction's lock.
func (m *move) settle() {
	invariants.Check(!m.told, "a move of %d bytes at %d is completed twice", len(m.op.Buf), m.op.Offset)
	m.told = true
	if m.err != nil {
		m.op.Done(0, m.err)
		return
	}
	m.op.Done(m.end, nil)
}

func settleAll(due []*move) {
	for _, m := range due {
		m.settle()
	}
}
