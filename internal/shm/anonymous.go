package shm

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Anonymous maps private memory outside Go's heap, in huge pages where the kernel has
// them. There is no object behind it: Remap and Punch fail.
func Anonymous(sizeBytes int64) (*Mapping, error) {
	if sizeBytes <= 0 || int64(int(sizeBytes)) != sizeBytes {
		return nil, unix.EINVAL
	}
	addr, _, errno := unix.Syscall6(unix.SYS_MMAP, 0, uintptr(sizeBytes),
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE, ^uintptr(0), 0)
	if errno != 0 {
		return nil, errno
	}
	m := &Mapping{data: unsafe.Slice((*byte)(pointer(addr)), sizeBytes), fd: -1}
	m.WantHugePages()
	return m, nil
}

// WantHugePages asks the kernel for huge pages. It is only a hint: a kernel without
// them ignores it.
func (m *Mapping) WantHugePages() { _ = unix.Madvise(m.data, unix.MADV_HUGEPAGE) }

// Sever replaces the object with private zero pages at the same address. Goroutines
// and system calls that still use the mapping do not fault any more and cannot reach
// the object.
func (m *Mapping) Sever() error {
	at := uintptr(unsafe.Pointer(&m.data[0]))
	_, _, errno := unix.Syscall6(unix.SYS_MMAP, at, uintptr(len(m.data)), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE|unix.MAP_FIXED, ^uintptr(0), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
