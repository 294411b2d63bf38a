package fuseserver

import (
	"errors"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/tree"
)

// resentBit is set in the number of a request that comes again, because a predecessor has read it and not answered.
// Whether that one has done it is not known. So where it fails, and what it was to bring about is there, it has
// succeeded. The kernel keeps the directory's lock while a client waits, so nobody on this mount has come between.
const resentBit = 1 << 63

// resent reports whether a request may have been done already.
func (fs *fileSystem) resent(h *fuse.InHeader) bool {
	return fs.adopted && h.Unique&resentBit != 0 && !fs.opts.HeldBack && !fs.opts.twice
}

// done returns OK for a request that was to make an error's cause so, and was sent again.
func (fs *fileSystem) done(h *fuse.InHeader, err error, cause unix.Errno) bool {
	return errors.Is(err, cause) && fs.resent(h)
}

// resentMade answers a request for a new entry, which failed because there is one: the predecessor has made it if it is
// of that kind and the client's.
func (fs *fileSystem) resentMade(h *fuse.InHeader, name string, kind uint32, out *fuse.EntryOut) bool {
	return fs.resentEntry(h, name, out, func(e tree.Entry) bool {
		return e.Attr.Mode&unix.S_IFMT == kind && e.Attr.UID == h.Uid
	})
}

// resentEntry answers with an entry if it is the right one.
func (fs *fileSystem) resentEntry(h *fuse.InHeader, name string, out *fuse.EntryOut, right func(tree.Entry) bool) bool {
	e, err := fs.tree.Lookup(h.NodeId, name, h.Uid, fs.settings.AttrTimeout(h.Uid))
	if err != nil {
		return false
	}
	if !right(e) {
		fs.Forget(e.ID, 1)
		return false
	}
	fs.entry(out, e, h.Uid)
	return true
}

// resentLink is resentMade for a symbolic link to target.
func (fs *fileSystem) resentLink(h *fuse.InHeader, name, target string, out *fuse.EntryOut) bool {
	return fs.resentEntry(h, name, out, func(e tree.Entry) bool {
		is, err := fs.tree.Readlink(e.ID)
		return err == nil && is == target
	})
}

// isThere reports whether there is an entry. The tree learns where its inode is.
func (fs *fileSystem) isThere(dir uint64, name string, uid uint32) bool {
	e, err := fs.tree.Lookup(dir, name, uid, 0)
	if err == nil {
		fs.Forget(e.ID, 1)
	}
	return err == nil
}

// exchange does what RENAME_EXCHANGE asks for, unless a predecessor has done it.
func (fs *fileSystem) exchange(in *fuse.RenameIn, name, newName string, do func() error) error {
	if fs.resent(&in.InHeader) {
		if node := fs.handles.exchanged(in.Unique); node != 0 && fs.leadsTo(in.Newdir, newName, node, in.Uid) {
			return nil
		}
	}
	e, err := fs.tree.Lookup(in.NodeId, name, in.Uid, 0)
	if err == nil {
		fs.handles.exchange(in.Unique, e.ID)
		defer fs.Forget(e.ID, 1)
	}
	return do()
}

// leadsTo reports whether a name leads to a node.
func (fs *fileSystem) leadsTo(dir uint64, name string, node uint64, uid uint32) bool {
	e, err := fs.tree.Lookup(dir, name, uid, 0)
	if err == nil {
		fs.Forget(e.ID, 1)
	}
	return err == nil && e.ID == node
}

// resentOpen answers a request to open something with what a predecessor has opened for it.
func (fs *fileSystem) resentOpen(h *fuse.InHeader, out *fuse.OpenOut) (o openHandle, ok bool) {
	if !fs.resent(h) {
		return o, false
	}
	fh, o, ok := fs.handles.resent(h.Unique)
	if !ok || o.gone || o.record == nil { // nil: its record found no room
		return o, false
	}
	*out = fuse.OpenOut{Fh: fh, OpenFlags: o.record.Flags, BackingID: o.record.Backing}
	return o, true
}

// resentCreate answers a request to make and open a file that a predecessor has made.
func (fs *fileSystem) resentCreate(in *fuse.CreateIn, name string, out *fuse.CreateOut) (st fuse.Status, ok bool) {
	if !fs.resent(&in.InHeader) {
		return fuse.OK, false
	}
	keep := fs.settings.AttrTimeout(in.Uid)
	if o, ok := fs.resentOpen(&in.InHeader, &out.OpenOut); ok && o.file != nil {
		e, err := fs.tree.Getattr(o.file.ID(), 0) // the reference was counted
		if err != nil {
			return fs.statusOf(err), true
		}
		fs.entry(&out.EntryOut, e, in.Uid)
		return fuse.OK, true
	}
	if name == "" {
		return fuse.OK, false
	}
	e, h, err := fs.tree.OpenMade(in.NodeId, name, int(in.Flags), callerOf(&in.InHeader), keep)
	if err != nil {
		return fuse.OK, false // it is to be made
	}
	if !fs.files.Take(in.Uid, 1) {
		h.Close()
		fs.Forget(e.ID, 1)
		return fuse.Status(unix.EMFILE), true
	}
	return fs.created(in, e, h, nil, out), true
}

// resentSymlink is for the control directory: a link that was made already.
func (fs *fileSystem) resentSymlink(h *fuse.InHeader, name, target string, out *fuse.EntryOut) bool {
	c := callerOf(h)
	a, errno := fs.control.Lookup(c, h.NodeId, name)
	if errno != 0 {
		return false
	}
	if is, errno := fs.control.Readlink(c, a.Ino); errno != 0 || is != target {
		return false
	}
	virtEntry(out, h.Uid, a, fs.settings.SymlinkTimeout(h.Uid))
	return true
}

// keeps returns a record if a successor is to be told.
func (fs *fileSystem) keeps(r handleRecord) *handleRecord {
	if fs.opts.State == nil {
		return nil
	}
	return &r
}

// recall takes over what clients of a predecessor have open.
func (fs *fileSystem) recall(r *Recalled) {
	t := fs.handles
	t.mu.Lock()
	defer t.mu.Unlock()
	t.recalled = map[uint64]uint64{}
	var handles []uint64
	for fh, h := range r.open {
		if h.record.Exchange != 0 {
			t.exchanges = append(t.exchanges, h.record)
			delete(r.open, fh)
			continue
		}
		o := openHandle{uid: h.record.UID, file: h.file, dir: h.dir, record: h.record}
		switch {
		case h.record.File != nil:
			fs.passthrough.recall(h.record)
		case h.record.Virtual != nil:
			v := h.record.Virtual
			o.virtual = &virtualDir{ino: v.Ino, handle: v.Handle, caller: v.Caller}
			handles = append(handles, v.Handle)
		}
		o.gone = o.file == nil && o.dir == nil && o.virtual == nil
		o.free = !fs.files.Take(o.uid, 1)
		t.open[fh] = o
		if h.record.Unique != 0 {
			t.recalled[h.record.Unique] = fh
		}
		delete(r.open, fh)
	}
	fs.control.DirsStayOpen(handles)
}
