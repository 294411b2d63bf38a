package tree

import (
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/cred"
)

// One client may look a file up, and another remove it or rename over it before the first
// opens it. On a local file system the open still succeeds, on the inode that was found, and
// fstat of a directory or symbolic link that a client has open, or is in, does when it was
// removed. So the tree holds a descriptor of what loses its last name until the kernel
// forgets it, which it does at once unless it is in use.

// orphan is an O_PATH descriptor of such an inode, and the user that it is charged to: its
// owner.
type orphan struct {
	fd   int
	uid  uint32
	node *node // a regular file that Options.Usage was told is in use, or nil
}

// openLastName returns an O_PATH descriptor of the entry name in dir if it is the
// last name of an inode that the kernel knows, and -1 otherwise.
func (t *Tree) openLastName(dir int, name string, st *unix.Statx_t) int {
	if st.Mode&unix.S_IFMT != unix.S_IFDIR && st.Nlink > 1 {
		return -1
	}
	if _, known := t.byIdentity.get(t.identityOf(st)); !known {
		return -1
	}
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1 // a pending open fails with ESTALE
	}
	now, err := statFD(fd)
	if err != nil || t.identityOf(&now) != t.identityOf(st) {
		unix.Close(fd)
		return -1
	}
	return fd
}

// orphan keeps fd, from openLastName, for as long as the kernel knows its node, and says that
// the entry is gone.
func (t *Tree) orphan(st *unix.Statx_t, fd int, leaves leaving) {
	o := orphan{fd: fd, uid: st.Uid}
	if fd >= 0 && t.usage != nil {
		if n, known := t.byIdentity.get(t.identityOf(st)); known && n.regular() && t.counts(n.key) {
			o.node = n
			t.useBegins(n, fd)
		}
	}
	leaves.gone()
	if fd < 0 {
		return
	}
	if !t.spare.Take(st.Uid, 1) {
		t.endOrphan(o)
		return
	}
	t.mu.Lock()
	n, known := t.byIdentity.get(t.identityOf(st))
	if known {
		if _, twice := t.orphans[n]; twice {
			known = false
		} else {
			t.orphans[n] = o
		}
	}
	t.mu.Unlock()
	if !known {
		t.closeOrphan(o)
	}
}

// openOrphan opens a node that has lost its last name.
func (t *Tree) openOrphan(n *node, flags int, as *cred.Caller) (int, unix.Statx_t, error) {
	t.mu.RLock()
	o, ok := t.orphans[n]
	path, err := -1, error(nil)
	if ok {
		// Under the lock, because a forget could close it. dup does not block.
		path, err = unix.FcntlInt(uintptr(o.fd), unix.F_DUPFD_CLOEXEC, 0)
	}
	t.mu.RUnlock()
	if !ok {
		return -1, unix.Statx_t{}, unix.ENOENT
	}
	if err != nil {
		return -1, unix.Statx_t{}, err
	}
	fd := path
	if flags&unix.O_PATH == 0 {
		open := func() (err error) {
			fd, err = unix.Open(procPath(path), flags|unix.O_CLOEXEC, 0)
			return err
		}
		if as == nil {
			err = open()
		} else {
			err = cred.RunAs(*as, open)
		}
		unix.Close(path)
		if err != nil {
			return -1, unix.Statx_t{}, err
		}
	}
	st, err := statFD(fd)
	if err != nil {
		unix.Close(fd)
		return -1, st, err
	}
	return fd, st, nil
}

// CloseForgotten closes descriptors of forgotten nodes that belong to a user. That may free
// a file's blocks and take time.
func (t *Tree) CloseForgotten(owner uint32) {
	t.mu.Lock()
	var now, rest []orphan
	for _, o := range t.closing {
		if o.uid == owner {
			now = append(now, o)
		} else {
			rest = append(rest, o)
		}
	}
	t.closing = rest
	t.mu.Unlock()
	for _, o := range now {
		t.closeOrphan(o)
	}
}

func (t *Tree) closeOrphan(o orphan) {
	t.endOrphan(o)
	t.spare.Return(o.uid, 1)
}

func (t *Tree) endOrphan(o orphan) {
	closed := func() {}
	if o.node != nil {
		closed = t.useEnds(o.node, -1)
	}
	unix.Close(o.fd)
	closed()
}
