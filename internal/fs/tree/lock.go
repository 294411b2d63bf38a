package tree

import "golang.org/x/sys/unix"

// Clients can lock directories. The lock is a mark that they set and read; it
// prevents nothing here. It lasts until the directory is removed or the tree is closed; with Options.State, also
// beyond that.

// mostLocks bounds the locks of all users together.
const mostLocks = 1 << 18

// Lock locks a directory for a user. It fails with ENOTDIR for anything else, and with
// ENOLCK if the user has too many locks.
func (t *Tree) Lock(id uint64, uid uint32) error {
	n, err := t.directory(id)
	if err != nil {
		return err
	}
	t.locksMu.Lock()
	defer t.locksMu.Unlock()
	if _, locked := t.locks[n.key]; locked {
		return nil
	}
	if !t.lockers.Take(uid, 1) {
		return unix.ENOLCK
	}
	t.locks[n.key] = uid
	t.note(func(b []byte) []byte { return appendLock(b, recordLock, n.key, uid) })
	return nil
}

// Unlock removes the lock of a directory. It fails with ENOLCK where there is none.
func (t *Tree) Unlock(id uint64) error {
	n, err := t.directory(id)
	if err != nil {
		return err
	}
	if !t.unlock(n.key) {
		return unix.ENOLCK
	}
	return nil
}

func (t *Tree) directory(id uint64) (*node, error) {
	n, err := t.node(id)
	if err == nil && !n.directory() {
		err = unix.ENOTDIR
	}
	return n, err
}

// Locked reports whether a node is a locked directory.
func (t *Tree) Locked(id uint64) bool {
	n, err := t.node(id)
	if err != nil {
		return false
	}
	t.locksMu.Lock()
	defer t.locksMu.Unlock()
	_, locked := t.locks[n.key]
	return locked
}

// unlock drops a lock and reports whether there was one. It is called for each directory
// that is removed, too: another directory may get its inode number.
func (t *Tree) unlock(k identity) bool {
	t.locksMu.Lock()
	defer t.locksMu.Unlock()
	uid, locked := t.locks[k]
	if locked {
		delete(t.locks, k)
		t.lockers.Return(uid, 1)
		t.note(func(b []byte) []byte { return appendLock(b, recordUnlock, k, 0) })
	}
	return locked
}
