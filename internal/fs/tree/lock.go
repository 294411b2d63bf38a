package tree

import "golang.org/x/sys/unix"

// Clients can lock directories. The lock is a mark that they set and read; it
// prevents nothing here. It lasts until the directory is removed or the tree is closed.

// Lock locks a directory. It fails with ENOTDIR for anything else.
func (t *Tree) Lock(id uint64) error { return t.setLock(id, true) }

// Unlock removes the lock of a directory. It fails with ENOLCK where there is none.
func (t *Tree) Unlock(id uint64) error { return t.setLock(id, false) }

// Locked reports whether a node is a locked directory.
func (t *Tree) Locked(id uint64) bool {
	n, err := t.node(id)
	if err != nil {
		return false
	}
	t.locksMu.Lock()
	defer t.locksMu.Unlock()
	return t.locks[n.key]
}

func (t *Tree) setLock(id uint64, on bool) error {
	n, err := t.node(id)
	if err != nil {
		return err
	}
	if !n.directory() {
		return unix.ENOTDIR
	}
	t.locksMu.Lock()
	defer t.locksMu.Unlock()
	if on {
		t.locks[n.key] = true
		return nil
	}
	if !t.locks[n.key] {
		return unix.ENOLCK
	}
	delete(t.locks, n.key)
	return nil
}

// unlockGone drops the lock of a directory that was removed: another directory may
// get its inode number.
func (t *Tree) unlockGone(k identity) {
	t.locksMu.Lock()
	delete(t.locks, k)
	t.locksMu.Unlock()
}
