package fuseserver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// probeTimeout bounds the wait for a statfs. A mount that does not answer in that time
// belongs to a daemon that hangs, which counts as alive.
const probeTimeout = 3 * time.Second

// preparePoint checks that a canonical path can be mounted at: a directory apart from data,
// where no living FUSE daemon has a mount. It creates a missing one. The mount of a dead
// daemon may be there; see clearPoint.
func preparePoint(point, data string) error {
	if err := clearPoint(point); err != nil {
		return err
	}
	all, err := mountsAt(point)
	if err != nil {
		return err
	}
	if len(all) == 0 {
		info, err := os.Lstat(point)
		if errors.Is(err, os.ErrNotExist) {
			if err := os.Mkdir(point, 0o755); err != nil {
				return fmt.Errorf("mount point: %w", err)
			}
			info, err = os.Lstat(point)
		}
		if err != nil {
			return fmt.Errorf("mount point: %w", err)
		}
		if !info.IsDir() {
			return fmt.Errorf("mount point %s: %w", point, unix.ENOTDIR)
		}
	}
	return apart(point, data)
}

// canonicalPoint resolves symbolic links. It asks no FUSE daemon that has a mount there,
// which may be dead.
func canonicalPoint(point string) (string, error) {
	abs, err := filepath.Abs(point)
	if err != nil {
		return "", err
	}
	parent, err := filepath.EvalSymlinks(filepath.Dir(abs))
	if err != nil {
		return "", fmt.Errorf("mount point %s: %w", point, err)
	}
	canonical := filepath.Join(parent, filepath.Base(abs))
	if _, err := os.Readlink(canonical); err != nil {
		return canonical, nil
	}
	if canonical, err = filepath.EvalSymlinks(canonical); err != nil {
		return "", fmt.Errorf("mount point %s: %w", point, err)
	}
	return canonical, nil
}

// apart returns an error if the mount would contain its own data or be part of it.
func apart(point, data string) error {
	data, err := filepath.Abs(data)
	if err != nil {
		return err
	}
	if data, err = filepath.EvalSymlinks(data); err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	if within(point, data) || within(data, point) {
		return fmt.Errorf("mount point %s and data directory %s: one contains the other: choose separate directories", point, data)
	}
	return nil
}

func within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// clearPoint returns an error if a living FUSE daemon has a mount at point. Of the mounts of
// dead ones it leaves one: while that is there, nobody sees the directory beneath, where
// clients would write and then lose sight of what they wrote.
func clearPoint(point string) error {
	all, err := mountsAt(point)
	if err != nil {
		return err
	}
	for i, m := range all {
		if !m.isFUSE() {
			return nil
		}
		if !Dead(point) {
			return fmt.Errorf("mount point %s: %s (%s) is mounted there and its daemon is alive: stop the daemon, or unmount with 'fusermount3 -u %s'",
				point, m.source, m.fsType, point)
		}
		if last := i+1 == len(all) || !all[i+1].isFUSE(); last {
			return nil
		}
		if err := detach(point, true); err != nil {
			return nil // not ours to remove: in a user namespace, those of the host
		}
	}
	return nil
}

// Dead reports whether the connection of the FUSE mount at point has ended. The statfs
// can hang with the daemon of that mount, so it runs in a goroutine, which then stays
// until the process exits; New fails in this case.
func Dead(point string) bool {
	answer := make(chan error, 1)
	go func() {
		var st unix.Statfs_t
		answer <- unix.Statfs(point, &st)
	}()
	select {
	case err := <-answer:
		return errors.Is(err, unix.ENOTCONN) || errors.Is(err, unix.ECONNABORTED)
	case <-time.After(probeTimeout):
		return false
	}
}
