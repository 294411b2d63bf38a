package tree

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/cred"
)

// Lookup returns the node of an entry and counts one reference to it, which
// Forget takes back.
func (s *Stage) Lookup(parent uint64, name string, keep time.Duration) (Entry, error) {
	d, err := s.node(parent)
	if err != nil {
		return Entry{}, err
	}
	if s.hidden(d, name) {
		return Entry{}, unix.ENOENT
	}
	began, generation := s.now(), s.renames.Load()
	var st unix.Statx_t
	err = s.inDir(d, func(fd int) error {
		st, err = statAt(fd, name)
		return err
	})
	if err == nil && s.hiddenInode(&st) {
		err = unix.ENOENT
	}
	if err != nil {
		return Entry{}, err
	}
	n := s.remember(place{d, name}, &st, generation)
	return s.entry(n, &st, began, keep), nil
}

// make creates an entry with fn, as c, and looks it up.
func (s *Stage) make(parent uint64, name string, c cred.Caller, keep time.Duration, fn func(dir int) error) (Entry, error) {
	d, err := s.node(parent)
	if err != nil {
		return Entry{}, err
	}
	if s.hidden(d, name) {
		return Entry{}, unix.EPERM
	}
	began, generation := s.now(), s.renames.Load()
	var st unix.Statx_t
	err = s.inDir(d, func(fd int) error {
		if err := cred.Owner(c, func() error { return fn(fd) }); err != nil {
			return err
		}
		st, err = statAt(fd, name)
		return err
	})
	if err != nil {
		return Entry{}, err
	}
	n := s.remember(place{d, name}, &st, generation)
	return s.entry(n, &st, began, keep), nil
}

// Mkdir creates a directory that belongs to c. The mode has the client's umask
// applied already, here and below.
func (s *Stage) Mkdir(parent uint64, name string, mode uint32, c cred.Caller, keep time.Duration) (Entry, error) {
	return s.make(parent, name, c, keep, func(dir int) error {
		return unix.Mkdirat(dir, name, mode&0o7777)
	})
}

// Mknod creates an empty regular file that belongs to c.
func (s *Stage) Mknod(parent uint64, name string, mode uint32, c cred.Caller, keep time.Duration) (Entry, error) {
	return s.make(parent, name, c, keep, func(dir int) error {
		return unix.Mknodat(dir, name, unix.S_IFREG|mode&0o7777, 0)
	})
}

// Symlink creates a symbolic link that belongs to c.
func (s *Stage) Symlink(parent uint64, name, target string, c cred.Caller, keep time.Duration) (Entry, error) {
	return s.make(parent, name, c, keep, func(dir int) error { return unix.Symlinkat(target, dir, name) })
}

// Link gives the inode of node id one more name.
func (s *Stage) Link(id, parent uint64, name string, c cred.Caller, keep time.Duration) (Entry, error) {
	return s.link(id, parent, name, keep, func(fn func() error) error { return cred.Owner(c, fn) })
}

// LinkAs is Link where nobody has checked whether c may.
func (s *Stage) LinkAs(id, parent uint64, name string, c cred.Caller) error {
	e, err := s.link(id, parent, name, 0, func(fn func() error) error { return cred.Strict(c, fn) })
	if err == nil {
		s.Forget(e.ID, 1)
	}
	return denied(err)
}

func (s *Stage) link(id, parent uint64, name string, keep time.Duration, as func(func() error) error) (Entry, error) {
	n, err := s.node(id)
	if err != nil {
		return Entry{}, err
	}
	d, err := s.node(parent)
	if err != nil {
		return Entry{}, err
	}
	if n.directory() {
		return Entry{}, unix.EISDIR
	}
	if s.hidden(d, name) {
		return Entry{}, unix.EPERM
	}
	began, generation := s.now(), s.renames.Load()
	var st unix.Statx_t
	err = s.onInode(n, func(fd int, _ *unix.Statx_t) error {
		return s.inDir(d, func(dir int) error {
			err := as(func() error {
				return unix.Linkat(unix.AT_FDCWD, procPath(fd), dir, name, unix.AT_SYMLINK_FOLLOW)
			})
			if err != nil {
				return err
			}
			st, err = statAt(dir, name)
			return err
		})
	})
	if err != nil {
		return Entry{}, err
	}
	linked := s.remember(place{d, name}, &st, generation)
	return s.momentary(linked, &st, began, keep), nil
}

