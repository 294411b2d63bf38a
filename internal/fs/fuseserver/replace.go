package fuseserver

import (
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// mayReplace reports whether a new mount may take the place of m, a dead daemon's, instead of covering it. It may not if a container was
// given m itself so that it sees what is mounted on it: that one would not see the new mount. Who was given the directory above sees it.
func (m mountpoint) mayReplace() bool {
	if m.shared == 0 {
		return true
	}
	const all = "pid:[4026531836]" // of the namespace whose processes are all there are
	if pids, err := os.Readlink("/proc/self/ns/pid"); err != nil || pids != all {
		return false
	}
	own, err := mountTable("/proc/self/mountinfo")
	if err != nil {
		return false
	}
	above := own[m.parent]
	files, err := filepath.Glob("/proc/[0-9]*/mountinfo")
	if err != nil {
		return false
	}
	seen := map[string]bool{}
	for _, file := range files {
		namespace, err := os.Readlink(filepath.Join(filepath.Dir(file), "ns/mnt"))
		if err != nil || seen[namespace] {
			continue // the process has ended
		}
		table, err := mountTable(file)
		if err != nil {
			continue
		}
		seen[namespace] = true
		for _, other := range table {
			given := other.minor == m.minor && other.id != m.id && (other.shared != 0 || other.master != 0)
			if given && !(table[other.parent].sees(above) && other.within(table[other.parent]) == m.within(above)) {
				return false
			}
		}
	}
	return true
}

// mountTable reads the mounts of a process's namespace, by number.
func mountTable(file string) (map[int]mountpoint, error) {
	info, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	all := map[int]mountpoint{}
	for line := range strings.Lines(string(info)) {
		if m, ok := parseMount(line); ok {
			all[m.id] = m
		}
	}
	return all, nil
}

// sees reports whether what is mounted on other is on m, too.
func (m mountpoint) sees(other mountpoint) bool {
	return other.shared != 0 && (m.shared == other.shared || m.master == other.shared)
}

// within returns where m is mounted in the file system of its parent.
func (m mountpoint) within(parent mountpoint) string {
	return filepath.Join(parent.root, strings.TrimPrefix(m.path, parent.path))
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
