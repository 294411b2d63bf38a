package posix

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/invariants"
)

// file is a transfer.File. A call that hangs may outlive Close, and by then the number of
// a closed descriptor could be that of another file. So the descriptor stays open until
// the last call has returned.
type file struct {
	f      *os.File
	fd     int
	direct bool       // fd bypasses the page cache
	device DeviceFile // nil without a DeviceMover

	mu     sync.Mutex
	users  int
	closed bool
	second *os.File // uses the page cache; opened when it is first needed
}

func newFile(f *os.File, direct bool) (*file, error) {
	own := &file{f: f, fd: int(f.Fd())}
	flags, err := unix.FcntlInt(uintptr(own.fd), unix.F_GETFL, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", f.Name(), err)
	}
	own.direct = flags&unix.O_DIRECT != 0
	if direct && !own.direct {
		_, err := unix.FcntlInt(uintptr(own.fd), unix.F_SETFL, flags|unix.O_DIRECT)
		own.direct = err == nil // EINVAL: the file system has no direct I/O
	}
	return own, nil
}

// use keeps the descriptor open until done is called.
func (f *file) use() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return fmt.Errorf("%s: %w", f.f.Name(), os.ErrClosed)
	}
	f.users++
	return nil
}

func (f *file) done() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.users--
	invariants.Check(f.users >= 0, "%s has %d users", f.f.Name(), f.users)
	if f.closed && f.users == 0 {
		_ = f.closeAll() // nobody is left to report an error to
	}
}

func (f *file) closeAll() error {
	var err error
	if f.device != nil {
		err = f.device.Close()
	}
	err = errors.Join(err, f.f.Close())
	if f.second != nil {
		err = errors.Join(err, f.second.Close())
	}
	return err
}

// Close closes the file when its last use ends.
func (f *file) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return fmt.Errorf("close %s: %w", f.f.Name(), os.ErrClosed)
	}
	f.closed = true
	if f.users > 0 {
		return nil
	}
	return f.closeAll()
}

// Size returns the file's length.
func (f *file) Size() (int64, error) {
	if err := f.use(); err != nil {
		return 0, err
	}
	defer f.done()
	var st unix.Stat_t
	if err := uninterrupted(func() error { return unix.Fstat(f.fd, &st) }); err != nil {
		return 0, &os.PathError{Op: "stat", Path: f.f.Name(), Err: err}
	}
	return st.Size, nil
}

// buffered returns a descriptor that uses the page cache.
func (f *file) buffered() (fd int, err error) {
	if !f.direct {
		return f.fd, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.second == nil {
		flags, err := unix.FcntlInt(uintptr(f.fd), unix.F_GETFL, 0)
		if err != nil {
			return 0, err
		}
		// Through /proc it is the same file, even if its name is gone.
		fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", f.fd), flags&unix.O_ACCMODE|unix.O_CLOEXEC, 0)
		if err != nil {
			return 0, fmt.Errorf("open again without O_DIRECT: %w", err)
		}
		f.second = os.NewFile(uintptr(fd), f.f.Name())
	}
	return int(f.second.Fd()), nil
}

// uninterrupted repeats a call that a signal interrupted.
func uninterrupted(call func() error) error {
	for {
		if err := call(); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}