// Create opens name in parent for c, making it with mode when there is none.
// The caller has checked that c may create there; whether c may open what is
// there already is the kernel's decision.
func (s *Stage) Create(parent uint64, name string, flags int, mode uint32, c cred.Caller, keep time.Duration) (Entry, *Handle, error) {
	d, err := s.node(parent)
	if err != nil {
		return Entry{}, nil, err
	}
	if s.hidden(d, name) {
		return Entry{}, nil, unix.EPERM
	}
	access := flags & unix.O_ACCMODE
	began, generation := s.now(), s.renames.Load()
	fd, made := -1, false
	err = s.inDir(d, func(dir int) (err error) {
		for range createTries {
			fd, made, err = openOrMake(dir, name, flags, mode, c)
			if !errors.Is(err, unix.ENOENT) {
				break
			}
		}
		return err
	})
	if errors.Is(err, unix.ELOOP) {
		err = unix.ESTALE // a symbolic link: the kernel looks again and follows it
	}
	if err != nil {
		if fd >= 0 {
			unix.Close(fd)
		}
		return Entry{}, nil, err
	}
	st, err := statFD(fd)
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = unix.ESTALE
	}
	if err != nil {
		unix.Close(fd)
		return Entry{}, nil, err
	}
	n := s.remember(place{d, name}, &st, generation)
	f := s.adopt(n, fd, access)
	h := f.handle(c, access, directions{true, true})
	if !made {
		return s.momentary(n, &st, began, keep), h, nil
	}
	return s.entry(n, &st, began, keep), h, nil
}

// How often a file may go between its creation by others and its opening.
const createTries = 8

// openOrMake opens name in dir as Create does; ENOENT: it was there and then not.
func openOrMake(dir int, name string, flags int, mode uint32, c cred.Caller) (fd int, made bool, err error) {
	how := flags&unix.O_ACCMODE | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC
	err = cred.Owner(c, func() (err error) {
		fd, err = unix.Openat(dir, name, how|unix.O_CREAT|unix.O_EXCL, mode&0o7777)
		return err
	})
	if !errors.Is(err, unix.EEXIST) || flags&unix.O_EXCL != 0 {
		return fd, err == nil, err
	}
	// Somebody else was faster.
	err = cred.Strict(c, func() (err error) {
		fd, err = unix.Openat(dir, name, how|flags&unix.O_TRUNC, 0)
		return err
	})
	return fd, false, err
}

// adopt gives an open descriptor of n to its open state and returns a reference
// on the file with the access mode.
func (s *Stage) adopt(n *node, fd, access int) *File {
	of := s.useOpen(n)
	f := of.files[access]
	spare := f != nil
	if !spare {
		f = &File{of: of, fd: fd, access: access}
		of.files[access] = f
	}
	of.useLocked(f)
	of.mu.Unlock()
	if spare {
		unix.Close(fd)
	}
	return f
}

// Unlink removes an entry that is no directory.
func (s *Stage) Unlink(parent uint64, name string) error { return s.remove(parent, name, 0) }

// Rmdir removes an empty directory.
func (s *Stage) Rmdir(parent uint64, name string) error {
	return s.remove(parent, name, unix.AT_REMOVEDIR)
}

func (s *Stage) remove(parent uint64, name string, how int) error {
	d, err := s.node(parent)
	if err != nil {
		return err
	}
	if s.hidden(d, name) {
		return unix.ENOENT
	}
	return s.inDir(d, func(fd int) error {
		s.renameMu.RLock()
		defer s.renameMu.RUnlock()
		st, err := statAt(fd, name)
		if err == nil && s.hiddenInode(&st) {
			err = unix.ENOENT
		}
		if err != nil {
			return err
		}
		return s.unlinkAt(place{d, name}, fd, how, &st, s.lastSight(fd, name, &st))
	})
}

