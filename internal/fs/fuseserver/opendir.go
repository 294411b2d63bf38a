package fuseserver

import (
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/controldir"
	"github.com/kv3fs/kv3fs/internal/fs/tree"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// afterVirt is the position after the entry 3fs-virt, the root's last. No file system
// uses it for an entry.
const afterVirt = 1<<63 - 2

func (fs *fileSystem) OpenDir(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	if _, ok := fs.resentOpen(&in.InHeader, out); ok {
		return fuse.OK
	}
	if st := fs.mayOpen(in.Uid); !st.Ok() {
		return st
	}
	st := fs.openDir(in, out)
	if !st.Ok() {
		fs.files.Return(in.Uid, 1)
	}
	return st
}

func (fs *fileSystem) openDir(in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	if wire.IsVirtual(in.NodeId) {
		c := callerOf(&in.InHeader)
		handle, errno := fs.control.OpenDir(c, in.NodeId)
		if errno != 0 {
			return fuse.Status(errno)
		}
		out.Fh = fs.handles.add(in.Unique, openHandle{uid: in.Uid, virtual: &virtualDir{ino: in.NodeId, handle: handle, caller: c},
			record: fs.keeps(handleRecord{Virtual: &virtualRecord{Ino: in.NodeId, Caller: c, Handle: handle}})})
		return fuse.OK
	}
	d, err := fs.tree.OpenDir(in.NodeId)
	if err != nil {
		return fs.statusOf(err)
	}
	fs.tree.Uses(in.NodeId, in.Uid)
	out.Fh = fs.handles.add(in.Unique, openHandle{uid: in.Uid, dir: d, record: fs.keeps(handleRecord{Dir: in.NodeId})})
	return fuse.OK
}

func (fs *fileSystem) ReleaseDir(in *fuse.ReleaseIn) {
	fs.late.release(in.Fh, func() { fs.release(fs.handles.take(in.Fh)) })
}

func (fs *fileSystem) FsyncDir(_ <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	switch o := fs.handles.get(in.Fh); {
	case o.gone:
		return fuse.Status(unix.ESTALE)
	case o.dir != nil:
		return fs.statusOf(o.dir.Sync())
	}
	return fuse.OK
}

func (fs *fileSystem) ReadDir(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return fs.list(in, func(e fuse.DirEntry, _ *tree.Dir) bool { return out.AddDirEntry(e) },
		func(e fuse.DirEntry, _ controldir.Attr) bool { return out.AddDirEntry(e) })
}

func (fs *fileSystem) ReadDirPlus(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return fs.readDirPlus(in, out, func(uint64) {})
}

// readDirPlus tells of each node to which it gives the kernel a reference.
func (fs *fileSystem) readDirPlus(in *fuse.ReadIn, out *fuse.DirEntryList, tell func(node uint64)) fuse.Status {
	keep := fs.settings.AttrTimeout(in.Uid)
	return fs.list(in, func(e fuse.DirEntry, d *tree.Dir) bool {
		entry := out.AddDirLookupEntry(e)
		if entry == nil {
			return false
		}
		// An entry that was removed in the meantime keeps node 0: a name without
		// attributes.
		if found, err := d.Lookup(e.Name, keep); err == nil {
			fs.entry(entry, found, in.Uid)
			tell(found.ID)
			out.FixMode(found.Attr.Mode)
		}
		return true
	}, func(e fuse.DirEntry, a controldir.Attr) bool {
		entry := out.AddDirLookupEntry(e)
		if entry == nil {
			return false
		}
		virtEntry(entry, in.Uid, a, virtualTimeout)
		return true
	})
}

// list calls real or virtual with each entry from in.Offset on, depending on its kind,
// until that function returns false.
func (fs *fileSystem) list(in *fuse.ReadIn, real func(fuse.DirEntry, *tree.Dir) bool, virtual func(fuse.DirEntry, controldir.Attr) bool) fuse.Status {
	open := fs.handles.get(in.Fh)
	if open.virtual != nil {
		return fs.virtList(open.virtual, in.Offset, virtual)
	}
	switch {
	case open.gone:
		return fuse.Status(unix.ESTALE)
	case open.dir == nil:
		return fuse.EBADF
	}
	if in.Offset == afterVirt {
		return fuse.OK
	}
	ended, err := open.dir.List(int64(in.Offset), func(e tree.Dirent) bool {
		if in.NodeId == tree.RootID && e.Name == controldir.DirName {
			return true // shadowed
		}
		return real(fuse.DirEntry{Name: e.Name, Ino: e.Ino, Mode: e.Type, Off: uint64(e.Next)}, open.dir)
	})
	if err != nil || !ended || in.NodeId != tree.RootID {
		return fs.statusOf(err)
	}
	a, errno := fs.control.Getattr(callerOf(&in.InHeader), wire.InoVirt)
	if errno == 0 {
		virtual(fuse.DirEntry{Name: controldir.DirName, Ino: a.Ino, Mode: a.Mode, Off: afterVirt}, a)
	}
	return fuse.OK
}

func (fs *fileSystem) virtList(d *virtualDir, from uint64, add func(fuse.DirEntry, controldir.Attr) bool) fuse.Status {
	d.mu.Lock()
	defer d.mu.Unlock()
	if from == 0 {
		entries, errno := fs.control.List(d.caller, d.ino)
		if errno != 0 {
			return fuse.Status(errno)
		}
		d.entries = entries
	}
	for i := from; i < uint64(len(d.entries)); i++ {
		e := d.entries[i]
		if !add(fuse.DirEntry{Name: e.Name, Ino: e.Attr.Ino, Mode: e.Attr.Mode, Off: i + 1}, e.Attr) {
			break
		}
	}
	return fuse.OK
}
