package volumes

import (
	"fmt"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/host"
)

// confined are the rules by which names below the mount are resolved: a pod may have made them.
const confined = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV

// tree is what a volume shows: a directory of the mount, and what clients look for in it.
type tree struct {
	mount    string // the daemon's
	sub      string // below it
	pages    string // directory of the page namespace's socket; "": none
	readOnly bool
	// stage is a directory that the tree is put together at, in a mount namespace of its own.
	stage string
}

// assemble returns a detached mount of the tree. It is complete before anybody sees it, and no mount or unmount elsewhere
// reaches it.
func (t tree) assemble() (fd int, err error) {
	onOwnThread(func() { fd, err = t.assembleHere() })
	return fd, err
}

// onOwnThread calls fn on a thread that ends with it, and never on the one whose namespaces /proc shows as the process's.
func onOwnThread(fn func()) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			onOwnThread(fn) // while this one is taken, another is found
			runtime.UnlockOSThread()
			return
		}
		fn() // and no unlock: the thread ends
	}()
	<-ended
}

// assembleHere puts the tree together in a mount namespace that ends with the thread.
func (t tree) assembleHere() (fd int, err error) {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return -1, fmt.Errorf("a mount namespace of its own: %w: the plugin needs CAP_SYS_ADMIN, so run its container privileged", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return -1, fmt.Errorf("make / private: %w", err)
	}
	var open fds
	defer open.close()
	root := open.path(unix.AT_FDCWD, t.mount)
	sub := open.beneath(root, t.sub)
	top := open.clone(sub, "", 0)
	open.attach(top, unix.AT_FDCWD, t.stage)
	if t.sub != "." { // the root has it of itself
		// All of it: what is below is each user's own, so that nothing can be mounted there.
		open.attach(open.clone(root, host.VirtDir, 0), open.beneath(top, host.VirtDir), "")
	}
	if t.pages != "" {
		pages := open.clone(open.path(unix.AT_FDCWD, t.pages), "", 0)
		open.set(pages, unix.MOUNT_ATTR_RDONLY|unix.MOUNT_ATTR_NOEXEC)
		open.attach(pages, open.beneath(top, PagesDir), "")
	}
	all := open.clone(top, "", unix.AT_RECURSIVE)
	attr := uint64(unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV)
	if t.readOnly {
		attr |= unix.MOUNT_ATTR_RDONLY
	}
	open.set(all, attr)
	return open.keep(all)
}

// fds are descriptors of a series of calls, of which none is made after one has failed.
type fds struct {
	all []int
	err error
}

func (f *fds) add(fd int, what string, err error) int {
	if err != nil {
		f.err = fmt.Errorf("%s: %w", what, err)
		return -1
	}
	f.all = append(f.all, fd)
	return fd
}

// path opens a directory by a path that is the operator's.
func (f *fds) path(dir int, name string) int {
	if f.err != nil {
		return -1
	}
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	return f.add(fd, name, err)
}

// beneath opens a directory by a path that pods may have made.
func (f *fds) beneath(dir int, name string) int {
	if f.err != nil {
		return -1
	}
	fd, err := openBeneath(dir, name, unix.O_PATH)
	return f.add(fd, name, err)
}

// clone copies the mount at a path, or of what dir is open on. With unix.AT_RECURSIVE that is with what is mounted below.
func (f *fds) clone(dir int, name string, flags uint) int {
	if f.err != nil {
		return -1
	}
	flags |= unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC
	if name == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	fd, err := unix.OpenTree(dir, name, flags)
	return f.add(fd, "copy the mount of "+name, err)
}

// set sets attributes of a detached mount and of all below it, and ends that it hears of mounts elsewhere.
func (f *fds) set(fd int, attr uint64) {
	if f.err != nil {
		return
	}
	err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: attr, Propagation: unix.MS_PRIVATE})
	if err != nil {
		f.err = fmt.Errorf("set the attributes of a mount: %w: Linux 5.12 or later is needed", err)
	}
}

// attach mounts a detached mount at a path, or at what dir is open on.
func (f *fds) attach(fd, dir int, name string) {
	if f.err != nil {
		return
	}
	flags := unix.MOVE_MOUNT_F_EMPTY_PATH
	if name == "" {
		flags |= unix.MOVE_MOUNT_T_EMPTY_PATH
	}
	if err := unix.MoveMount(fd, "", dir, name, flags); err != nil {
		f.err = fmt.Errorf("mount at %s: %w", name, err)
	}
}

// keep takes one out of those that close closes.
func (f *fds) keep(fd int) (int, error) {
	if f.err != nil {
		return -1, f.err
	}
	f.all = slices.DeleteFunc(f.all, func(other int) bool { return other == fd })
	return fd, nil
}

func (f *fds) close() {
	for _, fd := range f.all {
		unix.Close(fd)
	}
}

// openBeneath opens a directory below another one.
func openBeneath(dir int, name string, flags uint64) (int, error) {
	for {
		fd, err := unix.Openat2(dir, name, &unix.OpenHow{Flags: flags | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: confined})
		if err != unix.EAGAIN && err != unix.EINTR { // EAGAIN: something was renamed meanwhile
			return fd, err
		}
	}
}
