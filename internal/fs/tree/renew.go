package tree

import (
	"errors"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// renewal is for descriptors that the file system breaks while they are open: GlusterFS answers EBADFD for one that was
// opened while servers were away, CephFS EBADF after it had to connect anew, and all answer ESTALE for a file that another
// host has removed. Many handles and rings share one, so nobody can close it and open the file again: it is opened again
// under the same number.
type renewal struct {
	mu    sync.Mutex
	count atomic.Uint64

	// unsynced says that handles have written through the descriptor since the last sync of it, syncing how many sync it.
	// lost counts how often it was opened again then: its file system may have lost what it had not stored.
	unsynced atomic.Bool
	syncing  atomic.Int64
	lost     atomic.Uint64

	// goneUntil is the time, on the tree's clock, until which the file's path is taken to lead to it no more.
	goneUntil atomic.Int64
}

// goneNs is how long a file that is gone is not looked for: its users may try again at once, and each look asks the servers.
const goneNs = 1e9

// Opened counts how often the file was opened again, for Renew.
func (f *File) Opened() uint64 { return f.renewal.count.Load() }

// Renew opens the file again if err says that its descriptor is broken, and reports whether what has failed is worth
// another try. opened is Opened from before that began.
func (f *File) Renew(opened uint64, err error) bool {
	t := f.of.tree
	if err == nil || !t.sharing.Uncached || !broken(err) || !f.recognized() || t.now() < f.renewal.goneUntil.Load() {
		return false
	}
	f.renewal.mu.Lock()
	defer f.renewal.mu.Unlock()
	if f.Opened() != opened {
		return true // another has
	}
	if t.now() < f.renewal.goneUntil.Load() {
		return false // another has looked
	}
	err = f.openAgain()
	if mayHaveMoved(err) {
		f.renewal.goneUntil.Store(t.now() + goneNs)
	}
	return err == nil
}

// recognized reports whether the file can be told from one that was made later under its name. Its inode number is not enough
// where it may be used again, as on NFS: the time of birth must be known. But GlusterFS, which is behind FUSE, keeps none,
// and uses no number again.
func (f *File) recognized() bool {
	return f.of.node.key.birth != 0 || f.of.tree.behindFUSE && f.OnDataDevice()
}

// openAgain puts new descriptors in place of those of the file. Its path may lead to another file by now: then this one is gone.
func (f *File) openAgain() error {
	fd, err := f.openByName()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	f.directMu.Lock()
	defer f.directMu.Unlock()
	// Before the new descriptors are there: a sync of those says nothing of what was written through the old ones.
	if r := &f.renewal; f.access != unix.O_RDONLY && (r.unsynced.Load() || r.syncing.Load() > 0) {
		r.lost.Add(1)
	}
	f.renewal.count.Add(1)
	if v := f.direct.Load(); v > 0 {
		direct, err := unix.Open(procPath(fd), f.access|unix.O_DIRECT|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(direct)
		if err := unix.Dup3(direct, int(v-1), unix.O_CLOEXEC); err != nil {
			return err
		}
	}
	return unix.Dup3(fd, f.fd, unix.O_CLOEXEC)
}

// openByName is like openNode, but keeps no rename waiting. It fails if one is just at work on the file.
func (f *File) openByName() (int, error) {
	t, n, flags := f.of.tree, f.of.node, f.access|unix.O_NONBLOCK
	t.mu.RLock()
	rel := t.pathLocked(n.place)
	t.mu.RUnlock()
	fd, _, err := t.openIdentity(n, rel, flags, nil)
	if mayHaveMoved(err) {
		if fd, _, orphanErr := t.openOrphan(n, flags, nil); orphanErr != unix.ENOENT {
			return fd, orphanErr
		}
	}
	return fd, err
}

// broken reports whether an error says that a descriptor is of no use any more, or that its file is gone.
func broken(err error) bool {
	return errors.Is(err, unix.EBADFD) || errors.Is(err, unix.EBADF) || errors.Is(err, unix.ESTALE) || errors.Is(err, unix.ENOENT)
}

// again calls use, and once more if the file's descriptor was broken and could be opened again.
func (f *File) again(use func() error) error {
	opened := f.Opened()
	err := use()
	if f.Renew(opened, err) {
		err = use()
	}
	return f.told(err)
}

// told returns what a user is told of an error of the descriptor: EBADF would speak of the user's own.
func (f *File) told(err error) error {
	if errors.Is(err, unix.EBADF) && f.of.tree.sharing.Uncached {
		return unix.ESTALE
	}
	return err
}
