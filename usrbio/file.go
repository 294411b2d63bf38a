package usrbio

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/wire"
)

// File is a file that requests may name. It has its own descriptor, so the os.File
// it was made from may be closed; renaming or removing the file does not disturb it.
type File struct {
	m       *Mount
	ino     uint64
	access  int // O_RDONLY, O_WRONLY or O_RDWR, as at registration
	fd      int
	closed  atomic.Bool
	closing once
}

// Register makes an open regular file of this mount known to rings. A file may be
// registered more than once. The error is ErrNotMounted for a file that is not on
// a 3FS, EXDEV for one on another mount, EINVAL for one that is not regular, and
// ctx.Err() or, after 30 seconds, ETIMEDOUT if the daemon does not answer.
func (m *Mount) Register(ctx context.Context, f *os.File) (*File, error) {
	op := "register " + f.Name()
	r := &File{m: m, fd: -1}
	err := m.registrar.call(ctx, func() error { return r.open(f) }, func() { unix.Close(r.fd) })
	switch {
	case err == ErrNotMounted:
		return nil, fmt.Errorf("usrbio: %s: %w", op, err)
	case err != nil:
		return nil, explain(op, err)
	}
	if err := adopt(m, &m.files, r); err != nil {
		unix.Close(r.fd)
		return nil, err
	}
	return r, nil
}

// open queries the file and duplicates its descriptor.
func (r *File) open(f *os.File) error {
	if !hasMagic(f) {
		return ErrNotMounted
	}
	return control(f, func(fd int) error {
		var st unix.Statx_t
		if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_INO|unix.STATX_TYPE, &st); err != nil {
			return err
		}
		if unix.Mkdev(st.Dev_major, st.Dev_minor) != r.m.dev {
			return syscall.EXDEV
		}
		if st.Mode&unix.S_IFMT != unix.S_IFREG || wire.IsVirtual(st.Ino) {
			return syscall.EINVAL
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
		if err != nil {
			return err
		}
		r.ino, r.access = st.Ino, flags&unix.O_ACCMODE
		r.fd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		return err
	})
}

// Ino returns the inode number by which the daemon knows the file.
func (f *File) Ino() uint64 { return f.ino }

// Close ends the registration. Requests still in flight may fail with EBADF.
// close(2) waits for the daemon; if the daemon does not answer in time (see
// Mount.Close), the descriptor is closed later. Closing twice is harmless.
func (f *File) Close(ctx context.Context) error {
	return f.closing.do(ctx, func() error {
		f.closed.Store(true)
		err := f.m.registrar.finish(ctx, func() error { return unix.Close(f.fd) })
		disown(f.m, &f.m.files, f) // last: Mount.Close must not overtake this one
		// EIO: the daemon has cut its clients off. Nothing was written through the descriptor.
		if err != nil && !daemonGone(err) && !errors.Is(err, unix.EIO) {
			return fmt.Errorf("usrbio: close file: %w", err)
		}
		return nil
	})
}
