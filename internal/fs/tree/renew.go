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
}

// Opened counts how often the file was opened again, for Renew.
func (f *File) Opened() uint64 { return f.renewal.count.Load() }

// Renew opens the file again if err says that its descriptor is broken, and reports whether what has failed is worth
// another try. opened is Opened from before that began.
func (f *File) Renew(opened uint64, err error) bool {
	if err == nil || !f.of.tree.sharing.Uncached || !broken(err) {
		return false
	}
	f.renewal.mu.Lock()
	defer f.renewal.mu.Unlock()
	if f.Opened() != opened {
		return true // another has
	}
	if f.openAgain() != nil {
		return false
	}
	if f.access != unix.O_RDONLY && f.of.unsynced.Load() {
		f.of.lost.Store(true)
	}
	f.renewal.count.Add(1)
	return true
}

// openAgain puts new descriptors in place of those of the file. Its path may lead to another file by now: then this one is gone.
func (f *File) openAgain() error {
	fd, _, err := f.of.tree.openNode(f.of.node, f.access|unix.O_NONBLOCK, nil)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	f.directMu.Lock()
	defer f.directMu.Unlock()
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
