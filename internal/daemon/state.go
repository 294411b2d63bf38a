package daemon

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/ringserver"
	"github.com/kv3fs/kv3fs/internal/fs/tree"
)

// state is this host's part of tree.StateName. Many hosts may serve a shared directory,
// but each host only once, which the lock file ensures. The file of semaphore names lets
// the next daemon clean up after one that was killed.
type state struct {
	dir  string
	lock *os.File
}

// openState locks the data directory for this host. The kernel releases the lock when
// the process exits, even if it is killed.
func openState(dataDir string) (*state, error) {
	dir, err := hostDir(dataDir)
	if err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock data directory %s: %w", dataDir, err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		holder, _ := os.ReadFile(lock.Name())
		lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("data directory %s is served already, by process %s: stop that one first", dataDir, strings.TrimSpace(string(holder)))
		}
		return nil, fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	if err := lock.Truncate(0); err == nil {
		fmt.Fprintln(lock, os.Getpid())
	}
	return &state{dir: dir, lock: lock}, nil
}

// hostDir returns this host's part of the state directory, which it creates if it is
// missing.
func hostDir(dataDir string) (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("read the host name: %w", err)
	}
	dir := filepath.Join(dataDir, tree.StateName, "hosts", host)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("create the state directory of data directory %s: %w", dataDir, err)
	}
	return dir, checkOwner(filepath.Join(dataDir, tree.StateName))
}

// checkOwner refuses a state directory that another user created or can write to: in a
// data directory that is open to all, any user could have planted it.
func checkOwner(dir string) error {
	fi, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	st := fi.Sys().(*syscall.Stat_t)
	if !fi.IsDir() || int(st.Uid) != os.Geteuid() || fi.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("state directory %s: not a directory that only this user can write to (%v, uid %d): somebody else may have planted it; inspect it and remove it", dir, fi.Mode(), st.Uid)
	}
	return nil
}

func (s *state) semaphoreFile() string { return filepath.Join(s.dir, "semaphores") }

// removeLeftovers removes the semaphores of a daemon that was killed: all whose names begin
// with a word of the file. Whatever the file contains, it removes only names with the prefix
// of a daemon's semaphores.
func (s *state) removeLeftovers() (removed int) {
	names, _ := os.ReadFile(s.semaphoreFile())
	for name := range strings.FieldsSeq(string(names)) {
		removed += ringserver.RemoveSemaphores(name)
	}
	return removed
}

// noteSemaphores records how the names of the semaphores begin, for removeLeftovers.
func (s *state) noteSemaphores(prefix string) error {
	return os.WriteFile(s.semaphoreFile(), []byte(prefix+"\n"), 0o600)
}

func (s *state) close() { s.lock.Close() }
