package stage

import (
	"errors"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/cred"
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

// Locate returns the node of the directory that rel is in, if the kernel knows
// it, and rel's last name.
func (s *Stage) Locate(rel string) (parent uint64, name string, known bool) {
	dir, name, err := splitRel(rel)
	if err != nil {
		return 0, "", false
	}
	fd, err := openBeneath(s.rootFD, dir, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return 0, "", false
	}
	defer unix.Close(fd)
	n := s.nodeOf(fd)
	if n == nil {
		return 0, "", false
	}
	return n.id, name, true
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

// PathOf returns the path of a node below the root.
func (s *Stage) PathOf(id uint64) (string, error) {
	n, err := s.node(id)
	if err != nil {
		return "", err
	}
	s.treeMu.RLock()
	defer s.treeMu.RUnlock()
	if n == s.root {
		return "", nil
	}
	return s.pathLocked(n.place), nil
}

// RemoveAll removes what is at rel and everything below it with the rights of
// c, following no symbolic link. Errors: EINVAL for the root, EPERM when c may
// not (part of it may be gone then), others from the kernel.
func (s *Stage) RemoveAll(c cred.Caller, rel string) error {
	dir, name, err := splitRel(rel)
	if err != nil {
		return err
	}
	return denied(cred.Strict(c, func() error {
		fd, err := openBeneath(s.rootFD, dir, unix.O_PATH|unix.O_DIRECTORY)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return s.removeTree(s.nodeOf(fd), fd, name)
	}))
}

// RemoveEntry removes an entry of directory parent with the rights of c: with
// recursive everything below it too, else a directory must be empty.
func (s *Stage) RemoveEntry(c cred.Caller, parent uint64, name string, recursive bool) error {
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
				return s.removeTree(d, fd, name)
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
// the node of the directory, or nil.
func (s *Stage) unlinkOne(d *node, dir int, name string) (isDir bool, err error) {
	s.renameMu.RLock()
	defer s.renameMu.RUnlock()
	st, err := statAt(dir, name)
	if err != nil {
		return false, err
	}
	how := 0
	if isDir = st.Mode&unix.S_IFMT == unix.S_IFDIR; isDir {
		how = unix.AT_REMOVEDIR
	}
	if err := unix.Unlinkat(dir, name, how); err != nil {
		return isDir, err
	}
	s.left(place{d, name}, &st)
	return isDir, nil
}

func (s *Stage) removeTree(d *node, dir int, name string) error {
	isDir, err := s.unlinkOne(d, dir, name)
	if !isDir || !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
		return err
	}
	if err := s.emptyDir(dir, name); err != nil {
		return err
	}
	_, err = s.unlinkOne(d, dir, name)
	return err
}

func (s *Stage) emptyDir(dir int, name string) error {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	list := &Dir{stage: s, node: s.nodeOf(fd), fd: fd}
	defer list.Close()
	for {
		// Removing moves entries on some file systems: start over until a pass
		// removes nothing.
		removed := 0
		var failed error
		_, err := list.List(0, func(e Dirent) bool {
			failed = s.removeTree(list.node, fd, e.Name)
			switch {
			case failed == nil:
				removed++
			case errors.Is(failed, unix.ENOENT):
				failed = nil // somebody else was faster
			}
			return failed == nil
		})
		if failed != nil {
			return failed
		}
		if err != nil || removed == 0 {
			return err
		}
	}
}

// MoveInto renames what is at rel to an entry of directory newParent with the
// rights of c. Errors are those of rename(2), EPERM for missing rights.
func (s *Stage) MoveInto(c cred.Caller, rel string, newParent uint64, newName string) error {
	dir, name, err := splitRel(rel)
	if err != nil {
		return err
	}
	to, err := s.node(newParent)
	if err != nil {
		return err
	}
	if s.hidden(to, newName) {
		return unix.EPERM
	}
	return s.inDir(to, func(toFD int) error {
		return denied(cred.Strict(c, func() error {
			fd, err := openBeneath(s.rootFD, dir, unix.O_PATH|unix.O_DIRECTORY)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			s.renameMu.Lock()
			defer s.renameMu.Unlock()
			return s.renameAt(place{s.nodeOf(fd), name}, fd, place{to, newName}, toFD)
		}))
	})
}
