package shm

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// CachedPages returns how many pages of [off, off+n) of a file are in the page cache.
// Asking starts no readahead, unlike a read with RWF_NOWAIT. off is a multiple of the page
// size.
//
// Where the kernel has no cachestat(2) (before Linux 6.5), or refuses it to this process,
// the file is mapped for mincore(2). To a process that may not write the file, mincore
// reports all pages as cached.
func CachedPages(fd int, off, n int64) (int, error) {
	var st unix.Cachestat_t
	err := unix.Cachestat(uint(fd), &unix.CachestatRange{Off: uint64(off), Len: uint64(n)}, &st, 0)
	switch err {
	case nil:
		return int(st.Cache), nil
	case unix.ENOSYS, unix.EPERM:
		return residentPages(fd, off, n)
	}
	return 0, err
}

// residentPages does the same by mincore. No page is touched, so no other thread's
// address translation suffers.
func residentPages(fd int, off, n int64) (int, error) {
	at, _, errno := unix.Syscall6(unix.SYS_MMAP, 0, uintptr(n), unix.PROT_NONE, unix.MAP_SHARED, uintptr(fd), uintptr(off))
	if errno != 0 {
		return 0, errno
	}
	defer func() { _, _, _ = unix.Syscall(unix.SYS_MUNMAP, at, uintptr(n), 0) }()
	page := int64(os.Getpagesize())
	resident := make([]byte, (n+page-1)/page)
	if _, _, errno := unix.Syscall(unix.SYS_MINCORE, at, uintptr(n), uintptr(unsafe.Pointer(unsafe.SliceData(resident)))); errno != 0 {
		return 0, errno
	}
	pages := 0
	for _, r := range resident {
		pages += int(r & 1)
	}
	return pages, nil
}
