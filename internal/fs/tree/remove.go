package tree

import (
	"errors"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/cred"
)

// splitRel checks a path below the root, in lexically clean form, and takes its
// last name off.
func splitRel(rel string) (dir, name string, err error) {
	rel = path.Clean("/" + rel)[1:]
	if rel == "" {
		return "", "", unix.EINVAL
	}
	if first, _, _ := strings.Cut(rel, "/"); first == StateName {
		return "", "", unix.ENOENT
	}
	dir, name = path.Split(rel)
	if dir == "" {
		return ".", name, nil
	}
	return strings.TrimSuffix(dir, "/"), name, nil
}

// Name is an entry that went: what the kernel has to forget. Parent is 0 when it
// does not know the directory.
type Name struct {
	Parent uint64
	Name   string
}

// nodeOf returns the node of an open inode, or nil when the kernel knows none.
func (s *Stage) nodeOf(fd int) *node {
	st, err := statFD(fd)
	if err != nil {
		return nil
	}
	n, _ := s.byIdentity.get(identityOf(&st))
	return n
}

// RemoveAll removes what is at rel and everything below it with the rights of c,
// following no symbolic link. Errors: EINVAL for the root, EPERM when c may not,
// EINTR when cancel was closed, ENOTEMPTY when others keep making entries, and
// others from the kernel. With the last three, part of it may be gone.
//
// A directory must belong to c, with all of its owner's rights, and so must those
// below it; a sample of them is asked before anything is removed. The super-user
// may remove what he likes.
func (s *Stage) RemoveAll(c cred.Caller, rel string, cancel <-chan struct{}) (went Name, err error) {
	dir, name, err := splitRel(rel)
	if err != nil {
		return Name{}, err
	}
	err = denied(cred.Strict(c, func() error {
		fd, err := openBeneath(s.rootFD, dir, unix.O_PATH|unix.O_DIRECTORY)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		d := s.nodeOf(fd)
		went = nameOf(d, name)
		return s.removal(c, cancel).tree(d, fd, name)
	}))
	return went, err
}

// RemoveDir is RemoveAll for a directory that the kernel knows, wherever it is
// now: ENOENT when it is nowhere.
func (s *Stage) RemoveDir(c cred.Caller, id uint64, cancel <-chan struct{}) (went Name, err error) {
	n, err := s.node(id)
	if err != nil {
		return Name{}, err
	}
	if n == s.root {
		return Name{}, unix.EINVAL
	}
	if !n.directory() {
		return Name{}, unix.ENOTDIR
	}
	// Brings the place up to date, if it is anywhere.
	fd, _, err := s.openNode(n, unix.O_PATH|unix.O_DIRECTORY, nil)
	if err != nil {
		return Name{}, gone(err)
	}
	unix.Close(fd)
	s.treeMu.RLock()
	at := n.place
	s.treeMu.RUnlock()
	fd, _, err = s.openNode(at.parent, unix.O_PATH|unix.O_DIRECTORY, &c)
	if err != nil {
		return Name{}, denied(gone(err))
	}
	defer unix.Close(fd)
	err = denied(cred.Strict(c, func() error {
		st, err := statAt(fd, at.name)
		if err != nil {
			return err
		}
		if identityOf(&st) != n.key {
			return unix.ENOENT
		}
		return s.removal(c, cancel).tree(at.parent, fd, at.name)
	}))
	return nameOf(at.parent, at.name), err
}

// gone is how a client that has a directory open hears that it is nowhere.
func gone(err error) error {
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

// RemoveEntry removes an entry of directory parent with the rights of c: with
// recursive everything below it too, as RemoveAll does, else a directory must be
// empty.
func (s *Stage) RemoveEntry(c cred.Caller, parent uint64, name string, recursive bool, cancel <-chan struct{}) error {
	d, err := s.node(parent)
	if err != nil {
		return err
	}
	if name == "" || name == "." || name == ".." {
		return unix.EINVAL
	}
	if s.hidden(d, name) {
		return unix.ENOENT
	}
	return s.inDir(d, func(fd int) error {
		return denied(cred.Strict(c, func() error {
			if recursive {
				return s.removal(c, cancel).tree(d, fd, name)
			}
			_, err := s.unlinkOne(d, fd, name)
			return err
		}))
	})
}

// denied is how 3FS says that rights are missing.
func denied(err error) error {
	if errors.Is(err, unix.EACCES) {
		return unix.EPERM
	}
	return err
}

// unlinkOne removes a file or an empty directory and says which it was. d is
// the node of the directory, or nil. The kernel does not know that it happens.
func (s *Stage) unlinkOne(d *node, dir int, name string) (isDir bool, err error) {
	s.renameMu.RLock()
	defer s.renameMu.RUnlock()
	st, err := statAt(dir, name)
	if err != nil {
		return false, err
	}
	if s.hiddenInode(&st) {
		return true, unix.ENOENT
	}
	how := 0
	if isDir = st.Mode&unix.S_IFMT == unix.S_IFDIR; isDir {
		how = unix.AT_REMOVEDIR
	}
	// No last sight is kept: the kernel, which does not know, would have us keep
	// a descriptor for each file of a tree.
	const noSight = -1
	if err := s.unlinkAt(place{d, name}, dir, how, &st, noSight); err != nil {
		return isDir, err
	}
	s.linksChanged(&st)
	return isDir, nil
}

// linksChanged has the kernel forget the attributes of an inode that lost one of
// its names behind its back.
func (s *Stage) linksChanged(st *unix.Statx_t) {
	if st.Nlink < 2 || st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return
	}
	if n, ok := s.byIdentity.get(identityOf(st)); ok {
		(*s.invalidate.Load())(n.id)
	}
}

// MoveInto renames what is at rel to a new entry of directory newParent with the
// rights of c. Errors are those of rename(2), EPERM for missing rights, EEXIST.
func (s *Stage) MoveInto(c cred.Caller, rel string, newParent uint64, newName string) (went Name, err error) {
	dir, name, err := splitRel(rel)
	if err != nil {
		return Name{}, err
	}
	to, err := s.node(newParent)
	if err != nil {
		return Name{}, err
	}
	if s.hidden(to, newName) {
		return Name{}, unix.EPERM
	}
	err = s.inDir(to, func(toFD int) error {
		return denied(cred.Strict(c, func() error {
			fd, err := openBeneath(s.rootFD, dir, unix.O_PATH|unix.O_DIRECTORY)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			d := s.nodeOf(fd)
			went = nameOf(d, name)
			s.renameMu.Lock()
			defer s.renameMu.Unlock()
			return s.renameAt(place{d, name}, fd, place{to, newName}, toFD, unix.RENAME_NOREPLACE)
		}))
	})
	return went, err
}
