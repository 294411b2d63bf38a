package tree

import (
	"cmp"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/cred"
	"github.com/kv3fs/kv3fs/internal/fs/integrity"
)

// Lookup returns the node of an entry that a user asks for. It counts one reference to the node, which
// Forget drops.
func (t *Tree) Lookup(parent uint64, name string, uid uint32, keep time.Duration) (Entry, error) {
	d, err := t.node(parent)
	if err != nil {
		return Entry{}, err
	}
	if t.hidden(d, name) {
		return Entry{}, unix.ENOENT
	}
	began, generation := t.now(), t.renames.Load()
	var st unix.Statx_t
	err = t.inDir(d, func(fd int) error {
		st, err = statAt(fd, name)
		return err
	})
	if err == nil && t.hiddenInode(&st) {
		err = unix.ENOENT
	}
	t.lookedUp(place{d, name}, uid, &st, err)
	if err != nil {
		return Entry{}, err
	}
	n, fresh := t.remember(place{d, name}, &st, generation)
	e := t.entry(n, &st, began, keep)
	e.New = fresh
	return e, nil
}

// make creates an entry with fn, as c, and looks it up.
func (t *Tree) make(parent uint64, name string, c cred.Caller, keep time.Duration, proceed []Proceed, fn func(dir int) error) (Entry, error) {
	d, err := t.node(parent)
	if err != nil {
		return Entry{}, err
	}
	if t.hidden(d, name) {
		return Entry{}, unix.EPERM
	}
	t.making(place{d, name}, c.UID, true)
	began, generation := t.now(), t.renames.Load()
	var st unix.Statx_t
	err = t.growDir(d, func(fd int) error {
		if err := cred.CreateAs(c, after(proceed, func() error { return fn(fd) })); err != nil {
			return err
		}
		if st, err = statAt(fd, name); err == nil {
			t.created(d, fd, name, &st)
		}
		return err
	})
	if err != nil {
		return Entry{}, err
	}
	n, fresh := t.remember(place{d, name}, &st, generation)
	e := t.entry(n, &st, began, keep)
	e.New = fresh
	return e, nil
}

// Mkdir creates a directory that belongs to c. The client's umask has been applied to
// mode, here and in Mknod and Create.
func (t *Tree) Mkdir(parent uint64, name string, mode uint32, c cred.Caller, keep time.Duration, proceed ...Proceed) (Entry, error) {
	return t.make(parent, name, c, keep, proceed, func(dir int) error {
		return unix.Mkdirat(dir, name, mode&0o7777)
	})
}

// Mknod creates an empty regular file that belongs to c.
func (t *Tree) Mknod(parent uint64, name string, mode uint32, c cred.Caller, keep time.Duration, proceed ...Proceed) (Entry, error) {
	return t.make(parent, name, c, keep, proceed, func(dir int) error {
		return unix.Mknodat(dir, name, unix.S_IFREG|mode&0o7777, 0)
	})
}

// Symlink creates a symbolic link that belongs to c.
func (t *Tree) Symlink(parent uint64, name, target string, c cred.Caller, keep time.Duration, proceed ...Proceed) (Entry, error) {
	return t.make(parent, name, c, keep, proceed, func(dir int) error { return unix.Symlinkat(target, dir, name) })
}

// Link gives the inode of node id one more name.
func (t *Tree) Link(id, parent uint64, name string, c cred.Caller, keep time.Duration, proceed ...Proceed) (Entry, error) {
	return t.link(id, parent, name, c.UID, keep, nil, func(fn func() error) error { return cred.CreateAs(c, after(proceed, fn)) })
}

// LinkAs is Link for requests that the kernel has not checked; it checks the rights
// of c.
func (t *Tree) LinkAs(id, parent uint64, name string, c cred.Caller, proceed ...Proceed) error {
	may := func(dir int) error { return cred.RunAs(c, func() error { return mayChange(dir) }) }
	e, err := t.link(id, parent, name, c.UID, 0, may, func(fn func() error) error { return cred.RunAs(c, after(proceed, fn)) })
	if err == nil {
		t.Forget(e.ID, 1)
	}
	return denied(err)
}

