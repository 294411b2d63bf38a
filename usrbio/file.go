package usrbio

import (
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/wire"
)

// File is a file that requests may name. It holds a descriptor of its own, so
// that the os.File it was made from can be closed; a rename or a removal does
// not disturb it.
type File struct {
	m      *Mount
	ino    uint64
	access int // O_RDONLY, O_WRONLY or O_RDWR, as at registration
	fd     int
	closed atomic.Bool
	once   sync.Once
}

// Register makes an open regular file of this mount known to rings. It may be
// registered more than once. The error is ErrNotMounted for a file that is on
// no 3FS, EXDEV for one of another mount, EINVAL for what is not a regular file.
func (m *Mount) Register(f *os.File) (*File, error) {
	op := "register " + f.Name()
	if !IsHF3FS(f) {
		return nil, fmt.Errorf("usrbio: %s: %w", op, ErrNotMounted)
	}
	r := &File{m: m, fd: -1}
	err := control(f, func(fd int) error {
		var st unix.Statx_t
		if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_INO|unix.STATX_TYPE, &st); err != nil {
			return err
		}
		if unix.Mkdev(st.Dev_major, st.Dev_minor) != m.dev {
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
	if err != nil {
		return nil, explain(op, err)
	}
	if err := adopt(m, &m.files, r); err != nil {
		unix.Close(r.fd)
		return nil, err
	}
	return r, nil
}

// Ino is the inode number by which the daemon knows the file.
func (f *File) Ino() uint64 { return f.ino }

// Close ends the registration. Requests still in flight may fail with EBADF.
// Closing twice is harmless.
func (f *File) Close() (err error) {
	f.once.Do(func() {
		f.closed.Store(true)
		disown(f.m, &f.m.files, f)
		if err = unix.Close(f.fd); err != nil && !daemonGone(err) {
			err = fmt.Errorf("usrbio: close file: %w", err)
			return
		}
		err = nil
	})
	return err
}
