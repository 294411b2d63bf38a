package fuseserver

import (
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/controldir"
	"github.com/kv3fs/kv3fs/internal/fs/tree"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// movePrefix begins the target of a symbolic link that orders a move.
const movePrefix = "mv:"

func virtAttr(out *fuse.Attr, a controldir.Attr) {
	*out = fuse.Attr{
		Ino: a.Ino, Size: a.Size, Mode: a.Mode, Nlink: 1,
		Atime: wire.VirtualTime, Mtime: wire.VirtualTime, Ctime: wire.VirtualTime,
		Owner: fuse.Owner{Uid: a.UID, Gid: a.GID},
	}
}

// virtEntry fills in the reply to a user about a virtual inode.
func virtEntry(out *fuse.EntryOut, uid uint32, a controldir.Attr, keep time.Duration) {
	out.NodeId = virtualNode(uid, a.Ino)
	out.SetAttrTimeout(keep)
	if out.NodeId != a.Ino {
		keep = 0 // the name leads every user to another node
	}
	out.SetEntryTimeout(keep)
	virtAttr(&out.Attr, a)
}

func (fs *fileSystem) virtLookup(h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	var a controldir.Attr
	var errno unix.Errno
	if h.NodeId == tree.RootID {
		a, errno = fs.control.Getattr(callerOf(h), wire.InoVirt)
	} else {
		a, errno = fs.control.Lookup(callerOf(h), h.NodeId, name)
	}
	if errno != 0 {
		return fuse.Status(errno) // an error, so that the kernel caches no missing entry
	}
	virtEntry(out, h.Uid, a, virtualTimeout)
	return fuse.OK
}

func (fs *fileSystem) virtGetAttr(h *fuse.InHeader, out *fuse.AttrOut) fuse.Status {
	a, errno := fs.control.Getattr(callerOf(h), h.NodeId)
	if errno != 0 {
		return fuse.Status(errno)
	}
	out.SetTimeout(virtualTimeout)
	virtAttr(&out.Attr, a)
	return fuse.OK
}

// virtSetAttr fails: nothing in the control directory has attributes that can change.
func (fs *fileSystem) virtSetAttr(h *fuse.InHeader) fuse.Status {
	a, errno := fs.control.Getattr(callerOf(h), h.NodeId)
	if errno == 0 && a.Mode&unix.S_IFMT == unix.S_IFDIR {
		return fuse.EPERM
	}
	return fuse.ENOENT
}

// virtSymlink passes a new link to the control directory, which acts on it.
func (fs *fileSystem) virtSymlink(h *fuse.InHeader, target, name string, out *fuse.EntryOut) fuse.Status {
	a, errno := fs.control.Symlink(callerOf(h), h.NodeId, name, target)
	if fs.done(h, errno, unix.EEXIST) && fs.resentSymlink(h, name, target, out) {
		return fuse.OK
	}
	if errno != 0 {
		return fuse.Status(errno)
	}
	virtEntry(out, h.Uid, a, fs.settings.SymlinkTimeout(h.Uid))
	return fuse.OK
}

// transient answers a symlink request with an entry that does not exist. The kernel looks
// it up again at its next use.
func (fs *fileSystem) transient(h *fuse.InHeader, target string, out *fuse.EntryOut) {
	parent := h.NodeId
	if ino, err := fs.tree.Ino(parent); err == nil && !wire.IsVirtual(parent) {
		parent = ino
	}
	virtEntry(out, h.Uid, controldir.Attr{Ino: wire.TransientIno(parent), Mode: unix.S_IFLNK, Size: uint64(len(target))}, 0)
}

// forgetName makes the kernel forget a name. It does not wait for that if the name is in
// requestDir: the client's request may hold the lock of that directory until answered.
func (fs *fileSystem) forgetName(n tree.Name, requestDir uint64) {
	switch n.Parent {
	case 0:
	case requestDir:
		fs.notifier.entry(n.Parent, n.Name)
	default:
		fs.notifier.entryAndWait(n.Parent, n.Name)
	}
}

func (fs *fileSystem) symlinkIntoRmRf(proceed tree.Proceed, h *fuse.InHeader, target string, out *fuse.EntryOut) fuse.Status {
	c := callerOf(h)
	rel, errno := fs.control.RemoveTarget(c, target)
	if errno != 0 {
		return fuse.Status(errno)
	}
	done, st := fs.mayRemove(h.Uid)
	if !st.Ok() {
		return st
	}
	defer done()
	name, err := fs.tree.RemoveAll(c, rel, proceed)
	fs.forgetName(name, h.NodeId)
	if err != nil && !fs.done(h, err, unix.ENOENT) {
		return fs.statusOf(err)
	}
	fs.transient(h, target, out)
	return fuse.OK
}

func (fs *fileSystem) renameIntoRmRf(proceed tree.Proceed, in *fuse.RenameIn, name, newName string) fuse.Status {
	done, st := fs.mayRemove(in.Uid)
	if !st.Ok() {
		return st
	}
	defer done()
	err := fs.tree.RemoveEntry(callerOf(&in.InHeader), in.NodeId, name, true, proceed)
	// The client holds the locks of both directories. After a success the kernel moves
	// the name that it knows to newName, where nothing is.
	fs.notifier.entry(virtualNode(in.Uid, in.Newdir), newName)
	if fs.done(&in.InHeader, err, unix.ENOENT) {
		return fuse.OK
	}
	if err != nil {
		fs.notifier.entry(in.NodeId, name)
	}
	return fs.statusOf(err)
}

func (fs *fileSystem) symlinkToMove(proceed tree.Proceed, h *fuse.InHeader, source, name string, out *fuse.EntryOut) fuse.Status {
	rel, errno := fs.control.RelPath(source)
	if errno != 0 {
		return fuse.Status(errno)
	}
	was, err := fs.tree.MoveInto(callerOf(h), rel, h.NodeId, name, proceed)
	if err != nil && !(fs.done(h, err, unix.ENOENT) && fs.isThere(h.NodeId, name, h.Uid)) {
		return fs.statusOf(err)
	}
	fs.forgetName(was, h.NodeId)
	fs.transient(h, source, out)
	return fuse.OK
}
