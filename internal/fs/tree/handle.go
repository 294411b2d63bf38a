package tree

import (
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/cred"
	"github.com/kv3fs/kv3fs/internal/fs/integrity"
)

// Handle is a file opened through the mount. It lives until Close.
type Handle struct {
	file   *File
	holder holder
	access int
	grants directions
	mapped bool          // it is one of Tree.mapped
	heard  atomic.Uint64 // renewal.lost when it was opened, or last told
	// passing is the file's checksums, if its client can write to it without the daemon.
	passing *integrity.File
	looked  looked
	granted uint64 // by which Options.Grants knows it
}

// openToExecute is added by the kernel to the flags of an open for execve, which needs
// no right to read.
const openToExecute = 0x20

// FD returns the handle's descriptor for I/O with explicit offsets.
func (h *Handle) FD() int { return h.file.fd }

// UID returns the user who opened the handle.
func (h *Handle) UID() uint32 { return h.holder.uid }

// Writes reports whether the handle is open for writing.
func (h *Handle) Writes() bool { return h.access != unix.O_RDONLY }

// ID returns the handle's node.
func (h *Handle) ID() uint64 { return h.file.of.node.id }

// Ino returns the inode number as clients see it.
func (h *Handle) Ino() uint64 { return h.file.of.node.ino }

// Open opens a regular file for c, whose rights the caller has checked. Of flags, only
// the access mode and O_TRUNC matter; O_TRUNC without the right to write is ignored,
// as in 3FS.
//
// The kernel opens files for reading also where the client needs no right to read: to
// execute them, and for ioctl(FS_IOC_GETFLAGS) and file_getattr(2), for which a
// descriptor or a path is enough. So an open proves a right only where the mode grants
// it, too; otherwise Acquire leaves the decision to the kernel. Where the caller's groups are
// unknown, the flags tell such opens from those of open(2).
func (t *Tree) Open(id uint64, c cred.Caller, flags int, proceed ...Proceed) (*Handle, error) {
	n, err := t.node(id)
	if err != nil {
		return nil, err
	}
	if n.directory() {
		return nil, unix.EISDIR
	}
	if !n.regular() {
		return nil, unix.ENXIO
	}
	access := flags & unix.O_ACCMODE
	if access > unix.O_RDWR {
		return nil, unix.EINVAL
	}
	if n.aside.Load() {
		return nil, unix.ESTALE // the kernel looks its name up again
	}
	if t.sharing.Uncached && n.open.Load() != nil {
		if err := t.stillThere(n, access); err != nil {
			return nil, err
		}
	}
	f, err := t.openLocked(t.useOpen(n), access, nil, c.UID)
	if err != nil {
		return nil, err
	}
	if access != unix.O_RDONLY {
		f.Sums() // before the client can write past the daemon
	}
	if flags&unix.O_TRUNC != 0 && access != unix.O_RDONLY {
		err := f.again(func() error {
			return f.Sums().Change(f.fd, after(proceed, func() error { return unix.Ftruncate(f.fd, 0) }))
		})
		if err != nil {
			f.Release()
			return nil, err
		}
	}
	var granted directions
	if flags&openToExecute == 0 {
		var st unix.Statx_t
		err := f.again(func() (err error) {
			st, err = statFD(f.fd)
			return err
		})
		if err != nil {
			f.Release()
			return nil, err
		}
		// With an ACL the bits of the group are its mask, not a right.
		if c.Root() || c.UID == st.Uid || !t.hasACL(f.fd) {
			granted[forReading], granted[forWriting] = c.Allows(uint32(st.Mode), st.Uid, st.Gid)
		}
	}
	who := holder{uid: c.UID}
	if c.PID == 0 && flags != unix.O_RDONLY {
		// The groups of c cannot be seen. But this is an open(2), which always has further
		// flags in a 64-bit process: the kernel has checked c's right.
		granted = directions{flags&openToExecute == 0, true}
		who = holder{uid: c.UID, gid: c.GID, oneGroup: true}
	}
	h := f.handle(who, access, granted)
	h.looked.begin(h, c.UID)
	f.HasRead()
	return h, nil
}

// handle turns a reference to f into a handle. While the handle is open, who may use the
// file in the granted directions that access covers.
func (f *File) handle(who holder, access int, granted directions) *Handle {
	h := f.newHandle(who, access, granted)
	f.of.tree.tellGranted(h)
	return h
}

// newHandle is handle for one of which nobody is told.
func (f *File) newHandle(who holder, access int, granted directions) *Handle {
	granted[forReading] = granted[forReading] && access != unix.O_WRONLY
	granted[forWriting] = granted[forWriting] && access != unix.O_RDONLY
	of := f.of
	of.mu.Lock()
	of.handles++
	of.grantLocked(who, granted, +1)
	of.checkLocked()
	of.mu.Unlock()
	if t := of.tree; t.counts(of.node.key) {
		t.useBegins(of.node, f.fd)
	}
	h := &Handle{file: f, holder: who, access: access, grants: granted}
	h.heard.Store(f.renewal.lost.Load())
	return h
}

