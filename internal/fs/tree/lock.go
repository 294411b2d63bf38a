package tree

import "golang.org/x/sys/unix"

// Directories can be locked: a mark that clients set and read, which keeps nobody
// from anything here. It lasts as long as the directory, at most until the stage
// is closed.

// Lock marks a directory. ENOTDIR for what is none.
func (t *Tree) Lock(id uint64) error { return t.setLock(id, true) }

// Unlock takes the mark away: ENOLCK when there is none.
func (t *Tree) Unlock(id uint64) error { return t.setLock(id, false) }

// Locked says whether a node is a marked directory.
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

// unlockGone forgets the mark of a directory that was removed: another one may
// get its inode number.
func (t *Tree) unlockGone(k identity) {
	t.locksMu.Lock()
	delete(t.locks, k)
	t.locksMu.Unlock()
}
