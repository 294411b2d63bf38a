package tree

import (
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/cred"
)

// trashName is the directory of the root that 3FS's tools use as a trash. 3FS lets a
// directory enter it only by the ioctl that checks whether all of it may be removed.
const trashName = "trash"

// InTrash reports whether a directory is the trash or below it.
func (t *Tree) InTrash(id uint64) bool {
	n, err := t.node(id)
	return err == nil && t.inTrash(n)
}

func (t *Tree) inTrash(d *node) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for ; d != t.root; d = d.parent {
		if d.parent == t.root {
			return d.name == trashName
		}
	}
	return false
}

// mayTrash returns EPERM if a rename of the entry name, in the directory open as fd, to the
// directory to would move a directory into the trash. from says whether it is there already.
func (t *Tree) mayTrash(c cred.Caller, from bool, fd int, name string, to *node) error {
	if c.Root() || from || !t.inTrash(to) {
		return nil
	}
	st, err := statAt(fd, name)
	if err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return unix.EPERM
	}
	return nil // the rename finds what is wrong
}

// relInTrash is inTrash for the path of a directory below the root.
func relInTrash(dir string) bool {
	first, _, _ := strings.Cut(dir, "/")
	return first == trashName
}
