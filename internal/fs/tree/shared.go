package tree

import (
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Sharing says how handles read and write. The zero value is for files that no other host changes.
type Sharing struct {
	// Uncached keeps the page cache out of it: it would not hear of other hosts' writes.
	Uncached bool
	// Sync, while it is true, makes closing a file that was opened for writing sync it, even if the page cache had no part in it:
	// without that, other hosts may not see what was written. Nil is false.
	Sync *atomic.Bool
	// Forget drops what the page cache has of a descriptor's file, where it had to be used. It is set where Uncached is.
	Forget func(fd int)
}

func (s *Sharing) syncs() bool { return s.Sync != nil && s.Sync.Load() }

// stillThere has the file system open a file that is open here already, in place of sharing a descriptor. Another host may
// have replaced or removed it, and some file systems learn that by an open only: GlusterFS believes a name for as long as
// somebody reads the file that it led to. ESTALE: it was, so the kernel looks its name up again.
func (t *Tree) stillThere(n *node, access int) error {
	fd, _, err := t.openNode(n, access|unix.O_NONBLOCK, nil)
	switch {
	case err == nil:
		return unix.Close(fd)
	case mayHaveMoved(err):
		return unix.ESTALE
	}
	return err
}

// sectorBytes is the alignment of direct I/O.
const sectorBytes = 4096

// Read fills b from an offset, and stops short only at the end of the file or with an error.
func (h *Handle) Read(b []byte, off int64) (n int, err error) {
	h.looked.read.Store(true)
	if !h.file.of.tree.sharing.Uncached {
		return preadFull(h.file.fd, b, off)
	}
	err = h.file.again(func() error {
		n, err = h.readShared(b, off)
		return err
	})
	return n, err
}

func (h *Handle) readShared(b []byte, off int64) (n int, err error) {
	if fd, ok := h.direct(b, off, 0); ok {
		n, err = preadFull(fd, b, off)
		if n == len(b) || err != nil && !refusesDirect(err) {
			return n, err
		}
	}
	// The end of the file, or none that a direct read goes up to.
	h.file.of.tree.sharing.Forget(h.file.fd)
	rest, err := preadFull(h.file.fd, b[n:], off+int64(n))
	return n + rest, err
}

func preadFull(fd int, b []byte, off int64) (n int, err error) {
	for n < len(b) {
		some, err := unix.Pread(fd, b[n:], off+int64(n))
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return n, err
		case some == 0:
			return n, nil
		}
		n += some
	}
	return n, nil
}

// direct returns the descriptor for direct I/O of b at an offset, where that is aligned. Flags are
// pwritev2's.
func (h *Handle) direct(b []byte, off int64, flags int) (fd int, ok bool) {
	if flags&unix.RWF_APPEND != 0 || off%sectorBytes != 0 || len(b)%sectorBytes != 0 {
		return -1, false
	}
	return h.file.DirectFD()
}

func refusesDirect(err error) bool { return err == unix.EINVAL || err == unix.EOPNOTSUPP }

// writeSome writes a part of b, which is not empty, with flags of pwritev2(2).
func (h *Handle) writeSome(b []byte, off int64, flags int) (n int, err error) {
	sharing := &h.file.of.tree.sharing
	if !sharing.Uncached {
		return unix.Pwritev2(h.file.fd, [][]byte{b}, off, flags)
	}
	h.file.renewal.unsynced.Store(true)
	if fd, ok := h.direct(b, off, flags); ok {
		if n, err = unix.Pwritev2(fd, [][]byte{b}, off, flags); !refusesDirect(err) {
			return n, err
		}
	}
	sharing.Forget(h.file.fd) // what surrounds the bytes in their pages may be old
	n, err = unix.Pwritev2(h.file.fd, [][]byte{b}, off, flags)
	sharing.Forget(h.file.fd)    // but for what is not written back yet, as Publish does
	h.file.of.cached.Store(true) // now: another handle's Publish may have synced before the write
	return n, err
}

// Publish makes what was written through the mount visible to other hosts. It is called when a client closes
// the file.
func (h *Handle) Publish() error {
	sharing := &h.file.of.tree.sharing
	if !sharing.Uncached || !h.Writes() {
		return nil
	}
	h.file.of.publishing.Lock()
	defer h.file.of.publishing.Unlock()
	if !h.file.of.cached.Swap(false) && !sharing.syncs() && h.file.renewal.lost.Load() == h.heard.Load() {
		return nil
	}
	if err := h.Sync(true); err != nil {
		h.file.of.cached.Store(true) // for the next that closes it
		return err
	}
	sharing.Forget(h.file.fd)
	return nil
}

// Seek finds data or a hole, as lseek(2). The descriptor's own position is not used: all I/O has offsets.
func (h *Handle) Seek(off int64, whence int) (at int64, err error) {
	err = h.file.again(func() error {
		at, err = unix.Seek(h.file.fd, off, whence)
		return err
	})
	return at, err
}