func (t *Tree) link(id, parent uint64, name string, uid uint32, keep time.Duration, may func(dir int) error, as func(func() error) error) (Entry, error) {
	n, err := t.node(id)
	if err != nil {
		return Entry{}, err
	}
	d, err := t.node(parent)
	if err != nil {
		return Entry{}, err
	}
	if n.directory() {
		return Entry{}, unix.EISDIR
	}
	if t.hidden(d, name) {
		return Entry{}, unix.EPERM
	}
	t.making(place{d, name}, uid, true)
	began := t.now()
	var st unix.Statx_t
	var linked *node
	err = t.onInode(n, func(fd int, is *unix.Statx_t) error {
		return t.growDir(d, func(dir int) error {
			if may != nil {
				if err := may(dir); err != nil {
					return err
				}
			}
			of, err := is, error(nil)
			if of == nil {
				var now unix.Statx_t
				now, err = statFD(fd)
				of = &now
			}
			if err != nil {
				return err
			}
			return t.moveIn(d, name, of, nil, time.Now().Add(renamePatience), func() error {
				// For a file without a name this one becomes its place, so it must not be
				// doubted because of a rename elsewhere.
				defer t.moves.exclude()()
				err := as(func() error {
					return t.keepingSums(n, fd, func() error {
						return unix.Linkat(unix.AT_FDCWD, procPath(fd), dir, name, unix.AT_SYMLINK_FOLLOW)
					})
				})
				if err != nil {
					return err
				}
				if st, err = statAt(dir, name); err == nil {
					linked, _ = t.remember(place{d, name}, &st, t.renames.Load())
					t.created(d, dir, name, &st)
				}
				return err
			})
		})
	})
	if err != nil {
		return Entry{}, err
	}
	return t.momentary(linked, &st, began, keep), nil
}

