package fuseserver

import (
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/tree"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// movePrefix begins the target of a symbolic link that is an order to move.
const movePrefix = "mv:"

func virtAttr(out *fuse.Attr, a VirtualAttr) {
	*out = fuse.Attr{
		Ino: a.Ino, Size: a.Size, Mode: a.Mode, Nlink: 1,
		Atime: wire.VirtualTime, Mtime: wire.VirtualTime, Ctime: wire.VirtualTime,
		Owner: fuse.Owner{Uid: a.UID, Gid: a.GID},
	}
}

func virtEntry(out *fuse.EntryOut, a VirtualAttr, keep time.Duration) {
	out.NodeId = a.Ino
	out.SetEntryTimeout(keep)
	out.SetAttrTimeout(keep)
	virtAttr(&out.Attr, a)
}

func (fs *fileSystem) virtLookup(h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	var a VirtualAttr
	var errno unix.Errno
	if h.NodeId == tree.RootID {
		a, errno = fs.virt.Getattr(callerOf(h), wire.InoVirt)
	} else {
		a, errno = fs.virt.Lookup(callerOf(h), h.NodeId, name)
	}
	if errno != 0 {
		return fuse.Status(errno) // plain errors: nothing here is cached as missing
	}
	virtEntry(out, a, virtualTimeout)
	return fuse.OK
}

func (fs *fileSystem) virtGetAttr(h *fuse.InHeader, out *fuse.AttrOut) fuse.Status {
	a, errno := fs.virt.Getattr(callerOf(h), h.NodeId)
	if errno != 0 {
		return fuse.Status(errno)
	}
	out.SetTimeout(virtualTimeout)
	virtAttr(&out.Attr, a)
	return fuse.OK
}

// virtSetAttr refuses: nothing in the virtual tree has attributes of its own.
func (fs *fileSystem) virtSetAttr(h *fuse.InHeader) fuse.Status {
	a, errno := fs.virt.Getattr(callerOf(h), h.NodeId)
	if errno == 0 && a.Mode&unix.S_IFMT == unix.S_IFDIR {
		return fuse.EPERM
	}
	return fuse.ENOENT
}

// virtSymlink has the tree act on a link.
func (fs *fileSystem) virtSymlink(h *fuse.InHeader, target, name string, out *fuse.EntryOut) fuse.Status {
	a, errno := fs.virt.Symlink(callerOf(h), h.NodeId, name, target)
	if errno != 0 {
		return fuse.Status(errno)
	}
	virtEntry(out, a, fs.settings.SymlinkTimeout(h.Uid))
	return fuse.OK
}

// transient answers a symlink request with an entry that is not there, and that
// the kernel asks about again at its next use.
func (fs *fileSystem) transient(h *fuse.InHeader, target string, out *fuse.EntryOut) {
	parent := h.NodeId
	if ino, err := fs.stage.Ino(parent); err == nil && !wire.IsVirtual(parent) {
		parent = ino
	}
	virtEntry(out, VirtualAttr{Ino: wire.TransientIno(parent), Mode: unix.S_IFLNK, Size: uint64(len(target))}, 0)
}

// went has the kernel forget a name, soon: whoever asked may hold the lock of its
// directory until he has the answer.
func (fs *fileSystem) went(n tree.Name, asker uint64) {
	switch n.Parent {
	case 0:
	case asker:
		fs.notes.entry(n.Parent, n.Name)
	default:
		fs.notes.entryNow(n.Parent, n.Name)
	}
}

func (fs *fileSystem) symlinkIntoRmRf(cancel <-chan struct{}, h *fuse.InHeader, target string, out *fuse.EntryOut) fuse.Status {
	c := callerOf(h)
	rel, errno := fs.virt.RemoveTarget(c, target)
	if errno != 0 {
		return fuse.Status(errno)
	}
	name, err := fs.stage.RemoveAll(c, rel, cancel)
	fs.went(name, h.NodeId)
	if err != nil {
		return statusOf(err)
	}
	fs.transient(h, target, out)
	return fuse.OK
}

func (fs *fileSystem) renameIntoRmRf(cancel <-chan struct{}, in *fuse.RenameIn, name, newName string) fuse.Status {
	err := fs.stage.RemoveEntry(callerOf(&in.InHeader), in.NodeId, name, true, cancel)
	// The client holds the locks of both directories. The kernel moves the
	// name it knows to where nothing is.
	fs.notes.entry(in.Newdir, newName)
	if err != nil {
		fs.notes.entry(in.NodeId, name)
	}
	return statusOf(err)
}

func (fs *fileSystem) symlinkToMove(h *fuse.InHeader, source, name string, out *fuse.EntryOut) fuse.Status {
	rel, errno := fs.virt.RelPath(source)
	if errno != 0 {
		return fuse.Status(errno)
	}
	was, err := fs.stage.MoveInto(callerOf(h), rel, h.NodeId, name)
	if err != nil {
		return statusOf(err)
	}
	fs.went(was, h.NodeId)
	fs.transient(h, source, out)
	return fuse.OK
}
