package tree

import (
	"errors"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/cred"
)

// splitRel checks a path below the root and splits it, in lexically clean form, into
// directory and last name.
func (t *Tree) splitRel(rel string) (dir, name string, err error) {
	rel = path.Clean("/" + rel)[1:]
	if rel == "" {
		return "", "", unix.EINVAL
	}
	first, _, _ := strings.Cut(rel, "/")
	if t.isState(first) {
		return "", "", unix.ENOENT
	}
	if st, err := statAt(t.rootFD, first); err == nil && t.hiddenInode(&st) {
		return "", "", unix.ENOENT
	}
	dir, name = path.Split(rel)
	if dir == "" {
		return ".", name, nil
	}
	return strings.TrimSuffix(dir, "/"), name, nil
}

// Name is a removed entry that the kernel has to forget. Parent is 0 when the kernel
// does not know the directory.
type Name struct {
	Parent uint64
	Name   string
}

// nodeOf returns the node of an open inode, or nil when the kernel knows none.
func (t *Tree) nodeOf(fd int) *node {
	st, err := statFD(fd)
	if err != nil {
		return nil
	}
	n, _ := t.byIdentity.get(t.identityOf(&st))
	return n
}

// RemoveAll removes the entry at rel and everything below it with the rights of c,
// following no symbolic link. Errors: EINVAL for the root, EPERM when c may not, what proceed
// (nil: nothing), called before each step, returns, ENOTEMPTY when other processes keep creating entries, and
// others from the kernel. After one of the last three, part of it may be gone.
//
// A directory must belong to c, with all of its owner's rights, and so must those
// below it; a sample of them is checked before anything is removed. The super-user may
// remove anything.
func (t *Tree) RemoveAll(c cred.Caller, rel string, proceed Proceed) (removed Name, err error) {
	dir, name, err := t.splitRel(rel)
	if err != nil {
		return Name{}, err
	}
	err = denied(cred.RunAs(c, func() error {
		fd, err := openBeneath(t.rootFD, dir, unix.O_PATH|unix.O_DIRECTORY)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		d := t.nodeOf(fd)
		removed = nameOf(d, name)
		return t.removal(c, proceed).remove(d, fd, name)
	}))
	return removed, err
}

// RemoveDir is RemoveAll for a directory that the kernel knows, wherever it is now. It
// fails with ENOENT if the directory has been removed.
func (t *Tree) RemoveDir(c cred.Caller, id uint64, proceed Proceed) (removed Name, err error) {
	n, err := t.node(id)
	if err != nil {
		return Name{}, err
	}
	if n == t.root {
		return Name{}, unix.EINVAL
	}
	if !n.directory() {
		return Name{}, unix.ENOTDIR
	}
	// Opening the directory updates its place, if it still has one.
	fd, _, err := t.openNode(n, unix.O_PATH|unix.O_DIRECTORY, nil)
	if err != nil {
		return Name{}, missing(err)
	}
	unix.Close(fd)
	t.mu.RLock()
	at := n.place
	t.mu.RUnlock()
	fd, _, err = t.openNode(at.parent, unix.O_PATH|unix.O_DIRECTORY, &c)
	if err != nil {
		return Name{}, denied(missing(err))
	}
	defer unix.Close(fd)
	err = denied(cred.RunAs(c, func() error {
		st, err := statAt(fd, at.name)
		if err != nil {
			return err
		}
		if t.identityOf(&st) != n.key {
			return unix.ENOENT
		}
		return t.removal(c, proceed).remove(at.parent, fd, at.name)
	}))
	return nameOf(at.parent, at.name), err
}

// missing returns ENOENT in place of the errors that mean that a directory which a client
// has open was removed.
func missing(err error) error {
	if mayHaveMoved(err) {
		return unix.ENOENT
	}
	return err
}

func nameOf(d *node, name string) Name {
	if d == nil {
		return Name{Name: name}
	}
	return Name{Parent: d.id, Name: name}
}

// RemoveEntry removes an entry of directory parent with the rights of c. With recursive
// it removes everything below, too, as RemoveAll does; without, a directory must be
// empty.
func (t *Tree) RemoveEntry(c cred.Caller, parent uint64, name string, recursive bool, proceed Proceed) error {
	d, err := t.node(parent)
	if err != nil {
		return err
	}
	if name == "" || name == "." || name == ".." {
		return unix.EINVAL
	}
	if t.hidden(d, name) {
		return unix.ENOENT
	}
	return t.inDir(d, func(fd int) error {
		return denied(cred.RunAs(c, func() error {
			if recursive {
				return t.removal(c, proceed).remove(d, fd, name)
			}
			_, err := t.unlinkOne(d, fd, name, true, orNothing(proceed))
			return err
		}))
	})
}

// denied returns EPERM in place of EACCES, as 3FS does.
func denied(err error) error {
	if errors.Is(err, unix.EACCES) {
		return unix.EPERM
	}
	return err
}

// unlinkOne removes a file or an empty directory and reports which it was. d is the
// node of the directory, or nil. The kernel does not know of the removal, so it forgets the
// inode late; with keep a descriptor is kept until then, see orphan. That is for the entry
// that a client names: there would be one for each file of a tree.
func (t *Tree) unlinkOne(d *node, dir int, name string, keep bool, proceed ...Proceed) (isDir bool, err error) {
	defer t.moves.share()()
	st, err := statAt(dir, name)
	if err != nil {
		return false, err
	}
	if t.hiddenInode(&st) {
		return true, unix.ENOENT
	}
	how := 0
	if isDir = st.Mode&unix.S_IFMT == unix.S_IFDIR; isDir {
		how = unix.AT_REMOVEDIR
	}
	orphanFD := -1
	if keep {
		orphanFD = t.openLastName(dir, name, &st)
	}
	n, known := t.byIdentity.get(t.identityOf(&st))
	if err := t.unlinkAt(place{d, name}, dir, how, &st, orphanFD, proceed); err != nil {
		return isDir, err
	}
	if keep && known {
		(*t.invalidate.Load())(n.id, false)
	} else {
		t.linksChanged(&st)
	}
	return isDir, nil
}

// linksChanged makes the kernel forget the attributes of an inode that lost one of its
// names without the kernel's knowledge.
func (t *Tree) linksChanged(st *unix.Statx_t) {
	if st.Nlink < 2 || st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return
	}
	if n, ok := t.byIdentity.get(t.identityOf(st)); ok {
		(*t.invalidate.Load())(n.id, false)
	}
}

// MoveInto renames the entry at rel to a new entry of directory newParent with the
// rights of c. Errors are those of rename(2), EPERM for missing rights and for a directory that
// would enter the trash, EEXIST.
func (t *Tree) MoveInto(c cred.Caller, rel string, newParent uint64, newName string, proceed ...Proceed) (removed Name, err error) {
	dir, name, err := t.splitRel(rel)
	if err != nil {
		return Name{}, err
	}
	to, err := t.node(newParent)
	if err != nil {
		return Name{}, err
	}
	if t.hidden(to, newName) {
		return Name{}, unix.EPERM
	}
	err = t.inDir(to, func(toFD int) error {
		return denied(cred.RunAs(c, func() error {
			fd, err := openBeneath(t.rootFD, dir, unix.O_PATH|unix.O_DIRECTORY)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			d := t.nodeOf(fd)
			removed = nameOf(d, name)
			if err := t.mayTrash(c, relInTrash(dir), fd, name, to); err != nil {
				return err
			}
			defer t.moves.exclude()()
			return t.renameToFree(place{d, name}, fd, place{to, newName}, toFD, proceed)
		}))
	})
	return removed, err
}
