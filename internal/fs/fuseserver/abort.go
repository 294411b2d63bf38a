package fuseserver

import (
	"fmt"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/host"
)

// Abort ends the connection of a mount by the minor number of its device, and reports whether the control file
// system could be reached.
func Abort(minor uint32) bool {
	control := strconv.Itoa(int(minor)) + "/abort"
	return os.WriteFile("/sys/fs/fuse/connections/"+control, []byte("1"), 0) == nil || abortDetached(control) == nil
}

// RemoveDead detaches the mount at point whose device has a minor number, unless it is not there any more. Its connection must
// have ended.
func RemoveDead(minor uint32, point string) error {
	mounts, err := host.Local().Mounts()
	if err != nil {
		return err
	}
	device := fmt.Sprintf("0:%d", minor)
	if !slices.ContainsFunc(mounts, func(m host.Mount) bool { return m.Device == device && m.Type == host.HF3FSType && m.Point == point }) {
		return nil
	}
	if err := detach(point, true); err != nil {
		return fmt.Errorf("mount %s: %w: %w", point, ErrLeft, err)
	}
	return nil
}

// abort ends the connection: every pending request fails, in every mount namespace
// that has a copy of the mount.
func (m *Mount) abort() {
	if m.fs.hasEnded() || Abort(uint32(m.minor)) {
		return
	}
	// Where the control file system cannot be reached: a forced unmount aborts, too,
	// but only while the mount is attached.
	if at, err := m.look(); err == nil && !at.gone && at.over == nil {
		// It aborts even if it returns EBUSY.
		_ = unix.Unmount(at.path, unix.MNT_FORCE|unix.UMOUNT_NOFOLLOW)
	}
}

// abortDetached aborts where the control file system is not mounted, as in containers.
func abortDetached(control string) error {
	abort, err := controlFile(control, unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer unix.Close(abort)
	_, err = unix.Write(abort, []byte("1"))
	return err
}

// controlFile opens a file of the control file system in a mount of its own, which is attached nowhere. It needs root.
func controlFile(name string, flags int) (int, error) {
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
