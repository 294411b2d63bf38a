package tree

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/cred"
)

// Victim says which file is meant, and as it was seen last.
type Victim = struct {
	Key                FileKey
	SizeBytes, MtimeNs int64
}

// unsureGrace is how long a file must not have changed where the daemon may not ask the kernel
// whether somebody outside the mount has it open.
const unsureGrace = time.Hour

// Evict removes the file name of directory dir, a path below the data directory, to make
// room. The kernel's attributes of it become stale, so that it asks for them and learns that
// the file is gone; its entry stays until then, since dropping it would take the directory's
// lock: a daemon that is killed while it waits for that never ends if the holder of the lock
// waits for the daemon. ENOENT and others of openat2(2): there is no such file. ESTALE: it is another one, or has changed. EBUSY: somebody has it open or
// mapped, through the mount, a ring or the data directory.
func (t *Tree) Evict(dir, name string, want Victim) error {
	fd, err := openBeneath(t.rootFD, dir, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	d := t.nodeOf(fd)
	if t.hidden(d, name) {
		return unix.ENOENT
	}
	file, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	switch {
	case err == unix.ELOOP:
		return unix.ESTALE // a symbolic link
	case err == unix.EAGAIN:
		return unix.EBUSY // somebody has a lease on it
	case err != nil:
		return err
	}
	defer t.moves.share()()
	n, err := t.evict(place{d, name}, fd, file, want)
	if err == nil && n != nil {
		(*t.invalidate.Load())(n.id, false)
	}
	return err
}

// evict removes a victim, the entry p in the directory open as dir, which is open as file, and
// closes that. It returns the victim's node, if the kernel knows it. The caller is in a move.
func (t *Tree) evict(p place, dir, file int, want Victim) (*node, error) {
	closeFile := func() { unix.Close(file) }
	defer func() { closeFile() }()
	st, err := t.victim(file, want)
	if err != nil {
		return nil, err
	}
	// While the lease is held, nobody opens the file, so that no bytes are written to one that
	// is about to have no name: who tries waits, or tries again and finds no entry.
	if err := t.lease(file, &st); err != nil {
		return nil, err
	}
	now, err := statAt(dir, p.name)
	if err == nil && t.identityOf(&now) != t.identityOf(&st) {
		err = unix.ESTALE
	}
	if err != nil {
		return nil, err
	}
	n, _ := t.byIdentity.get(t.identityOf(&st))
	// No descriptor is kept for those who are about to open it: it would keep the blocks.
	leaves := t.leaves(p, dir, &st, -1)
	defer leaves.close()
	if err := unix.Unlinkat(dir, p.name, 0); err != nil {
		return nil, err
	}
	closeFile() // before it is said that the blocks are free
	closeFile = func() {}
	leaves.gone()
	t.left(p, &st)
	t.accountDir(p.parent, dir)
	return n, nil
}

// victim returns the status of an open file, and ESTALE if it is another one than want, has
// changed, or has got another name, so that removing this one would make no room.
func (t *Tree) victim(file int, want Victim) (unix.Statx_t, error) {
	st, err := statFD(file)
	switch {
	case err != nil:
		return st, err
	case st.Mode&unix.S_IFMT != unix.S_IFREG, st.Nlink != 1, keyOf(t.identityOf(&st)) != want.Key,
		int64(st.Size) != want.SizeBytes, st.Mtime.Sec*1e9+int64(st.Mtime.Nsec) != want.MtimeNs:
		return st, unix.ESTALE
	}
	return st, nil
}

// lease keeps everybody from opening a file, until the descriptor is closed, where the file
// system can do so. EBUSY: somebody but the caller has it open or mapped, as far as can be
// told.
func (t *Tree) lease(file int, st *unix.Statx_t) error {
	if n, known := t.byIdentity.get(t.identityOf(st)); known && n.open.Load() != nil {
		return unix.EBUSY
	}
	// The kernel grants a lease for writing only to the one who has it open alone.
	take := func() error {
		_, err := unix.FcntlInt(uintptr(file), unix.F_SETLEASE, unix.F_WRLCK)
		return err
	}
	err := take()
	if err == unix.EACCES {
		// It is another user's, and this process has not CAP_LEASE.
		err = cred.CreateAs(cred.Caller{UID: st.Uid, GID: st.Gid}, take)
	}
	switch err {
	case unix.EAGAIN:
		return unix.EBUSY
	case unix.EACCES, unix.EPERM:
		changed := max(st.Mtime.Sec, st.Ctime.Sec)
		if age := time.Since(time.Unix(changed, 0)); age < unsureGrace {
			return unix.EBUSY
		}
	}
	return nil // without leases, on a network file system, nobody can tell
}

// HasLeases reports whether the data directory's file system tells who has a file open.
func (t *Tree) HasLeases() bool {
	fd, _, err := t.Sample()
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	_, err = unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_WRLCK)
	return err == nil
}
