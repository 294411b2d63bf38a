package shm

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Anonymous maps memory of this process alone, in huge pages where the kernel has
// them, outside Go's heap. It has no object: Remap and Punch fail.
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

// WantHugePages asks for huge pages; a kernel that has none says no, and nothing
// is lost.
func (m *Mapping) WantHugePages() { unix.Madvise(m.data, unix.MADV_HUGEPAGE) }

// Sever puts zeros of this process's own where the object was: whatever still uses
// the mapping, in other goroutines or in system calls, no longer faults and no
// longer meets the object.
func (m *Mapping) Sever() error {
	at := uintptr(unsafe.Pointer(&m.data[0]))
	_, _, errno := unix.Syscall6(unix.SYS_MMAP, at, uintptr(len(m.data)), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE|unix.MAP_FIXED, ^uintptr(0), 0)
	if errno != 0 {
		return errno
	}
	return nil
}
