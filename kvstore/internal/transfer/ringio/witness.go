package ringio

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/wire"
)

// witness tells whether the process of a daemon has ended. After a mount is gone its
// daemon may only be stopped, and write again later; a process that has ended writes
// nothing. A nil witness knows nothing: the daemon is in another container or belongs to
// a real 3FS.
type witness struct{ pidfd int }

// exitLimit is how long a process may take to end after its mount has gone.
const exitLimit = time.Second

// findDaemon finds the process behind a mount by the attribute in which kv3fs names
// itself.
func findDaemon(mountPoint string) *witness {
	value := make([]byte, 4096)
	n, err := unix.Getxattr(mountPoint, wire.DaemonXattr, value)
	if err != nil {
		return nil
	}
	var d wire.Daemon
	if json.Unmarshal(value[:n], &d) != nil || d.PID <= 0 {
		return nil
	}
	fd, err := unix.PidfdOpen(d.PID, 0)
	if err != nil {
		return nil
	}
	// The number is one of the daemon's PID namespace. In ours it may be another process,
	// which is hardly one that serves a FUSE mount.
	if !servesFUSE(d.PID) {
		unix.Close(fd)
		return nil
	}
	return &witness{fd}
}

func servesFUSE(pid int) bool {
	fds, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/fd/*")
	for _, fd := range fds {
		if target, err := os.Readlink(fd); err == nil && target == "/dev/fuse" {
			return true
		}
	}
	return false
}

// exited reports whether the process, with all its threads, has ended. It waits for that
// until exitLimit.
func (w *witness) exited() bool {
	if w == nil {
		return false
	}
	for deadline := time.Now().Add(exitLimit); ; {
		left := time.Until(deadline)
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(w.pidfd), Events: unix.POLLIN}}, int(max(0, left).Milliseconds()))
		if n == 1 {
			return true
		}
		if err != unix.EINTR || left <= 0 {
			return false
		}
	}
}

func (w *witness) close() {
	if w != nil {
		unix.Close(w.pidfd)
	}
}
