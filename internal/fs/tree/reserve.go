package tree

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/cred"
)

const (
	// reserveMarginBytes is how much space must be left for ordinary users to count as
	// plenty: more than can be written within reserveLookNs.
	reserveMarginBytes = 1 << 30
	reserveLookNs      = 10e6

	// confineBytes is the smallest write that is confined in any case: for a smaller one
	// the cost would show.
	confineBytes = 256 << 10
)

// reserve remembers for a moment whether the blocks are near that the data directory's
// file system keeps for the super-user.
type reserve struct {
	lookAt atomic.Int64 // on the tree's clock
	near   atomic.Bool
}

// nearReserve reports whether the space for ordinary users is nearly used up.
func (t *Tree) nearReserve() bool {
	if now := t.now(); now >= t.reserve.lookAt.Load() {
		st, err := t.Statfs()
		unit := uint64(max(st.Frsize, 1))
		t.reserve.near.Store(err != nil || st.Bavail < reserveMarginBytes/unit)
		t.reserve.lookAt.Store(now + reserveLookNs)
	}
	return t.reserve.near.Load()
}

// Confine reports whether a write of that many bytes by a user other than the super-user
// must run in cred.Confined, lest it take blocks that the file system keeps for the
// super-user. With plenty of space left, small writes need not.
func (f *File) Confine(bytes int64) bool {
	return bytes >= confineBytes || !f.OnDataDevice() || f.of.tree.nearReserve()
}

// Write writes b at off, or at the end with append, as a client with that uid would: short
// only where the disk is full. After an error, nothing was written. It waits for room, where
// that is limited.
func (h *Handle) Write(b []byte, off int64, append bool, uid uint32, wait *Waiting) (n int, err error) {
	flags, at := 0, off
	if append {
		flags, at = unix.RWF_APPEND, endOfFile
	}
	reserved, err := wait.forRoom(func(deadline time.Time, cancel <-chan struct{}) (int64, error) {
		return h.file.Reserve(at, int64(len(b)), deadline, cancel)
	})
	if err != nil {
		return 0, err
	}
	defer h.file.Settle(reserved)
	if err := wait.over(); err != nil {
		return 0, err
	}
	write := func() error {
		for n < len(b) {
			some, err := h.writeSome(b[n:], off+int64(n), flags)
			switch {
			case err == unix.EINTR:
				continue
			case err != nil && n == 0:
				return err
			case err != nil, some <= 0:
				return nil
			}
			n += some
		}
		return nil
	}
	n, err = h.file.write(b, off, append, func() (int, error) {
		err := h.file.again(func() error { return asWriter(uid, h.file.Confine(int64(len(b))), write) })
		return n, err
	})
	h.file.of.tree.freshen(h.file.of.node)
	return n, err
}

// Fallocate reserves or frees space of the file, with the mode of fallocate(2), as a client
// with that uid would. It ends with EINTR when wait.Cancel is closed and the file system obeys
// signals.
func (h *Handle) Fallocate(mode uint32, off, length int64, uid uint32, wait *Waiting) error {
	t := h.file.of.tree
	reserved, err := wait.forRoom(func(deadline time.Time, cancel <-chan struct{}) (int64, error) {
		return h.file.reserveFallocate(mode, off, length, deadline, cancel)
	})
	if err != nil {
		return err
	}
	defer h.file.Settle(reserved)
	if err := wait.over(); err != nil {
		return err
	}
	err = h.file.again(func() error {
		return h.file.Sums().Change(h.file.fd, func() error {
			return asWriter(uid, true, func() error {
				for {
					err := unix.Fallocate(h.file.fd, mode, off, length)
					if err != unix.EINTR {
						return err
					}
					select {
					case <-wait.cancel():
						return err
					default: // the signal was the runtime's
					}
				}
			})
		})
	})
	t.reserve.lookAt.Store(0) // it may have taken any amount of space
	// The kernel forgets the attributes, too, but not those that it is being given now.
	h.file.Written()
	return err
}

// asWriter runs fn, which writes for the user uid through open descriptors.
func asWriter(uid uint32, confine bool, fn func() error) error {
	if uid == 0 || !confine {
		return fn()
	}
	return cred.Confined(fn)
}
