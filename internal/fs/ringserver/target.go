package ringserver

import (
	"errors"
	"path"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/cred"
	"github.com/kv3fs/kv3fs/internal/shm"
)

// openTarget opens a client's shared memory object read-write in the client's /dev/shm, if and only if the
// client could do so itself, and returns the target as a clean path. It waits for nobody:
// it looks at no path outside /dev/shm, where a file system may hang, and at nothing that
// is mounted inside.
//
// EINVAL: there is no such regular file. EACCES: it lies outside /dev/shm or in a
// sub-directory of it, it is a symbolic link or a mount point, or c may not open it.
// EAGAIN: somebody has a lease on it.
func openTarget(c cred.Caller, in *devShm, target string) (fd int, sizeBytes int64, normal string, err error) {
	if !strings.HasPrefix(target, "/") {
		return -1, 0, "", syscall.EINVAL
	}
	normal = path.Clean(target)
	if path.Dir(normal) != shm.Dir {
		return -1, 0, "", syscall.EACCES
	}
	at, err := find(c, in, path.Base(normal))
	if err != nil {
		return -1, 0, "", err
	}
	defer unix.Close(at)
	var st unix.Stat_t
	if err := unix.Fstat(at, &st); err != nil {
		return -1, 0, "", syscall.EINVAL
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFLNK:
		return -1, 0, "", syscall.EACCES
	default:
		return -1, 0, "", syscall.EINVAL
	}
	err = cred.RunAs(c, func() (err error) {
		fd, err = openAgain(at)
		return err
	})
	switch {
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		return -1, 0, "", err
	case err != nil:
		return -1, 0, "", syscall.EACCES
	}
	// Both sides derive the layout from the size after opening.
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return -1, 0, "", syscall.EINVAL
	}
	return fd, st.Size, normal, nil
}

// openAgain opens what a descriptor names. Opening through /proc yields the object that was examined, even if its name
// means another one by now, and never a FIFO or device. O_NONBLOCK refuses to wait
// until the holder of a lease gives it up.
func openAgain(at int) (fd int, err error) {
	return unix.Open("/proc/self/fd/"+strconv.Itoa(at), unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
}

// find returns a descriptor of an object that names it but does not open it. A file
// system that a client has mounted on the name is not asked for anything. In a /dev/shm of the client's own,
// which can be any directory, c must have the right to search it.
func find(c cred.Caller, in *devShm, name string) (at int, err error) {
	dir, err := in.path()
	if err != nil {
		return -1, openError(err)
	}
	defer unix.Close(dir)
	look := func() error {
		at, err = nameIn(dir, name)
		return err
	}
	if in != nil {
		err = cred.RunAs(c, look)
	} else {
		err = look()
	}
	if err != nil {
		return -1, openError(err)
	}
	return at, nil
}

// nameIn is find in a directory that is open.
func nameIn(dir int, name string) (at int, err error) {
	return unix.Openat2(dir, name, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_MAGICLINKS,
	})
}

// regularIn opens a regular file in a directory, whatever its name means a moment later.
func regularIn(dir int, name string) (fd int, err error) {
	at, err := nameIn(dir, name)
	if err != nil {
		return -1, err
	}
	defer unix.Close(at)
	var st unix.Stat_t
	if err := unix.Fstat(at, &st); err != nil {
		return -1, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return -1, unix.EINVAL
	}
	return openAgain(at)
}

// openError returns the client's error for an object that was not found.
func openError(err error) error {
	switch err {
	case unix.EMFILE, unix.ENFILE:
		return err
	case unix.EXDEV, unix.EACCES, unix.EPERM:
		return syscall.EACCES
	}
	return syscall.EINVAL
}