// Create opens name in parent for c and creates it with mode where it is missing.
// The caller has checked that c may create there. Whether c may open a file that
// exists already is the kernel's decision.
func (t *Tree) Create(parent uint64, name string, flags int, mode uint32, c cred.Caller, keep time.Duration, proceed ...Proceed) (Entry, *Handle, error) {
	d, err := t.node(parent)
	if err != nil {
		return Entry{}, nil, err
	}
	if t.hidden(d, name) {
		return Entry{}, nil, unix.EPERM
	}
	t.making(place{d, name}, c.UID, false)
	access := flags & unix.O_ACCMODE
	began, generation := t.now(), t.renames.Load()
	fd, made := -1, false
	err = t.growDir(d, func(dir int) (err error) {
		for range createTries {
			fd, made, err = openOrMake(dir, name, flags, mode, c, proceed)
			if !errors.Is(err, unix.ENOENT) {
				break
			}
		}
		if made && t.usage != nil {
			if st, err := statFD(fd); err == nil {
				t.created(d, dir, name, &st)
			}
		}
		return err
	})
	if errors.Is(err, unix.ELOOP) {
		err = unix.ESTALE // a symbolic link: the kernel looks it up again and follows it
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
	n, fresh := t.remember(place{d, name}, &st, generation)
	f := t.adopt(n, fd, access, c.UID)
	f.sums(made)
	h := f.handle(holder{uid: c.UID}, access, directions{true, true})
	if !made {
		keep = momentaryKeep(n, keep)
	}
	e := t.entry(n, &st, began, keep)
	e.New = fresh
	return e, h, nil
}

// CreateUnnamed opens a new file that has no name yet, on the file system of directory parent,
// for c. The caller has checked that c may create there. Of flags, only the access mode and
// O_EXCL, which forbids to give it a name, matter. Errors: EOPNOTSUPP where the backing file
// system has no such files.
func (t *Tree) CreateUnnamed(parent uint64, flags int, mode uint32, c cred.Caller, keep time.Duration) (Entry, *Handle, error) {
	d, err := t.node(parent)
	if err != nil {
		return Entry{}, nil, err
	}
	access := flags & unix.O_ACCMODE
	began := t.now()
	fd := -1
	err = t.growDir(d, func(dir int) error {
		return cred.CreateAs(c, func() (err error) {
			fd, err = unix.Openat(dir, ".", unix.O_TMPFILE|access|flags&unix.O_EXCL|unix.O_CLOEXEC, mode&0o7777)
			return err
		})
	})
	if errors.Is(err, unix.EISDIR) || errors.Is(err, unix.ENOSYS) {
		err = unix.EOPNOTSUPP // a file system that knows nothing of O_TMPFILE
	}
	if err != nil {
		return Entry{}, nil, err
	}
	st, err := statFD(fd)
	if err != nil {
		unix.Close(fd)
		return Entry{}, nil, err
	}
	// Its place is one where nothing can be: it is reached through its handles only.
	n, fresh := t.remember(place{d, ""}, &st, t.renames.Load())
	f := t.adopt(n, fd, access, c.UID)
	f.sums(true)
	h := f.handle(holder{uid: c.UID}, access, directions{true, true})
	e := t.entry(n, &st, began, keep)
	e.New = fresh
	return e, h, nil
}

// createTries bounds how often another client may create the file and remove it again
// before Create has opened it.
const createTries = 8

// openOrMake opens name in dir as Create does. ENOENT means that the file existed and
// was removed before it could be opened.
func openOrMake(dir int, name string, flags int, mode uint32, c cred.Caller, proceed []Proceed) (fd int, made bool, err error) {
	how := flags&unix.O_ACCMODE | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC
	fd = -1
	err = cred.CreateAs(c, after(proceed, func() (err error) {
		fd, err = unix.Openat(dir, name, how|unix.O_CREAT|unix.O_EXCL, mode&0o7777)
		return err
	}))
	if !errors.Is(err, unix.EEXIST) || flags&unix.O_EXCL != 0 {
		return fd, err == nil, err
	}
	if flags&unix.O_TRUNC != 0 {
		if err := ask(proceed); err != nil {
			return -1, false, err
		}
	}
	// Another client has created it first.
	err = cred.RunAs(c, func() (err error) {
		fd, err = openPatiently(func() (int, error) { return unix.Openat(dir, name, how|flags&unix.O_TRUNC, 0) })
		return err
	})
	return fd, false, err
}

// adopt adds fd, an open descriptor of n, to the open state of n. It returns a
// reference to the file with that access mode, and closes fd if n had one already.
func (t *Tree) adopt(n *node, fd, access int, uid uint32) *File {
	of := t.useOpen(n)
	f := of.files[access]
	spare := f != nil
	if !spare {
		f = t.newFile(of, fd, access, uid)
	}
	of.useLocked(f)
	of.mu.Unlock()
	if spare {
		unix.Close(fd)
	}
	return f
}

// Unlink removes an entry that is not a directory.
func (t *Tree) Unlink(parent uint64, name string, proceed ...Proceed) error {
	return t.remove(parent, name, 0, proceed)
}

// Rmdir removes an empty directory.
func (t *Tree) Rmdir(parent uint64, name string, proceed ...Proceed) error {
	return t.remove(parent, name, unix.AT_REMOVEDIR, proceed)
}

func (t *Tree) remove(parent uint64, name string, how int, proceed []Proceed) error {
	d, err := t.node(parent)
	if err != nil {
		return err
	}
	if t.hidden(d, name) {
		return unix.ENOENT
	}
	return t.inDir(d, func(fd int) error {
		defer t.moves.share()()
		st, err := statAt(fd, name)
		if err == nil && t.hiddenInode(&st) {
			err = unix.ENOENT
		}
		if err != nil {
			return err
		}
		return t.unlinkAt(place{d, name}, fd, how, &st, t.openLastName(fd, name, &st), proceed)
	})
}

// unlinkAt removes the entry p, in the directory open as fd. The entry's status is st.
// p.parent is nil for a directory that the kernel does not know. orphanFD is
// openLastName's or -1. The caller is in a move.
func (t *Tree) unlinkAt(p place, fd, how int, st *unix.Statx_t, orphanFD int, proceed []Proceed) error {
	leaves := t.leaves(p, fd, st, orphanFD)
	defer leaves.close()
	if err := after(proceed, func() error { return unix.Unlinkat(fd, p.name, how) }, p.parent)(); err != nil {
		if orphanFD >= 0 {
			unix.Close(orphanFD)
		}
		return err
	}
	t.orphan(st, orphanFD, leaves)
	t.left(p, st)
	t.accountDir(p.parent, fd)
	return nil
}

// left records that the inode of st is no longer in place p.
func (t *Tree) left(p place, st *unix.Statx_t) {
	t.sumsGone(st)
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		t.unlock(t.identityOf(st))
	}
	if n, ok := t.byIdentity.get(t.identityOf(st)); ok {
		t.gone(n, p, st.Nlink <= 1 || n.directory())
	}
}

