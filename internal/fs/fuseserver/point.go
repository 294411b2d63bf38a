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

// preparePoint returns the canonical path to mount at: an existing directory apart from
// data, where no living FUSE daemon has a mount. It detaches the mounts of dead ones.
func preparePoint(point, data string) (string, error) {
	abs, err := filepath.Abs(point)
	if err != nil {
		return "", err
	}
	parent, err := filepath.EvalSymlinks(filepath.Dir(abs))
	if err != nil {
		return "", fmt.Errorf("mount point %s: %w", point, err)
	}
	canonical := filepath.Join(parent, filepath.Base(abs))
	if err := clearPoint(canonical); err != nil {
		return "", err
	}
	info, err := os.Lstat(canonical)
	if errors.Is(err, os.ErrNotExist) {
		if err := os.Mkdir(canonical, 0o755); err != nil {
			return "", fmt.Errorf("mount point: %w", err)
		}
		info, err = os.Lstat(canonical)
	}
	if err != nil {
		return "", fmt.Errorf("mount point: %w", err)
	}
	if info.Mode()&os.ModeSymlink != 0 {
		target, err := filepath.EvalSymlinks(canonical)
		if err != nil {
			return "", fmt.Errorf("mount point %s: %w", point, err)
		}
		return preparePoint(target, data)
	}
	if !info.IsDir() {
		return "", fmt.Errorf("mount point %s: %w", canonical, unix.ENOTDIR)
	}
	return canonical, apart(canonical, data)
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

// clearPoint detaches mounts of dead FUSE daemons from point. It returns an error for
// the mount of a living one.
func clearPoint(point string) error {
	const mostStacked = 16
	for range mostStacked {
		m, ok := mountedAt(point)
		if !ok || m.fsType != "fuse" && !strings.HasPrefix(m.fsType, "fuse.") {
			return nil
		}
		if !dead(point) {
			return fmt.Errorf("mount point %s: %s (%s) is mounted there and its daemon is alive: stop the daemon, or unmount with 'fusermount3 -u %s'",
				point, m.source, m.fsType, point)
		}
		if err := detach(point, true); err != nil {
			return fmt.Errorf("mount point %s: detach the mount of a dead daemon: %w", point, err)
		}
	}
	return fmt.Errorf("mount point %s: more than %d mounts of dead daemons: %w", point, mostStacked, unix.EBUSY)
}

// dead reports whether the connection of the FUSE mount at point has ended. The statfs
// can hang with the daemon of that mount, so it runs in a goroutine, which then stays
// until the process exits; New fails in this case.
func dead(point string) bool {
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
