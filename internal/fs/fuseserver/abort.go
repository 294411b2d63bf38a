package fuseserver

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// abort ends the connection: whoever waits for an answer gets an error, in every
// mount namespace that has a copy of the mount.
func (m *Mount) abort() {
	control := strconv.Itoa(m.minor) + "/abort"
	if os.WriteFile("/sys/fs/fuse/connections/"+control, []byte("1"), 0) == nil || abortDetached(control) == nil {
		return
	}
	// Without the control file system a forced unmount aborts first. It needs the
	// mount to be in the tree still.
	if m.mounted() {
		unix.Unmount(m.point, unix.MNT_FORCE|unix.UMOUNT_NOFOLLOW)
	}
}

// abortDetached reaches the control file system where nobody has mounted it, as
// in containers: by a mount of its own that is in no tree. It takes root.
func abortDetached(control string) error {
	ctl, err := unix.Fsopen("fusectl", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(ctl)
	if err := unix.FsconfigCreate(ctl); err != nil {
		return err
	}
	root, err := unix.Fsmount(ctl, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(root)
	abort, err := unix.Openat(root, control, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(abort)
	_, err = unix.Write(abort, []byte("1"))
	return err
}
