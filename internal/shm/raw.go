package shm

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// RawPread is Pread without announcing the call to Go's scheduler, as a C
// program would make it. Announced, a call of more than 20 µs has the runtime's
// monitor at work and its goroutine on another thread afterwards: on two cores
// that took a quarter of the copying (2-core EPYC, 2026-11). But the rest of the
// program lacks a processor for as long as the call lasts, and a garbage
// collection waits for it. So this is for calls that only copy: of files in
// memory, a megabyte at a time, or on a thread of its own for measuring.
func (w Window) RawPread(fd int, off int64) (int64, error) {
	return w.rawCall(syscall.SYS_PREAD64, fd, off)
}

// RawPwrite is Pwrite in the same way.
func (w Window) RawPwrite(fd int, off int64) (int64, error) {
	return w.rawCall(syscall.SYS_PWRITE64, fd, off)
}

// RawPreadCached reads what the page cache has, in the same way, and never waits
// for the device (preadv2 with RWF_NOWAIT). EAGAIN: the first byte is not there;
// EOPNOTSUPP: the file system cannot tell. A count below Len means only that the
// rest is not cached or not there.
func (w Window) RawPreadCached(fd int, off int64) (int64, error) {
	iov := unix.Iovec{Base: unsafe.SliceData(w.b)}
	iov.SetLen(min(len(w.b), maxIOBytes))
	n, _, errno := syscall.RawSyscall6(unix.SYS_PREADV2, uintptr(fd), uintptr(unsafe.Pointer(&iov)), 1, uintptr(off), 0, unix.RWF_NOWAIT)
	if errno != 0 {
		return 0, errno
	}
	return int64(n), nil
}

func (w Window) rawCall(trap uintptr, fd int, off int64) (int64, error) {
	n, _, errno := syscall.RawSyscall6(trap, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(w.b))),
		uintptr(min(len(w.b), maxIOBytes)), uintptr(off), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int64(n), nil
}
