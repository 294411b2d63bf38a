package posix

import (
	"errors"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
)

// sectorBytes is the alignment that direct I/O gets. Devices with smaller sectors
// would take less; none in use wants more.
const sectorBytes = 4096

// pieceBytes is how much goes through the page cache between two looks at it: what
// was copied is still in the cache of the processor, and a call costs next to nothing.
const pieceBytes = 256 << 10

// move does one op and says how many bytes were moved.
func (e *engine) move(op transfer.Op) (int, error) {
	f := op.File.(*file)
	if err := f.use(); err != nil {
		return 0, err
	}
	defer f.done()
	m := mover{op: op, f: f, e: e}
	n, err := m.all()
	if err != nil {
		verb := "read"
		if op.Write {
			verb = "write"
		}
		err = &os.PathError{Op: verb, Path: f.f.Name(), Err: err}
	}
	return n, err
}

// mover is a move on its way.
type mover struct {
	op transfer.Op
	f  *file
	e  *engine
}

// all moves everything: what is aligned in the file directly, and the rest, which
// is at the end, through the page cache.
func (m *mover) all() (n int, err error) {
	if m.f.direct && m.op.Offset%sectorBytes == 0 {
		body := m.op.Buf[:len(m.op.Buf)/sectorBytes*sectorBytes]
		if shm.Aligned(m.op.Buf, sectorBytes) {
			n, err = m.loop(m.f.fd, body, m.op.Offset)
		} else {
			n, err = m.staged(body)
		}
		// EINVAL: a file system that takes the flag and then wants more than we give.
		if err != nil && !errors.Is(err, syscall.EINVAL) || err == nil && n < len(body) {
			return n, err
		}
	}
	if n == len(m.op.Buf) {
		return n, nil
	}
	fd, err := m.f.buffered()
	if err != nil {
		return n, err
	}
	rest, err := m.loop(fd, m.op.Buf[n:], m.op.Offset+int64(n))
	return n + rest, err
}

// staged moves body by way of memory that is aligned.
func (m *mover) staged(body []byte) (n int, err error) {
	stage, err := m.e.staging.take()
	if err != nil {
		return 0, err
	}
	defer m.e.staging.give(stage)
	for n < len(body) {
		part := stage[:min(len(body)-n, len(stage))]
		if m.op.Write {
			copy(part, body[n:])
		}
		moved, err := m.loop(m.f.fd, part, m.op.Offset+int64(n))
		if !m.op.Write {
			copy(body[n:], part[:moved])
		}
		n += moved
		if err != nil || moved < len(part) {
			return n, err
		}
	}
	return n, nil
}

// loop moves buf by as many calls as it takes. It ends early, without an error,
// only where a file that is read does.
func (m *mover) loop(fd int, buf []byte, offset int64) (n int, err error) {
	direct := fd == m.f.fd && m.f.direct
	for n < len(buf) {
		part := buf[n:]
		if m.op.Piece != nil && !direct {
			part = part[:min(len(part), pieceBytes)]
		}
		var moved int
		err := uninterrupted(func() (err error) {
			if m.op.Write {
				moved, err = unix.Pwrite(fd, part, offset+int64(n))
			} else {
				moved, err = unix.Pread(fd, part, offset+int64(n))
			}
			return err
		})
		switch {
		case err != nil:
			return n, err
		case moved == 0 && m.op.Write:
			return n, io.ErrShortWrite
		case moved == 0:
			return n, nil
		}
		if m.op.Piece != nil {
			m.op.Piece(part[:moved])
		}
		n += moved
		// Only the end of the file stops a direct read between sectors, and from
		// there another one would be refused.
		if direct && moved%sectorBytes != 0 && !m.op.Write {
			return n, nil
		}
	}
	return n, nil
}