// unlinkAt removes the entry at at, in the directory open as fd, whose status is
// st. at.parent may be nil: a directory that the kernel does not know. sight is
// lastSight's or -1. The caller holds renameMu.
func (s *Stage) unlinkAt(at place, fd, how int, st *unix.Statx_t, sight int) error {
	if err := unix.Unlinkat(fd, at.name, how); err != nil {
		if sight >= 0 {
			unix.Close(sight)
		}
		return err
	}
	s.orphan(st, sight)
	s.left(at, st)
	return nil
}

// left notes that the inode of st is no longer at at.
func (s *Stage) left(at place, st *unix.Statx_t) {
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		s.unlockGone(identityOf(st))
	}
	if n, ok := s.byIdentity.get(identityOf(st)); ok {
		s.gone(n, at, st.Nlink <= 1 || n.directory())
	}
}

// Rename moves an entry, replacing what is there. The caller has checked that
// it may be.
func (s *Stage) Rename(parent uint64, name string, newParent uint64, newName string) error {
	return s.renameBetween(parent, name, newParent, newName, func(fn func() error) error {
		s.renameMu.RLock()
		defer s.renameMu.RUnlock()
		return fn()
	})
}

// RenameAs is Rename where nobody has checked whether c may, and the kernel
// holds no lock on the directories.
func (s *Stage) RenameAs(parent uint64, name string, newParent uint64, newName string, c cred.Caller) error {
	return denied(s.renameBetween(parent, name, newParent, newName, func(fn func() error) error {
		s.renameMu.Lock()
		defer s.renameMu.Unlock()
		return cred.Strict(c, fn)
	}))
}

func (s *Stage) renameBetween(parent uint64, name string, newParent uint64, newName string, as func(func() error) error) error {
	from, err := s.node(parent)
	if err != nil {
		return err
	}
	to, err := s.node(newParent)
	if err != nil {
		return err
	}
	if s.hidden(from, name) {
		return unix.ENOENT
	}
	if s.hidden(to, newName) {
		return unix.EPERM
	}
	return s.inDir(from, func(fromFD int) error {
		return s.inDir(to, func(toFD int) error {
			return as(func() error {
				return s.renameAt(place{from, name}, fromFD, place{to, newName}, toFD, 0)
			})
		})
	})
}

// renameAt does a rename and brings the tree up to date. The caller holds
// renameMu. A parent may be nil: a directory that the kernel does not know. flags
// are those of renameat2(2): none, or RENAME_NOREPLACE.
func (s *Stage) renameAt(from place, fromFD int, to place, toFD, flags int) error {
	source, err := statAt(fromFD, from.name)
	if err == nil && s.hiddenInode(&source) {
		err = unix.ENOENT
	}
	if err != nil {
		return err
	}
	victim, victimErr := statAt(toFD, to.name)
	sight := -1
	if victimErr == nil && identityOf(&victim) != identityOf(&source) {
		sight = s.lastSight(toFD, to.name, &victim)
	}
	// Odd while it is under way: whoever saw the entry before or during it does
	// not trust that sight.
	s.renames.Add(1)
	defer s.renames.Add(1)
	err = unix.Renameat2(fromFD, from.name, toFD, to.name, uint(flags))
	if err == unix.EINVAL && flags == unix.RENAME_NOREPLACE && errors.Is(victimErr, unix.ENOENT) {
		// A file system that knows no flags. What is made at this moment is lost.
		err = unix.Renameat2(fromFD, from.name, toFD, to.name, 0)
	}
	if err != nil {
		if sight >= 0 {
			unix.Close(sight)
		}
		return err
	}
	if victimErr == nil {
		if identityOf(&victim) == identityOf(&source) {
			return nil // two names of one inode: rename(2) does nothing
		}
		s.orphan(&victim, sight)
		s.left(to, &victim)
		s.linksChanged(&victim)
	}
	if source.Mode&unix.S_IFMT == unix.S_IFDIR {
		s.rights.Add(1)
	}
	if n, ok := s.byIdentity.get(identityOf(&source)); ok && to.parent != nil {
		s.moved(n, from, to)
	}
	return nil
}
