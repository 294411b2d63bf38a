package shm

import (
	"io"

	"golang.org/x/sys/unix"
)

// ReadAt reads from the object by a system call. Access through the mapping may be a page
// fault, which waits while the client punches holes into the object; a Go program cannot
// collect garbage meanwhile.
func (m *Mapping) ReadAt(p []byte, off int64) (int, error) {
	n, err := unix.Pread(m.fd, p, off)
	if err == nil && n < len(p) {
		err = io.ErrUnexpectedEOF // the object has been shrunk
	}
	return max(n, 0), err
}

// WriteAt writes to the object by a system call; see ReadAt.
func (m *Mapping) WriteAt(p []byte, off int64) (int, error) {
	n, err := unix.Pwrite(m.fd, p, off)
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	return max(n, 0), err
}

// InitSem is sem_init(s, 1, 0) for the semaphore at off, by a system call; see ReadAt.
func (m *Mapping) InitSem(off int64) error {
	b := [semBytes]byte{8: semSharedMark}
	_, err := m.WriteAt(b[:12], off) // glibc leaves the rest as it is, too
	return err
}
