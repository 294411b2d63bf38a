package shm

import (
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Dir is where shared memory objects live. glibc's shm_open and sem_open know
// no other place.
const Dir = "/dev/shm"

// Mapping is a shared read-write mapping of an object's first Len bytes.
//
// Any number of goroutines may use it at once. The caller sees to it that no
// method runs after Unmap: whoever hands windows to system calls holds a
// reference of its own (see rings). Offsets are the caller's duty: they come
// from checked values, and one out of range panics.
type Mapping struct {
	data []byte
	fd   int // kept for Remap and Punch; the name may be long gone
}

// Map maps sizeBytes of the object behind fd, which it duplicates. Mapping
// costs the same for a page and for a terabyte: nothing is touched.
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

// mmap bypasses unix.Mmap, whose table of mappings would serialise the creation
// of thousands of short-lived rings a second on one lock.
func mmap(fd int, sizeBytes int64) ([]byte, error) {
	addr, _, errno := unix.Syscall6(unix.SYS_MMAP, 0, uintptr(sizeBytes),
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED, uintptr(fd), 0)
	if errno != 0 {
		return nil, errno
	}
	return unsafe.Slice((*byte)(pointer(addr)), sizeBytes), nil
}

// pointer turns an address from mmap into a pointer. The memory is not Go's, so
// the collector has no say in it; the detour keeps vet from suspecting that it has.
func pointer(addr uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&addr)) }

// Len is the mapped size in bytes.
func (m *Mapping) Len() int64 { return int64(len(m.data)) }

// Remap maps the same object again at another address.
func (m *Mapping) Remap() (*Mapping, error) { return Map(m.fd, m.Len()) }

// Unmap ends the mapping. For one that was touched all over it takes a second
// for every 64 GiB.
func (m *Mapping) Unmap() {
	unix.Syscall(unix.SYS_MUNMAP, uintptr(unsafe.Pointer(&m.data[0])), uintptr(len(m.data)), 0)
	unix.Close(m.fd)
	m.data, m.fd = nil, -1
}

// Window is the byte range [off, off+n).
func (m *Mapping) Window(off, n int64) Window { return Window{m.data[off : off+n : off+n]} }

// ForgetPages drops this process's page-table entries; the object keeps its
// bytes. It gives back the resident size that traffic through a large iov
// costs, and may run while windows are in use.
func (m *Mapping) ForgetPages() {
	unix.Syscall(unix.SYS_MADVISE, uintptr(unsafe.Pointer(&m.data[0])), uintptr(len(m.data)), unix.MADV_DONTNEED)
}

// Detach cuts the pages of [off, off+n) off from the object: system calls still
// running on a Window of them see a private copy from now on, and the object is
// never touched through them again. Neighbours on the outermost two pages are
// cut off too; the caller knows them and repeats their work elsewhere.
func (m *Mapping) Detach(off, n int64) error {
	page := int64(unix.Getpagesize())
	start := off &^ (page - 1)
	size := (off + n - start + page - 1) &^ (page - 1)
	anon, _, errno := unix.Syscall6(unix.SYS_MMAP, 0, uintptr(size),
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, ^uintptr(0), 0)
	if errno != 0 {
		return errno
	}
	// pread and not a copy: the object may have been shrunk meanwhile.
	unix.Pread(m.fd, unsafe.Slice((*byte)(pointer(anon)), size), start)
	at := uintptr(unsafe.Pointer(&m.data[0])) + uintptr(start)
	_, _, errno = unix.Syscall6(unix.SYS_MREMAP, anon, uintptr(size), uintptr(size),
		unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, at, 0)
	if errno != 0 {
		unix.Syscall(unix.SYS_MUNMAP, anon, uintptr(size), 0)
		return errno
	}
	return nil
}

// Punch takes the whole pages inside [off, off+n) out of the object, which
// reads as zeros there afterwards. Pages that a device still writes to by DMA
// are orphaned by it, so that late data lands nowhere.
func (m *Mapping) Punch(off, n int64) error {
	page := int64(unix.Getpagesize())
	start := (off + page - 1) &^ (page - 1)
	end := (off + n) &^ (page - 1)
	if end <= start {
		return nil
	}
	return unix.Fallocate(m.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, start, end-start)
}

// LoadInt32 reads a marker with acquire order: what the other side wrote before
// it stored the marker is visible afterwards. off must be a multiple of 4.
func (m *Mapping) LoadInt32(off int64) int32 { return atomic.LoadInt32(m.int32At(off)) }

// StoreInt32 writes a marker with release order: it publishes what was written before.
func (m *Mapping) StoreInt32(off int64, v int32) { atomic.StoreInt32(m.int32At(off), v) }

// CompareAndSwapInt32 is what a consumer of completions advances its tail with.
func (m *Mapping) CompareAndSwapInt32(off int64, old, new int32) bool {
	return atomic.CompareAndSwapInt32(m.int32At(off), old, new)
}

func (m *Mapping) int32At(off int64) *int32 {
	_ = m.data[off+3]
	return (*int32)(unsafe.Pointer(&m.data[off]))
}

// CopyOut copies len(dst) bytes at off into our own memory, once.
func (m *Mapping) CopyOut(dst []byte, off int64) { copy(dst, m.data[off:off+int64(len(dst))]) }

// CopyIn copies src to off.
func (m *Mapping) CopyIn(off int64, src []byte) { copy(m.data[off:off+int64(len(src))], src) }

// Sem is the semaphore at off, which must be a multiple of 8.
func (m *Mapping) Sem(off int64) Sem {
	_ = m.data[off+semBytes-1]
	return Sem{(*sem)(unsafe.Pointer(&m.data[off]))}
}

// Shrink cuts the object itself to sizeBytes, as only its owner or a hostile
// test would.
func (m *Mapping) Shrink(sizeBytes int64) error { return unix.Ftruncate(m.fd, sizeBytes) }