// Close ends the handle.
func (h *Handle) Close() {
	of := h.file.of
	if h.granted != 0 {
		defer of.tree.grants.Ended(h.granted)
	}
	h.looked.end(h)
	h.passing.PassingEnds()
	if t := of.tree; t.counts(of.node.key) {
		if h.mapped {
			t.mapped.add(of.node, -1)
		}
		defer t.useEnds(of.node, h.file.fd)()
	}
	of.mu.Lock()
	of.handles--
	of.grantLocked(h.holder, h.grants, -1)
	if of.handles == 0 {
		clear(of.verdicts)
		of.node.paged.Store(false) // a mapping is one of the handles
	}
	of.dropLocked(h.file)
}

// Sync makes what was written durable; with dataOnly it may skip the times. EIO: the file system may have lost some of it.
func (h *Handle) Sync(dataOnly bool) error {
	defer h.file.Settle(0)
	opened, err := h.file.Opened(), h.file.sync(dataOnly)
	if err != nil {
		h.file.Renew(opened, err) // for what comes: the next sync would be one of nothing
		return h.file.told(err)
	}
	return h.hear()
}

func (f *File) sync(dataOnly bool) error {
	f.renewal.syncing.Add(1)
	defer f.renewal.syncing.Add(-1)
	unsynced := f.renewal.unsynced.Swap(false)
	sync := unix.Fsync
	if dataOnly {
		sync = unix.Fdatasync
	}
	err := sync(f.fd)
	if err != nil && unsynced {
		f.renewal.unsynced.Store(true)
	}
	return err
}

// Flush has the file system report what it reports when a file is closed only.
func (h *Handle) Flush() error {
	err := h.file.again(func() error {
		fd, err := unix.FcntlInt(uintptr(h.file.fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return nil // out of descriptors: a write error is reported later, not lost
		}
		return unix.Close(fd)
	})
	if err != nil {
		return err
	}
	return h.hear()
}

// hear returns EIO if what was written may have been lost, once.
func (h *Handle) hear() error {
	if lost := h.file.renewal.lost.Load(); h.heard.Swap(lost) != lost {
		return unix.EIO
	}
	return nil
}

// DirectIO reports whether the device of the file supports O_DIRECT. The first answer for
// one file holds for all files of its device. An error says that there is none now.
func (h *Handle) DirectIO() (bool, error) {
	t, dev := h.file.of.tree, h.file.of.node.key.dev
	if ok, known := t.directKnown(dev); known {
		return ok, nil
	}
	// Not under the lock: the device may hang.
	ok, err := directIO(h.file.fd, h.access)
	if err == nil {
		t.directMu.Lock()
		t.direct[dev] = ok
		t.directMu.Unlock()
	}
	return ok, err
}

// directIO reports whether an open file can be opened with O_DIRECT.
func directIO(fd, access int) (bool, error) {
	again, err := unix.Open(procPath(fd), access|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	switch err {
	case nil:
		unix.Close(again)
		return true, nil
	case unix.EINVAL:
		return false, nil
	}
	return false, err
}

func (t *Tree) directKnown(dev uint64) (ok, known bool) {
	t.directMu.Lock()
	defer t.directMu.Unlock()
	ok, known = t.direct[dev]
	return ok, known
}

// ClearSetID clears the set-id bits that a write by an unprivileged client clears.
func (h *Handle) ClearSetID() error {
	return h.file.again(func() error { return clearSetID(h.file.fd) })
}

// HasSetID reports whether a write by an unprivileged client would clear bits, as far as is known.
func (h *Handle) HasSetID() (has bool) {
	err := h.file.again(func() error {
		st, err := statFD(h.file.fd)
		has = withoutSetID(uint32(st.Mode)) != uint32(st.Mode)
		return err
	})
	return err != nil || has
}

func clearSetID(fd int) error {
	st, err := statFD(fd)
	if err != nil {
		return err
	}
	mode := uint32(st.Mode)
	if less := withoutSetID(mode); less != mode {
		return unix.Fchmodat(unix.AT_FDCWD, procPath(fd), less&0o7777, 0)
	}
	return nil
}

// withoutSetID returns mode without set-id bits, as the kernel clears them:
// set-group-id without group execute means mandatory locking and stays.
func withoutSetID(mode uint32) uint32 {
	mode &^= unix.S_ISUID
	if mode&unix.S_IXGRP != 0 {
		mode &^= unix.S_ISGID
	}
	return mode
}
