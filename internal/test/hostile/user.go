package hostile

import (
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/kv3fs/kv3fs/internal/shm"
)

// User is an ordinary user, whose group has the same id.
type User struct {
	ID     uint32
	Groups []uint32 // supplementary groups
}

const (
	firstUser   = 20000
	usersPerRun = 256
	runs        = 3800 // the highest id is below 1,000,000, where set-conf ends
)

// users numbers the users of this process.
var users atomic.Uint32

// NewUser returns a user that nobody else has: ids follow from the process id, so that test
// binaries which run at the same time do not share a user's limits. The user's objects in
// /dev/shm are removed when the test ends.
func NewUser(t testing.TB) User {
	t.Helper()
	n := users.Add(1) - 1
	if n >= usersPerRun {
		t.Fatalf("more than %d users in one run", usersPerRun)
	}
	u := User{ID: firstUser + uint32(os.Getpid())%runs*usersPerRun + n}
	t.Cleanup(func() { removeObjects(u.ID) })
	return u
}

// Objects lists the paths of a user's objects in /dev/shm.
func Objects(uid uint32) (paths []string) {
	entries, _ := os.ReadDir(shm.Dir)
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			continue // it was just removed
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid == uid {
			paths = append(paths, filepath.Join(shm.Dir, e.Name()))
		}
	}
	return paths
}

func removeObjects(uid uint32) {
	for _, path := range Objects(uid) {
		_ = os.Remove(path) // another process of the run may have removed it
	}
}
