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

// witness tells whether the process of a daemon has ended. A mount that is gone may
// have been cut off from a daemon that is only stopped and goes on writing later; a
// process that is gone writes nothing. nil knows nothing, as of a daemon in another
// container or of a real 3FS.
type witness struct{ pidfd int }

// exitLimit is how long after the mount the rest of a process may take to go.
const exitLimit = time.Second

// findDaemon finds the process behind a mount by what kv3fs says of itself.
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
	// The number is of the daemon's PID namespace. In ours it is another process, or
	// at least hardly one that serves a FUSE mount.
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

// exited waits for the end of the process, which includes that of all its threads,
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
