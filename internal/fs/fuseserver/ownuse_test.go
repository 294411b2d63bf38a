package fuseserver

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// pollProbe is a file that go-fuse itself provides in the root, for this purpose.
const pollProbe = "/.go-fuse-epoll-hack"

// AllowOwnUse must be called, while Serve is running, by a process that uses its own
// mount through package os, as tests do. The runtime adds every file that it opens to
// its epoll set in a call that blocks the processor, and the kernel sends a poll request
// for the file: with all processors in that call, none is left to answer. One
// harmless poll stops the kernel from sending them.
func (m *Mount) AllowOwnUse() error {
	fd, err := unix.Open(m.point+pollProbe, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("poll probe: %w", err)
	}
	defer unix.Close(fd)
	const atOnce = 0
	_, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, atOnce)
	return err
}
