package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Beneath describes the directory that a FUSE mount covers, or would cover. While nothing is
// mounted, clients find that directory instead.
type Beneath struct {
	Mode   fs.FileMode
	UID    uint32
	Sealed bool // nobody can write to it: it is immutable, or its file system is read-only
	Names  []string
}

// mostBeneath bounds the names of a Beneath.
const mostBeneath = 100

// ErrHidden is the error of LookBeneath where only root can see the directory, or nobody.
var ErrHidden = errors.New("only the mount on it can be seen")

// LookBeneath describes the directory at point beneath all FUSE mounts. It asks no FUSE
// daemon, but it can hang with the file system of that directory.
func (h Host) LookBeneath(point string) (b Beneath, err error) {
	mounts, err := h.Mounts()
	if err != nil {
		return b, err
	}
	parent, base := filepath.Split(point)
	if base == "" {
		return b, fmt.Errorf("mount point %s: %w", point, unix.EINVAL)
	}
	parentFD, err := openBeneath(h.Path(parent), point, mounts)
	if err != nil {
		return b, err
	}
	defer unix.Close(parentFD)
	fd, err := unix.Openat(parentFD, base, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return b, &fs.PathError{Op: "open", Path: point, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	var all unix.Statfs_t
	var more unix.Statx_t
	if err := errors.Join(unix.Fstat(fd, &st), unix.Fstatfs(fd, &all), unix.Statx(fd, "", unix.AT_EMPTY_PATH, 0, &more)); err != nil {
		return b, fmt.Errorf("directory beneath %s: %w", point, err)
	}
	b.Mode, b.UID = fs.FileMode(st.Mode&0o777), st.Uid
	b.Sealed = all.Flags&unix.ST_RDONLY != 0 || more.Attributes&unix.STATX_ATTR_IMMUTABLE != 0
	b.Names = names(parentFD, base)
	return b, nil
}

// openBeneath opens the directory that holds point in such a way that point leads to the
// directory beneath the FUSE mounts there.
func openBeneath(parent, point string, mounts []Mount) (fd int, err error) {
	fuses, others := 0, 0
	for _, m := range mounts {
		switch {
		case m.Point != point:
		case m.Type == "fuse" || strings.HasPrefix(m.Type, "fuse."):
			fuses++
		default:
			others++
		}
	}
	switch {
	case fuses == 0:
		fd, err = unix.Open(parent, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	case others > 0:
		return -1, ErrHidden // beneath is that mount, and no way leads there
	default:
		// A copy of the mount that holds the directory, without those on it.
		fd, err = unix.OpenTree(unix.AT_FDCWD, parent, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
			return -1, ErrHidden
		}
	}
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: parent, Err: err}
	}
	return fd, nil
}

// names lists some of a directory's entries: none if it cannot be read.
func names(parentFD int, base string) []string {
	fd, err := unix.Openat(parentFD, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	dir := os.NewFile(uintptr(fd), base)
	defer dir.Close()
	all, _ := dir.Readdirnames(mostBeneath)
	kept := all[:0]
	for _, name := range all {
		if name != "lost+found" { // of a disk's own root
			kept = append(kept, name)
		}
	}
	return kept
}

// OpenTo says which users other than root and the daemon's may write to the directory; ""
// for none.
func (b Beneath) OpenTo(daemon uint32) string {
	switch {
	case b.Sealed:
		return ""
	case b.Mode&0o002 != 0:
		return "every user"
	case b.Mode&0o020 != 0:
		return "its group"
	case b.Mode&0o200 != 0 && b.UID != 0 && b.UID != daemon:
		return fmt.Sprintf("user %d", b.UID)
	}
	return ""
}
