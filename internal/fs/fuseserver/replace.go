package fuseserver

import (
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// mayReplace reports whether a new mount may take the place of m, a dead daemon's, instead of covering it. It may not if a container was
// given m itself so that it sees what is mounted on it: that one would not see the new mount.
func (m mountpoint) mayReplace() bool {
	if !m.follows {
		return true
	}
	const all = "pid:[4026531836]" // of the namespace whose processes are all there are
	if pids, err := os.Readlink("/proc/self/ns/pid"); err != nil || pids != all {
		return false
	}
	tables, err := filepath.Glob("/proc/[0-9]*/mountinfo")
	if err != nil {
		return false
	}
	seen := map[string]bool{}
	for _, table := range tables {
		namespace, err := os.Readlink(filepath.Join(filepath.Dir(table), "ns/mnt"))
		if err != nil || seen[namespace] {
			continue // the process has ended
		}
		info, err := os.ReadFile(table)
		if err != nil {
			continue
		}
		seen[namespace] = true
		for line := range strings.Lines(string(info)) {
			if other, ok := parseMount(line); ok && other.minor == m.minor && other.id != m.id && other.follows {
				return false
			}
		}
	}
	return true
}

// replaceDead puts a new mount in the place of a dead daemon's, beneath it first, so that at no time a client sees the directory. The dead
// one would keep open, in the kernel, what clients had open there with passthrough. An error says that nothing has changed: the kernel is
// older than 6.5, or does not let it, as in a user namespace.
func replaceDead(point string, o Options) (int, error) {
	fd, options, err := openDevice()
	if err != nil {
		return -1, err
	}
	if err := attachBeneath(point, source(o), options); err != nil {
		unix.Close(fd)
		return -1, err
	}
	_ = detach(point, true) // in vain it covers this one, which is noticed next
	return fd, nil
}

// attachBeneath mounts beneath what is mounted at point.
func attachBeneath(point, source string, options []string) error {
	fs, err := unix.Fsopen("fuse", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(fs)
	for _, option := range append([]string{"source=" + source, "subtype=" + subtype}, options...) {
		if key, value, ok := strings.Cut(option, "="); ok {
			err = unix.FsconfigSetString(fs, key, value)
		} else {
			err = unix.FsconfigSetFlag(fs, key)
		}
		if err != nil {
			return err
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return err
	}
	mount, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	if err != nil {
		return err
	}
	defer unix.Close(mount)
	const beneath = 0x200 // MOVE_MOUNT_BENEATH
	return unix.MoveMount(mount, "", unix.AT_FDCWD, point, unix.MOVE_MOUNT_F_EMPTY_PATH|beneath)
}
