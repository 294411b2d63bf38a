package fuseserver

import (
	"errors"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// pointLockTimeout is longer than a daemon needs to look at a mount point and mount.
	pointLockTimeout  = 2 * probeTimeout
	pointLockInterval = 10 * time.Millisecond
)

// lockPoint keeps other daemons from changing what is mounted at point until unlock is
// called: two that took over the same dead mount would both mount, or remove each other's.
// It locks the directory that holds point. Any user who can read that can lock it, too, so
// lockPoint waits for a bounded time and then goes on without the lock.
func lockPoint(point string) (unlock func()) {
	dir, err := unix.Open(filepath.Dir(point), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return func() {}
	}
	for end := time.Now().Add(pointLockTimeout); time.Now().Before(end); time.Sleep(pointLockInterval) {
		if err := unix.Flock(dir, unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			break
		}
	}
	return func() { unix.Close(dir) } // also ends the lock
}
