package shm

import (
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Dir is the directory of shared memory objects, the only one that glibc's shm_open
// and sem_open use.
const Dir = "/dev/shm"

// Mapping is a shared read-write mapping of an object's first Len bytes.
//
// Any number of goroutines may use it at once. The caller ensures that no method
// runs after Unmap, and counts the users of its windows (see ringserver). It passes
// only offsets that it has checked: one out of range panics.
type Mapping struct {
	data []byte
	fd   int // kept for Remap and Punch; the name may have been removed
}

// Map maps sizeBytes of the object behind fd, which it duplicates. It touches no
// page, so a page and a terabyte cost the same.
func Map(fd int, sizeBytes int64) (*Mapping, error) {
	if sizeBytes <= 0 || int64(int(sizeBytes)) != sizeBytes {
		return nil, syscall.EINVAL
	}
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	data, err := mmap(dup, sizeBytes)
	if err != nil {
		unix.Close(dup)
		return nil, err
	}
	return &Mapping{data: data, fd: dup}, nil
}

// mmap bypasses unix.Mmap, which keeps a table of mappings under one lock: thousands
// of short-lived rings a second would contend for it.
func mmap(fd int, sizeBytes int64) ([]byte, error) {
	addr, _, errno := unix.Syscall6(unix.SYS_MMAP, 0, uintptr(sizeBytes),
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED, uintptr(fd), 0)
	if errno != 0 {
		return nil, errno
	}
	return unsafe.Slice((*byte)(pointer(addr)), sizeBytes), nil
}

// pointer turns an address from mmap into a pointer. The memory is not Go's, so the
// collector does not move it; the indirection keeps vet from warning that it might.
func pointer(addr uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&addr)) }

// Len returns the mapped size in bytes.
func (m *Mapping) Len() int64 { return int64(len(m.data)) }

// Remap maps the same object again at another address.
func (m *Mapping) Remap() (*Mapping, error) { return Map(m.fd, m.Len()) }

// windowBytes is how much is unmapped or forgotten by one call: meanwhile the process can
// map nothing, and touch no page for the first time.
const windowBytes = 256 << 20

// Unmap ends the mapping. It takes a second for every 64 GiB of touched pages.
func (m *Mapping) Unmap() {
	m.windows(func(at, size uintptr) { _, _, _ = unix.Syscall(unix.SYS_MUNMAP, at, size, 0) })
	unix.Close(m.fd)
	m.data, m.fd = nil, -1
}

// windows calls fn for all of the mapping, windowBytes at a time.
func (m *Mapping) windows(fn func(at, size uintptr)) {
	for off := int64(0); off < m.Len(); off += windowBytes {
		fn(uintptr(unsafe.Pointer(&m.data[off])), uintptr(min(m.Len()-off, windowBytes)))
	}
}

// Window returns the byte range [off, off+n).
func (m *Mapping) Window(off, n int64) Window { return Window{m.data[off : off+n : off+n]} }

// ForgetPages drops this process's page-table entries; the object keeps its bytes.
// This reduces the resident size after traffic through a large iov. It may run while
// windows are in use.
func (m *Mapping) ForgetPages() {
	m.windows(func(at, size uintptr) { _, _, _ = unix.Syscall(unix.SYS_MADVISE, at, size, unix.MADV_DONTNEED) })
}

// Detach replaces the pages of [off, off+n) with a private copy. System calls that
// still run on a Window of them use the copy from now on and never reach the object
// again. That also holds for other windows on the first and the last page: the caller
// must repeat their work in another mapping.
func (m *Mapping) Detach(off, n int64) error {
	page := int64(unix.Getpagesize())
	start := off &^ (page - 1)
	size := (off + n - start + page - 1) &^ (page - 1)
	anon, _, errno := unix.Syscall6(unix.SYS_MMAP, 0, uintptr(size),
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, ^uintptr(0), 0)
	if errno != 0 {
		return errno
	}
	// pread, not copy, because the object may have been shrunk meanwhile.
	_, _ = unix.Pread(m.fd, unsafe.Slice((*byte)(pointer(anon)), size), start)
	at := uintptr(unsafe.Pointer(&m.data[0])) + uintptr(start)
	_, _, errno = unix.Syscall6(unix.SYS_MREMAP, anon, uintptr(size), uintptr(size),
		unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, at, 0)
	if errno != 0 {
		_, _, _ = unix.Syscall(unix.SYS_MUNMAP, anon, uintptr(size), 0)
		return errno
	}
	return nil
}

// Punch removes the whole pages inside [off, off+n) from the object, which reads as
// zeros there afterwards. Pages that a device still writes to by DMA no longer belong
// to the object, so late data does not reach it.
func (m *Mapping) Punch(off, n int64) error {
	page := int64(unix.Getpagesize())
	start := (off + page - 1) &^ (page - 1)
	end := (off + n) &^ (page - 1)
	if end <= start {
		return nil
	}
	return unix.Fallocate(m.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, start, end-start)
}

// LoadInt32 reads a marker with acquire order: what the peer wrote before it stored
// the marker is visible afterwards. off must be a multiple of 4.
func (m *Mapping) LoadInt32(off int64) int32 { return atomic.LoadInt32(m.int32At(off)) }

// StoreInt32 writes a marker with release order: it publishes all earlier writes.
func (m *Mapping) StoreInt32(off int64, v int32) { atomic.StoreInt32(m.int32At(off), v) }

func (m *Mapping) int32At(off int64) *int32 {
	_ = m.data[off+3]
	return (*int32)(unsafe.Pointer(&m.data[off]))
}

// CopyOut copies len(dst) bytes at off to dst and reads each of them once.
func (m *Mapping) CopyOut(dst []byte, off int64) { copy(dst, m.data[off:off+int64(len(dst))]) }

// CopyIn copies src to the bytes at off.
func (m *Mapping) CopyIn(off int64, src []byte) { copy(m.data[off:off+int64(len(src))], src) }

// Sem returns the semaphore at off, which must be a multiple of 8.
func (m *Mapping) Sem(off int64) Sem {
	_ = m.data[off+semBytes-1]
	return Sem{(*sem)(unsafe.Pointer(&m.data[off]))}
}

// Shrink truncates the object itself to sizeBytes, for tests of hostile clients.
func (m *Mapping) Shrink(sizeBytes int64) error { return unix.Ftruncate(m.fd, sizeBytes) }