// Rename moves an entry for c and replaces what is there, unless flags, those of
// renameat2(2), say RENAME_NOREPLACE or RENAME_EXCHANGE. The caller has checked the client's
// rights. Errors: EINVAL for other flags and where the backing file system has none, EPERM
// for a directory that would enter the trash.
func (t *Tree) Rename(parent uint64, name string, newParent uint64, newName string, flags uint32, c cred.Caller, proceed ...Proceed) error {
	const known = unix.RENAME_NOREPLACE | unix.RENAME_EXCHANGE
	if flags&^known != 0 {
		return unix.EINVAL
	}
	return t.renameBetween(parent, name, newParent, newName, c.UID, flags, proceed, nil, func(from place, fromFD int, to place, toFD int, fn func() error) error {
		if err := t.mayTrash(c, t.inTrash(from.parent), fromFD, name, to.parent); err != nil {
			return err
		}
		if flags == unix.RENAME_EXCHANGE {
			if err := t.mayTrash(c, t.inTrash(to.parent), toFD, newName, from.parent); err != nil {
				return err
			}
		}
		defer t.moves.share()()
		if !c.Root() && t.nearReserve() { // the directory may need a block
			return cred.CreateAs(c, fn)
		}
		return fn()
	})
}

// RenameAs is Rename without flags for requests where the kernel has neither checked rights
// nor locked the directories; it checks the rights of c. With trash, directories may enter
// the trash: the caller has checked that.
func (t *Tree) RenameAs(parent uint64, name string, newParent uint64, newName string, c cred.Caller, trash bool, proceed ...Proceed) error {
	may := func(fromFD, toFD int) error {
		return cred.RunAs(c, func() error { return cmp.Or(mayChange(fromFD), mayChange(toFD)) })
	}
	return denied(t.renameBetween(parent, name, newParent, newName, c.UID, 0, proceed, may, func(from place, fromFD int, to place, _ int, fn func() error) error {
		if !trash {
			if err := t.mayTrash(c, t.inTrash(from.parent), fromFD, name, to.parent); err != nil {
				return err
			}
		}
		defer t.moves.exclude()()
		return cred.RunAs(c, fn)
	}))
}

// mayChange returns EACCES or EROFS if the thread may make no entries in a directory.
func mayChange(dir int) error {
	err := unix.Faccessat(dir, "", unix.W_OK|unix.X_OK, unix.AT_EACCESS|unix.AT_EMPTY_PATH)
	if err == unix.EACCES || err == unix.EROFS {
		return err
	}
	return nil // where the kernel cannot tell, the change itself does
}

// renameBetween looks up the directories of a rename and calls as with them and with what
// renames. may is asked before room is made for what moves, nil if the kernel has checked that.
func (t *Tree) renameBetween(parent uint64, name string, newParent uint64, newName string, uid, flags uint32, proceed []Proceed, may func(fromFD, toFD int) error,
	as func(from place, fromFD int, to place, toFD int, fn func() error) error) error {
	from, err := t.node(parent)
	if err != nil {
		return err
	}
	to, err := t.node(newParent)
	if err != nil {
		return err
	}
	if t.hidden(from, name) {
		return unix.ENOENT
	}
	if t.hidden(to, newName) {
		return unix.EPERM
	}
	src, dst := place{from, name}, place{to, newName}
	t.making(dst, uid, true)
	return t.inDir(from, func(fromFD int) error {
		deadline := time.Now().Add(entryPatience)
		if from != to {
			deadline = time.Now().Add(renamePatience)
		}
		return t.growDirBy(to, deadline, func(toFD int) error {
			if may != nil {
				if err := may(fromFD, toFD); err != nil {
					return err
				}
			}
			return t.renameIn(src, fromFD, dst, toFD, flags, deadline, func() error {
				return as(src, fromFD, dst, toFD, func() error { return t.renameAt(src, fromFD, dst, toFD, flags, proceed) })
			})
		})
	})
}

