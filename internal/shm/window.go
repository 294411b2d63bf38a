package shm

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Window is a range of payload in a client's memory. Only system calls access it:
// they return EFAULT, where an access from Go might fault at any time. The race
// detector does not see them: a client may ask for overlapping windows, which harms
// only that client.
type Window struct{ b []byte }

// OwnWindow returns a window over memory of this process.
func OwnWindow(b []byte) Window { return Window{b} }

// Len returns the window's size in bytes.
func (w Window) Len() int64 { return int64(len(w.b)) }

// First returns the window's first n bytes, or all of it.
func (w Window) First(n int64) Window { return Window{w.b[:min(n, int64(len(w.b)))]} }

// From returns the window without its first n bytes.
func (w Window) From(n int64) Window { return Window{w.b[n:]} }

// maxIOBytes is how much the kernel moves in one call (MAX_RW_COUNT).
const maxIOBytes = 0x7ffff000

// Pread calls pread(2) into the window, for as much as one call takes.
func (w Window) Pread(fd int, off int64) (int64, error) {
	return w.call(unix.SYS_PREAD64, fd, off)
}

// Pwrite calls pwrite(2) out of the window, for as much as one call takes.
func (w Window) Pwrite(fd int, off int64) (int64, error) {
	return w.call(unix.SYS_PWRITE64, fd, off)
}

func (w Window) call(trap uintptr, fd int, off int64) (int64, error) {
	for {
		n, _, errno := unix.Syscall6(trap, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(w.b))),
			uintptr(min(len(w.b), maxIOBytes)), uintptr(off), 0, 0)
		switch errno {
		case 0:
			return int64(n), nil
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}
