package ringio

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
	"github.com/kv3fs/kv3fs/kvstore/kv"
	"github.com/kv3fs/kv3fs/usrbio"
)

// move is an op on its way, in one piece or several. It belongs to its lane, whose
// lock guards it.
type move struct {
	op    transfer.Op
	ctx   context.Context
	file  *file
	iov   *usrbio.Iov // of registered memory that holds the buffer; nil: it is staged
	iovAt int64

	queued  bool      // in the lane's row
	since   time.Time // when it came, or its latest piece was cut
	next    int       // bytes of the buffer that pieces were cut for
	pending int       // pieces on their way
	end     int       // where the file ended: the least that a short read shows
	err     error
}

// over tells that no more pieces are to be cut.
func (m *move) over() bool { return m.err != nil || m.next >= m.end }

// fail notes the first error; that memory is abandoned goes before all others.
func (m *move) fail(err error) {
	if m.err == nil || errors.Is(err, kv.ErrAbandoned) {
		m.err = err
	}
}

// arrived notes how much of a piece was moved.
func (m *move) arrived(from, n, got int) {
	switch {
	case got == n:
	case m.op.Write: // a ring writes all or fails
		m.fail(m.fileError(io.ErrShortWrite))
	default:
		m.end = min(m.end, from+got)
	}
}

// settle is called once, without the lane's lock.
func (m *move) settle() {
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
