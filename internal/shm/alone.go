package shm

import "golang.org/x/sys/unix"

// Alone reports whether nobody has the object open or mapped but through m and mappings
// made of m. The kernel grants a lease for writing only then, whichever namespaces other
// processes are in. The lease ends at once; a process that opens the object meanwhile waits
// for that.
func (m *Mapping) Alone() bool { return Alone(m.fd) }

// Alone reports whether nobody has the object open or mapped but through fd.
func Alone(fd int) bool {
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		return false
	}
	_, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_UNLCK)
	return err == nil
}
