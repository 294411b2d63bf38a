package blockfiles

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// dirMode is the mode of directories. UCM's own mode, 0744, lets no other user enter.
const dirMode = 0o775

// makeDirs makes directories below a root, and those above them, but not the root.
func makeDirs(root string, names ...string) error {
	for _, name := range names {
		for at := range len(name) + 1 {
			if at < len(name) && name[at] != filepath.Separator {
				continue
			}
			if err := os.Mkdir(filepath.Join(root, name[:at]), dirMode); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
		}
	}
	return nil
}

// unusable says why a directory cannot be used, and what to do about it.
func unusable(dir string, err error) error {
	cure := ""
	switch {
	case errors.Is(err, fs.ErrPermission):
		cure = fmt.Sprintf(": user %d may not write there; give it the right, or choose another directory", os.Geteuid())
	case errors.Is(err, syscall.EROFS):
		cure = ": choose a file system that is not mounted read-only"
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		cure = ": make room there"
	}
	return fmt.Errorf("kvstore: use %s for blocks: %w%s", dir, err, cure)
}

// status returns the attributes of a file, past the kernel's cache: the kernel does not
// see what goes through a ring or what other hosts do.
func status(fd int, path string) (unix.Statx_t, error) {
	flags := unix.AT_STATX_FORCE_SYNC | unix.AT_SYMLINK_NOFOLLOW
	if path == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	const mask = unix.STATX_TYPE | unix.STATX_MODE | unix.STATX_SIZE | unix.STATX_INO | unix.STATX_MTIME | unix.STATX_CTIME | unix.STATX_BTIME
	for {
		var st unix.Statx_t
		err := unix.Statx(fd, path, flags, mask, &st)
		if !errors.Is(err, syscall.EINTR) {
			return st, err
		}
	}
}

// gone reports whether an error means that there is no such file. A link is none.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ELOOP)
}

// isBlock reports whether a file has the type and the size of the one at a place.
func isBlock(st unix.Statx_t, at Place) bool {
	return st.Mode&unix.S_IFMT == unix.S_IFREG && int64(st.Size) == at.Bytes
}
