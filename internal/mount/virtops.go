package mount

import (
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/stage"
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
	if h.NodeId == stage.RootID {
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

func virtSetAttr(ino uint64) fuse.Status {
	if virtualDirectory(ino) {
		return fuse.EPERM
	}
	return fuse.ENOENT
}

func virtualDirectory(ino uint64) bool {
	switch ino {
	case wire.InoVirt, wire.InoRmRf, wire.InoIovs, wire.InoGetConf, wire.InoSetConf:
		return true
	}
	return false
}

// virtSymlink has the tree act on a link. after is called before the name of a
// transient one is queued: its directory's lock is held until the answer, and
// the queue stands still until then.
func (fs *fileSystem) virtSymlink(h *fuse.InHeader, target, name string, out *fuse.EntryOut, after func()) fuse.Status {
	a, transient, errno := fs.virt.Symlink(callerOf(h), h.NodeId, name, target)
	after()
	if errno != 0 {
		return fuse.Status(errno)
	}
	keep := fs.settings.SymlinkTimeout(h.Uid)
	if transient {
		keep = 0
		fs.notes.entry(h.NodeId, name)
	}
	virtEntry(out, a, keep)
	return fuse.OK
}

// transient answers a symlink request with an entry that is not there.
func (fs *fileSystem) transient(h *fuse.InHeader, target, name string, out *fuse.EntryOut) {
	virtEntry(out, VirtualAttr{Ino: wire.TransientIno(h.NodeId), Mode: unix.S_IFLNK, Size: uint64(len(target))}, 0)
	// The client holds the lock of the directory until it has the answer.
	fs.notes.entry(h.NodeId, name)
}

// symlinkIntoRmRf has the tree remove target, and the kernel forget its name.
func (fs *fileSystem) symlinkIntoRmRf(h *fuse.InHeader, target, name string, out *fuse.EntryOut) fuse.Status {
	rel, errno := fs.virt.RelPath(target)
	parent, last, known := uint64(0), "", false
	if errno == 0 {
		parent, last, known = fs.stage.Locate(rel)
	}
	return fs.virtSymlink(h, target, name, out, func() {
		if known {
			fs.notes.entryNow(parent, last)
		}
	})
}

func (fs *fileSystem) renameIntoRmRf(in *fuse.RenameIn, name, newName string) fuse.Status {
	err := fs.stage.RemoveEntry(callerOf(&in.InHeader), in.NodeId, name, true)
	// The client holds the locks of both directories. The kernel moves the
	// name it knows to where nothing is.
	fs.notes.entry(in.Newdir, newName)
	if err != nil {
		fs.notes.entry(in.NodeId, name)
	}
	return statusOf(err)
}

func (fs *fileSystem) symlinkToMove(h *fuse.InHeader, source, name string, out *fuse.EntryOut) fuse.Status {
	if fs.readonly(h) {
		return fuse.EROFS
	}
	rel, errno := fs.virt.RelPath(source)
	if errno != 0 {
		return fuse.Status(errno)
	}
	parent, last, known := fs.stage.Locate(rel)
	if err := fs.stage.MoveInto(callerOf(h), rel, h.NodeId, name); err != nil {
		return statusOf(err)
	}
	switch {
	case known && parent == h.NodeId:
		fs.notes.entry(parent, last) // its lock is held until the answer
	case known:
		fs.notes.entryNow(parent, last)
	}
	fs.transient(h, source, name, out)
	return fuse.OK
}
