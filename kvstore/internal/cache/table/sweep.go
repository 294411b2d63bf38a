package table

import (
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/shm"
)

// Sweep removes the objects of tables that were not shared and whose processes were
// killed. Their memory, perhaps most of the host's, would stay taken. Names of such tables
// begin with prefix.
func Sweep(prefix string) {
	entries, err := os.ReadDir(shm.Dir)
	if err != nil {
		return // creating an object will fail, and say why
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) && e.Type().IsRegular() {
			sweep(filepath.Join(shm.Dir, e.Name()))
		}
	}
}

// sweep removes an object that no process has locked. If one is just being made, its maker
// makes it again, see open.
func sweep(path string) {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return // another user's, or gone
	}
	defer unix.Close(fd) // and with it the locks
	for _, at := range []int64{tableLock, memberLock} {
		if ok, err := tryLock(fd, at); !ok || err != nil {
			return
		}
	}
	unix.Unlink(path)
}
