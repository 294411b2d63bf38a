package tree

import "golang.org/x/sys/unix"

// Victim says which file is meant, and as it was seen last.
type Victim = struct {
	Key                FileKey
	SizeBytes, MtimeNs int64
}

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
	if d == t.root && name == StateName {
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
	err = t.isVictim(file, want)
	if err == nil && t.inUseBy(file) {
		err = unix.EBUSY
	}
	unix.Close(file) // it would keep the blocks
	if err != nil {
		return err
	}
	st, err := statAt(fd, name)
	if err == nil && keyOf(t.identityOf(&st)) != want.Key {
		err = unix.ESTALE
	}
	if err != nil {
		return err
	}
	n, known := t.byIdentity.get(t.identityOf(&st))
	// No descriptor is kept for those who are about to open it: it would keep the blocks.
	if err := t.unlinkAt(place{d, name}, fd, 0, &st, -1); err != nil {
		return err
	}
	if known {
		(*t.invalidate.Load())(n.id, false)
	}
	return nil
}

// isVictim returns ESTALE if the open file is another one than want, has changed, or has got
// another name, so that removing this one would make no room.
func (t *Tree) isVictim(file int, want Victim) error {
	st, err := statFD(file)
	switch {
	case err != nil:
		return err
	case st.Mode&unix.S_IFMT != unix.S_IFREG, st.Nlink != 1, keyOf(t.identityOf(&st)) != want.Key,
		int64(st.Size) != want.SizeBytes, st.Mtime.Sec*1e9+int64(st.Mtime.Nsec) != want.MtimeNs:
		return unix.ESTALE
	}
	return nil
}

// inUseBy reports whether anybody but the caller has the file open or mapped, as far as the
// file system can tell.
func (t *Tree) inUseBy(file int) bool {
	st, err := statFD(file)
	if err != nil {
		return true
	}
	if n, known := t.byIdentity.get(t.identityOf(&st)); known && n.open.Load() != nil {
		return true
	}
	// The kernel grants a lease for writing only to the one who has it open alone.
	_, err = unix.FcntlInt(uintptr(file), unix.F_SETLEASE, unix.F_WRLCK)
	if err == unix.EAGAIN {
		return true
	}
	if err == nil {
		_, _ = unix.FcntlInt(uintptr(file), unix.F_SETLEASE, unix.F_UNLCK)
	}
	return false // without leases, on a network file system, nobody can tell
}
