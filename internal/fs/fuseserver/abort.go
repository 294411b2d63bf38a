package fuseserver

import (
	"fmt"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/host"
)

// The control file system names connections by the minor number of their mount's device, which the kernel gives to the next
// mount as soon as a connection has ended. But an open file of it stays that of its connection, and does nothing once that has
// ended. So whoever acts by such a number first opens the file, then looks whether the connection is the right one and lives,
// and only then uses the file.

// AbortIf ends the connection of a mount by the minor number of its device, if right, called once the control file is
// open, says that the number is still that connection's. It reports whether the control file could be reached.
func AbortIf(minor uint32, right func() bool) (reached bool) {
	control, err := openControl(minor, "abort", os.O_WRONLY)
	if err != nil {
		return false
	}
	defer control.Close()
	if !right() {
		return true
	}
	_, err = control.Write([]byte("1"))
	return err == nil
}

// EndMount ends the connection of a FUSE device, unless it has ended, and detaches its mount, unless that is not at point any
// more. minor is the number of the mount's device.
func EndMount(device *os.File, minor uint32, point string) error {
	fd := int(device.Fd())
	if n, ok := connectionOf(fd); ok {
		minor = uint32(n)
	}
	AbortIf(minor, func() bool { return !hasEnded(fd) })
	defer lockPoint(point)()
	switch there, err := isMounted(minor, point); {
	case err != nil:
		return err
	case !there, hasEnded(fd) && !Dead(point): // another one's by now
		return nil
	}
	if err := detach(point, true); err != nil {
		return fmt.Errorf("mount %s: %w: %w", point, ErrLeft, err)
	}
	return nil
}

// isMounted reports whether a 3FS whose device has a minor number is mounted at point.
func isMounted(minor uint32, point string) (bool, error) {
	mounts, err := host.Local().Mounts()
	device := fmt.Sprintf("0:%d", minor)
	return slices.ContainsFunc(mounts, func(m host.Mount) bool { return m.Device == device && m.Type == host.HF3FSType && m.Point == point }), err
}

// abort ends the connection: every pending request fails, in every mount namespace
// that has a copy of the mount.
func (m *Mount) abort() {
	if AbortIf(uint32(m.minor), func() bool { return !m.hasEnded() }) {
		return
	}
	// Where the control file system cannot be reached: a forced unmount aborts, too,
	// but only while the mount is attached.
	if at, err := m.look(); err == nil && !at.gone && at.over == nil && !m.hasEnded() {
		// It aborts even if it returns EBUSY.
		_ = unix.Unmount(at.path, unix.MNT_FORCE|unix.UMOUNT_NOFOLLOW)
	}
}

// openControl opens a file of a connection in the control file system.
func openControl(minor uint32, file string, flags int) (*os.File, error) {
	name := strconv.Itoa(int(minor)) + "/" + file
	if f, err := os.OpenFile("/sys/fs/fuse/connections/"+name, flags, 0); err == nil {
		return f, nil
	}
	fd, err := openDetached(name, flags)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// openDetached is for where the control file system is not mounted, as in containers: it opens a file in a mount of its own,
// which is attached nowhere. It needs root.
func openDetached(name string, flags int) (int, error) {
	ctl, err := unix.Fsopen("fusectl", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, err
	}
	defer unix.Close(ctl)
	if err := unix.FsconfigCreate(ctl); err != nil {
		return -1, err
	}
	root, err := unix.Fsmount(ctl, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(root)
	return unix.Openat(root, name, flags|unix.O_CLOEXEC, 0)
}
