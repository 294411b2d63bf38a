package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/tree"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// keepLock is a file in keeperDir that a daemon with a capacity locks, and that those who keep the directory
// from outside share. Where locks do not reach other hosts, it says nothing of them.
const keepLock = "lock"

// lockKeeping locks a data directory for a daemon that keeps it (LOCK_EX), or for kv3fs keep
// (LOCK_SH). nil: it is no data directory that a daemon has ever kept, or the disk is full.
func lockKeeping(data string, how int) (*os.File, error) {
	name := filepath.Join(data, tree.StateName, keeperDir, keepLock)
	mode := os.O_RDONLY
	if how == unix.LOCK_EX {
		mode = os.O_RDWR // NFS wants that
	}
	f, err := os.OpenFile(name, mode|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if how == unix.LOCK_EX && (errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)) {
		return nil, nil // on a full disk, removing files is more urgent
	}
	if how == unix.LOCK_SH {
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
			return nil, nil
		case err != nil: // a full disk, or a directory that is only read
			f, err = os.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW, 0)
			if errors.Is(err, fs.ErrNotExist) {
				return nil, nil
			}
		}
	}
	if err != nil {
		return nil, fmt.Errorf("lock the keeper of %s: %w", data, err)
	}
	err = unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
	switch {
	case err == nil:
		return f, nil
	case !errors.Is(err, unix.EWOULDBLOCK) && how == unix.LOCK_SH: // a file system without locks
		return f, nil
	case !errors.Is(err, unix.EWOULDBLOCK):
		err = fmt.Errorf("lock the keeper of %s: %w", data, err)
	case how == unix.LOCK_EX:
		err = fmt.Errorf("kv3fs keep keeps data directory %s, or one below it, within a size: stop it, or serve without --capacity", data)
	default:
		err = fmt.Errorf("a daemon keeps data directory %s within its own --capacity: two keepers would count each other's removals as changes from outside; restart the daemon without --capacity, or leave it to the daemon", data)
	}
	f.Close()
	return nil, err
}

// lockServed locks every data directory that a directory is in, or is, against daemons with a capacity. It
// refuses one that such a daemon serves, be it by its mount.
func lockServed(dir string) (locks []*os.File, err error) {
	defer func() {
		if err != nil {
			closeAll(locks)
		}
	}()
	for at := dir; ; at = filepath.Dir(at) {
		if d, ok := daemonOf(at); ok && d.Capacity != "" {
			return locks, fmt.Errorf("%s is the mount of a daemon (pid %d) that keeps %s within its own --capacity of %s already: restart it without --capacity, or leave it to the daemon", at, d.PID, d.Data, d.Capacity)
		}
		lock, err := lockKeeping(at, unix.LOCK_SH)
		switch {
		case lock != nil:
			locks = append(locks, lock)
		case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM): // above, another user's
		case err != nil:
			return locks, err
		}
		if at == filepath.Dir(at) {
			return locks, nil
		}
	}
}

func closeAll(locks []*os.File) {
	for _, f := range locks {
		f.Close()
	}
}

// mostIdentity bounds the value of wire.DaemonXattr.
const mostIdentity = 64 << 10

// daemonOf returns the daemon whose mount's root a directory is.
func daemonOf(dir string) (d wire.Daemon, ok bool) {
	value := make([]byte, mostIdentity)
	n, err := unix.Getxattr(dir, wire.DaemonXattr, value)
	return d, err == nil && json.Unmarshal(value[:n], &d) == nil
}
