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

// sectorBytes is the alignment of direct I/O. Devices with smaller sectors would accept
// less; none in use needs more.
const sectorBytes = 4096

// pieceBytes is how much is moved through the page cache between two calls of Piece. That
// much is still in the processor's cache then, and an extra system call costs next to
// nothing.
const pieceBytes = 256 << 10

// move does one op and returns how many bytes were moved.
func (e *engine) move(op transfer.Op) (int, error) {
	f := op.File.(*file)
	if err := f.use(); err != nil {
		return 0, err
	}
	defer f.done()
	m := mover{op: op, f: f, e: e}
	do := m.all
	if op.Device != nil {
		do = m.device
	}
	n, err := do()
	if err != nil {
		verb := "read"
		if op.Write {
			verb = "write"
		}
		err = &os.PathError{Op: verb, Path: f.f.Name(), Err: err}
	}
	return n, err
}

// mover is a move that is under way.
type mover struct {
	op transfer.Op
	f  *file
	e  *engine
}

// device moves what is in a device's memory.
func (m *mover) device() (int, error) {
	if m.f.device == nil {
		return 0, syscall.ENOTSUP
	}
	return m.f.device.Move(m.op)
}

// all moves everything: directly what is aligned in the file, and through the page cache
// the rest at the end.
func (m *mover) all() (n int, err error) {
	if m.f.direct && m.op.Offset%sectorBytes == 0 {
		body := m.op.Buf[:len(m.op.Buf)/sectorBytes*sectorBytes]
		if shm.Aligned(m.op.Buf, sectorBytes) {
			n, err = m.loop(m.f.fd, body, m.op.Offset)
		} else {
			n, err = m.staged(body)
		}
		// EINVAL: the file system accepts the flag, and then wants more than we give it.
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

// staged moves body through memory that is aligned.
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

// loop moves buf with as many calls as it takes. It stops early without an error only at
// the end of a file that is read.
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
		// A direct read stops between sectors only at the end of the file. Another one
		// from there would fail.
		if direct && moved%sectorBytes != 0 && !m.op.Write {
			return n, nil
		}
	}
	return n, nil
}
