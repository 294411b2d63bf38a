package shm

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// RawPread is Pread without announcing the call to Go's scheduler. For an announced
// call of more than 20 µs the runtime's monitor takes the processor away, and the
// goroutine continues on another thread: on two cores that cost a quarter of the copy
// rate (2-core EPYC, 2026-11). But while a raw call lasts, the program has one
// processor less, and a garbage collection waits for it. So use it only for calls that
// just copy: from files in memory, a megabyte at a time, or on a thread of its own in
// a benchmark.
func (w Window) RawPread(fd int, off int64) (int64, error) {
	return w.rawCall(syscall.SYS_PREAD64, fd, off)
}

// RawPwrite is Pwrite without announcing the call, as RawPread.
func (w Window) RawPwrite(fd int, off int64) (int64, error) {
	return w.rawCall(syscall.SYS_PWRITE64, fd, off)
}

// RawPreadCached reads what the page cache has, without announcing the call, and never
// waits for a device (preadv2 with RWF_NOWAIT). But the kernel begins to read ahead what it
// does not find: ask CachedPages first if that is not wanted. EAGAIN: the first byte is not cached.
// EOPNOTSUPP: the file system cannot tell. A count below Len means only that the rest
// is not cached or beyond the end of the file.
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