// renameToFree is renameAt to a name that is not taken: EEXIST. Where the file system knows
// no flags, an entry that is created at this moment is replaced.
func (t *Tree) renameToFree(from place, fromFD int, to place, toFD int, proceed []Proceed) error {
	err := t.renameAt(from, fromFD, to, toFD, unix.RENAME_NOREPLACE, proceed)
	if err != unix.EINVAL {
		return err
	}
	if _, taken := statAt(toFD, to.name); !errors.Is(taken, unix.ENOENT) {
		return err
	}
	return t.renameAt(from, fromFD, to, toFD, 0, proceed)
}

// renameAt renames an entry and updates the tree. The caller is in a move. A parent
// is nil for a directory that the kernel does not know. flags are those of
// renameat2(2): none, RENAME_NOREPLACE or RENAME_EXCHANGE.
func (t *Tree) renameAt(from place, fromFD int, to place, toFD int, flags uint32, proceed []Proceed) error {
	source, err := statAt(fromFD, from.name)
	if err == nil && t.hiddenInode(&source) {
		err = unix.ENOENT
	}
	if err != nil {
		return err
	}
	victim, victimErr := statAt(toFD, to.name)
	if victimErr == nil && t.hiddenInode(&victim) {
		return unix.EPERM
	}
	orphanFD := -1
	if victimErr == nil && t.identityOf(&victim) != t.identityOf(&source) && flags == 0 {
		orphanFD = t.openLastName(toFD, to.name, &victim)
	}
	var leaves leaving
	if victimErr == nil && flags == 0 {
		leaves = t.leaves(to, toFD, &victim, orphanFD)
		defer leaves.close()
	}
	// Counted at the start and at the end: a lookup that saw an entry before or
	// during the rename finds another count and does not rely on what it saw.
	t.renames.Add(1)
	defer t.renames.Add(1)
	moved, back := t.moving(&source, fromFD, from.name), integrity.Move{}
	if flags == unix.RENAME_EXCHANGE && victimErr == nil {
		back = t.moving(&victim, toFD, to.name)
	}
	what, _ := t.byIdentity.get(t.identityOf(&source))
	t.noteMoving(what, from, to)
	if victimErr == nil && flags == unix.RENAME_EXCHANGE {
		other, _ := t.byIdentity.get(t.identityOf(&victim))
		t.noteMoving(other, to, from)
	}
	t.Commit()
	err = after(proceed, func() error { return unix.Renameat2(fromFD, from.name, toFD, to.name, uint(flags)) }, from.parent, to.parent, what)()
	if err != nil {
		if orphanFD >= 0 {
			unix.Close(orphanFD)
		}
		return err
	}
	moved.Done(toFD, to.name)
	back.Done(fromFD, from.name)
	if victimErr == nil {
		if t.identityOf(&victim) == t.identityOf(&source) {
			return nil // two names of one inode: rename(2) does nothing
		}
		if flags == unix.RENAME_EXCHANGE {
			t.exchanged(from, to, &source, &victim)
			t.renamed(from, fromFD, to, toFD, &source)
			t.renamed(to, toFD, from, fromFD, &victim)
			return nil
		}
		t.orphan(&victim, orphanFD, leaves)
		t.left(to, &victim)
		t.linksChanged(&victim)
	}
	t.movedTo(from, to, &source)
	t.renamed(from, fromFD, to, toFD, &source)
	t.accountDir(from.parent, fromFD)
	t.accountDir(to.parent, toFD)
	return nil
}

// movedTo records that the inode of st was renamed.
func (t *Tree) movedTo(from, to place, st *unix.Statx_t) {
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		t.rights.Add(1)
	}
	if n, ok := t.byIdentity.get(t.identityOf(st)); ok && to.parent != nil {
		t.moved(n, from, to)
	}
}

// exchanged records that two inodes have taken each other's place.
func (t *Tree) exchanged(a, b place, first, second *unix.Statx_t) {
	t.movedTo(a, b, first)
	t.movedTo(b, a, second)
}
