package shm

import (
	"math"
	"os"
	"path/filepath"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Open maps the whole of an existing object.
func Open(name string) (*Mapping, error) {
	path := filepath.Join(Dir, name)
	if filepath.Base(path) != name {
		return nil, &os.PathError{Op: "open", Path: path, Err: syscall.EINVAL}
	}
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, &os.PathError{Op: "map", Path: path, Err: syscall.EINVAL}
	}
	m, err := Map(fd, st.Size)
	if err != nil {
		return nil, &os.PathError{Op: "map", Path: path, Err: err}
	}
	return m, nil
}

// FreeBytes returns how many more bytes objects under Dir can take.
func FreeBytes() (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(Dir, &st); err != nil {
		return 0, err
	}
	if st.Blocks == 0 { // a tmpfs without a limit
		return math.MaxInt64, nil
	}
	return int64(st.Bavail) * st.Bsize, nil
}

// Reserve allocates the object's memory now. ENOSPC: there is not enough.
func (m *Mapping) Reserve() error {
	const step = 64 << 20 // short calls, because a signal undoes a call that it interrupts
	for off := int64(0); off < m.Len(); {
		n := min(step, m.Len()-off)
		switch err := unix.Fallocate(m.fd, unix.FALLOC_FL_KEEP_SIZE, off, n); err {
		case nil:
			off += n
		case unix.EINTR:
		default:
			return err
		}
	}
	return nil
}

// Bind makes pages that are allocated from now on come from one NUMA node.
func (m *Mapping) Bind(node int) error {
	const (
		mpolBind = 2 // MPOL_BIND, set_mempolicy(2)
		maxNodes = 1024
	)
	if node < 0 || node >= maxNodes {
		return syscall.EINVAL
	}
	var mask [maxNodes / 64]uint64
	mask[node/64] = 1 << (node % 64)
	_, _, errno := unix.Syscall6(unix.SYS_MBIND, uintptr(unsafe.Pointer(&m.data[0])), uintptr(len(m.data)),
		mpolBind, uintptr(unsafe.Pointer(&mask)), maxNodes+1, 0) // the kernel subtracts one
	if errno != 0 {
		return errno
	}
	return nil
}

// Bytes returns the mapped memory, for objects of our own. An access after Unmap, or
// after a process has shrunk the object, is a fault that ends the program.
func (m *Mapping) Bytes() []byte { return m.data[:len(m.data):len(m.data)] }
