package fuseserver

import (
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/controldir"
	"github.com/kv3fs/kv3fs/internal/fs/quota"
	"github.com/kv3fs/kv3fs/internal/fs/tree"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// admission passes requests on to the file system, a bounded number of each user's at a
// time. A request takes a thread for as long as the data directory does not answer, and
// there are only so many threads. More are refused at once with EAGAIN; nothing waits here.
//
// What the kernel sends without waiting for an answer (forgets, releases, interrupts) is
// always admitted: none of it may wait for the data directory. So are pages that clients
// have mapped and written, which a refusal would lose; the kernel sends maxBackground of
// them at a time.
//
// A write that waits for room, where that is limited, takes no thread, and must not take its
// user's reads their place. It is counted apart then, up to the same number.
type admission struct {
	*fileSystem
	requests *quota.Quota
	waiting  *quota.Quota
}

func newAdmission(fs *fileSystem, l Limits) *admission {
	return &admission{fileSystem: fs, requests: quota.New(int64(l.Requests)), waiting: quota.New(int64(l.Requests))}
}

const refused = fuse.Status(unix.EAGAIN)

// admit counts a request of a user until leave, and returns an error if there may not be one more, or if the
// data directory would let it wait for long. From here on, a virtual directory goes by its inode number.
func (a *admission) admit(h *fuse.InHeader, u use) (*timed, fuse.Status) {
	h.NodeId = virtualIno(h.NodeId)
	if wire.IsVirtual(h.NodeId) {
		return nil, a.admitVirtual(h)
	}
	return a.admitTimed(h, h.NodeId, u)
}

// admitTimed is admit for a request that uses the tree: that node, or 0.
func (a *admission) admitTimed(h *fuse.InHeader, node uint64, u use) (*timed, fuse.Status) {
	if st := a.admitVirtual(h); !st.Ok() {
		return nil, st
	}
	c, st := a.late.begin(h, node, u)
	if !st.Ok() {
		a.leave(h, nil)
	}
	return c, st
}

// admitVirtual is admit for a request that does not need the data directory.
func (a *admission) admitVirtual(h *fuse.InHeader) fuse.Status {
	if !a.requests.Take(h.Uid, 1) {
		return refused
	}
	return fuse.OK
}

func (a *admission) leave(h *fuse.InHeader, c *timed) {
	c.end()
	a.requests.Return(h.Uid, 1)
}

// entryUnknown is called with the node of an entry that a request has found or made, which the kernel does not get to know
// if the request was answered before.
func (a *admission) entryUnknown(c *timed, st fuse.Status, node uint64) {
	if c.end() && st.Ok() && node != 0 {
		a.fileSystem.Forget(node, 1)
	}
}

// effortOf says what an ioctl does.
func effortOf(in *fuse.IoctlIn) effort {
	switch in.Cmd {
	case wire.IoctlRecursiveRm, wire.IoctlRemove:
		return steps
	case wire.IoctlHardlink, wire.IoctlPunchHole, wire.IoctlMove, wire.IoctlSetFlags:
		return changes
	}
	return reads
}

// proceed returns what a request of many steps calls before each of them; an error ends it.
func proceed(cancel <-chan struct{}, c *timed) tree.Proceed {
	return func(nodes ...uint64) error {
		select {
		case <-cancel:
			return unix.EINTR
		default:
			return c.step(nodes...)
		}
	}
}

// patience is for a request that was admitted and may wait for room. leave is to be called in
// place of admission's.
func (a *admission) patience(h *fuse.InHeader, cancel <-chan struct{}, c *timed) (wait *tree.Waiting, leave func()) {
	held := a.requests
	wait = &tree.Waiting{Cancel: cancel, Begin: func() error {
		if !a.waiting.Take(h.Uid, 1) {
			return unix.EAGAIN
		}
		c.wait()
		a.requests.Return(h.Uid, 1)
		held = a.waiting
		return nil
	}, End: c.waited}
	return wait, func() {
		c.end()
		held.Return(h.Uid, 1)
	}
}

func (a *admission) Lookup(cancel <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	var c *timed
	var st fuse.Status
	if h.NodeId == tree.RootID && name == controldir.DirName {
		st = a.admitVirtual(h)
	} else {
		c, st = a.admit(h, use{})
	}
	if !st.Ok() {
		return st
	}
	defer a.leave(h, c)
	st = a.fileSystem.Lookup(cancel, h, name, out)
	a.entryUnknown(c, st, out.NodeId)
	return st
}

func (a *admission) GetAttr(cancel <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	c, st := a.admit(&in.InHeader, use{})
	if !st.Ok() {
		return st
	}
	defer a.leave(&in.InHeader, c)
	return a.fileSystem.GetAttr(cancel, in, out)
}

func (a *admission) SetAttr(cancel <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	c, st := a.admit(&in.InHeader, use{how: changes, bytes: in.Valid&fuse.FATTR_SIZE != 0})
	if !st.Ok() {
		return st
	}
	defer a.leave(&in.InHeader, c)
	return a.fileSystem.setAttr(c.unanswered, in, out)
}

func (a *admission) Readlink(cancel <-chan struct{}, h *fuse.InHeader) ([]byte, fuse.Status) {
	c, st := a.admit(h, use{})
	if !st.Ok() {
		return nil, st
	}
	defer a.leave(h, c)
	return a.fileSystem.Readlink(cancel, h)
}

func (a *admission) Mknod(cancel <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	c, st := a.admit(&in.InHeader, use{how: changes})
	if !st.Ok() {
		return st
	}
	defer a.leave(&in.InHeader, c)
	st = a.fileSystem.mknod(c.unanswered, in, name, out)
	a.entryUnknown(c, st, out.NodeId)
	return st
}

func (a *admission) Mkdir(cancel <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	c, st := a.admit(&in.InHeader, use{how: changes})
	if !st.Ok() {
		return st
	}
	defer a.leave(&in.InHeader, c)
	st = a.fileSystem.mkdir(c.unanswered, in, name, out)
	a.entryUnknown(c, st, out.NodeId)
	return st
}

func (a *admission) Symlink(cancel <-chan struct{}, h *fuse.InHeader, target, name string, out *fuse.EntryOut) fuse.Status {
	var c *timed
	var st fuse.Status
	switch h.NodeId = virtualIno(h.NodeId); {
	case h.NodeId == wire.InoRmRf:
		c, st = a.admitTimed(h, 0, use{how: steps})
	default:
		c, st = a.admit(h, use{how: changes})
	}
	if !st.Ok() {
		return st
	}
	defer a.leave(h, c)
	st = a.fileSystem.symlink(proceed(cancel, c), c.unanswered, h, target, name, out)
	a.entryUnknown(c, st, out.NodeId)
	return st
}

func (a *admission) Link(cancel <-chan struct{}, in *fuse.LinkIn, name string, out *fuse.EntryOut) fuse.Status {
	c, st := a.admit(&in.InHeader, use{how: changes, node: in.Oldnodeid})
	if !st.Ok() {
		return st
	}
	defer a.leave(&in.InHeader, c)
	st = a.fileSystem.link(c.unanswered, in, name, out)
	a.entryUnknown(c, st, out.NodeId)
	return st
}

func (a *admission) Unlink(cancel <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	c, st := a.admit(h, use{how: changes})
	if !st.Ok() {
		return st
	}
	defer a.leave(h, c)
	return a.fileSystem.unlink(c.unanswered, h, name)
}

func (a *admission) Rmdir(cancel <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	c, st := a.admit(h, use{how: changes})
	if !st.Ok() {
		return st
	}
	defer a.leave(h, c)
	return a.fileSystem.rmdir(c.unanswered, h, name)
}

func (a *admission) Rename(cancel <-chan struct{}, in *fuse.RenameIn, name, newName string) fuse.Status {
	u := use{how: changes, node: virtualIno(in.Newdir)}
	if wire.IsVirtual(u.node) {
		u = use{how: steps} // of a removal
	}
	c, st := a.admit(&in.InHeader, u)
	if !st.Ok() {
		return st
	}
	defer a.leave(&in.InHeader, c)
	return a.fileSystem.rename(proceed(cancel, c), c.unanswered, in, name, newName)
}

func (a *admission) StatFs(cancel <-chan struct{}, h *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	h.NodeId = virtualIno(h.NodeId)
	c, st := a.admitTimed(h, 0, use{}) // of whatever node: it is the data directory's
	if !st.Ok() {
		return st
	}
	defer a.leave(h, c)
	return a.fileSystem.StatFs(cancel, h, out)
}

func (a *admission) Open(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	var u use
	if in.Flags&unix.O_TRUNC != 0 {
		u = use{how: changes, bytes: true}
	}
	c, st := a.admit(&in.InHeader, u)
	if !st.Ok() {
		return st
	}
	defer a.leave(&in.InHeader, c)
	st = a.fileSystem.openFile(c.unanswered, in, out)
	if c.end() && st.Ok() {
		a.release(a.handles.take(out.Fh))
	}
	return st
}

func (a *admission) Create(cancel <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	c, st := a.admit(&in.InHeader, use{how: changes})
	if !st.Ok() {
		return st
	}
	defer a.leave(&in.InHeader, c)
	st = a.fileSystem.create(c.unanswered, in, name, out)
	if c.end() && st.Ok() {
		a.release(a.handles.take(out.Fh))
		a.fileSystem.Forget(out.NodeId, 1)
	}
	return st
}

func (a *admission) Tmpfile(cancel <-chan struct{}, in *fuse.CreateIn, out *fuse.CreateOut) fuse.Status {
	c, st := a.admit(&in.InHeader, use{})
	if !st.Ok() {
		return st
	}
	defer a.leave(&in.InHeader, c)
	st = a.fileSystem.Tmpfile(cancel, in, out)
	if c.end() && st.Ok() {
		a.release(a.handles.take(out.Fh))
		a.fileSystem.Forget(out.NodeId, 1)
	}
	return st
}

func (a *admission) Fallocate(cancel <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	c, st := a.admit(&in.InHeader, use{how: changes, file: in.Fh, bytes: true})
	if !st.Ok() {
		return st
	}
	wait, leave := a.patience(&in.InHeader, cancel, c)
	defer leave()
	return a.fileSystem.fallocate(in, wait)
}

func (a *admission) Lseek(cancel <-chan struct{}, in *fuse.LseekIn, out *fuse.LseekOut) fuse.Status {
	c, st := a.admit(&in.InHeader, use{file: in.Fh})
	if !st.Ok() {
		return st
	}
	defer a.leave(&in.InHeader, c)
	return a.fileSystem.Lseek(cancel, in, out)
}

func (a *admission) Read(cancel <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	c, st := a.admit(&in.InHeader, use{file: in.Fh})
	if !st.Ok() {
		return nil, st
	}
	defer a.leave(&in.InHeader, c)
	return a.fileSystem.Read(cancel, in, buf)
}

func (a *admission) Write(cancel <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	c, st := a.admit(&in.InHeader, use{how: changes, file: in.Fh, bytes: true})
	if !st.Ok() {
		return 0, st
	}
	wait, leave := a.patience(&in.InHeader, cancel, c)
	defer leave()
	return a.fileSystem.write(in, data, wait)
}

func (a *admission) Flush(cancel <-chan struct{}, in *fuse.FlushIn) fuse.Status {
	c, st := a.admit(&in.InHeader, use{file: in.Fh})
	if !st.Ok() {
		return st
	}
	defer a.leave(&in.InHeader, c)
	return a.fileSystem.Flush(cancel, in)
}

func (a *admission) Fsync(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	c, st := a.admit(&in.InHeader, use{file: in.Fh})
	if !st.Ok() {
		return st
	}
	defer a.leave(&in.InHeader, c)
	return a.fileSystem.Fsync(cancel, in)
}

func (a *admission) OpenDir(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	c, st := a.admit(&in.InHeader, use{})
	if !st.Ok() {
		return st
	}
	defer a.leave(&in.InHeader, c)
	st = a.fileSystem.OpenDir(cancel, in, out)
	if c.end() && st.Ok() {
		a.release(a.handles.take(out.Fh))
	}
	return st
}

func (a *admission) ReadDir(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	c, st := a.admit(&in.InHeader, use{file: in.Fh})
	if !st.Ok() {
		return st
	}
	defer a.leave(&in.InHeader, c)
	return a.fileSystem.ReadDir(cancel, in, out)
}

func (a *admission) ReadDirPlus(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	c, st := a.admit(&in.InHeader, use{file: in.Fh})
	if !st.Ok() {
		return st
	}
	defer a.leave(&in.InHeader, c)
	var told []uint64
	st = a.readDirPlus(in, out, func(node uint64) {
		if c != nil {
			told = append(told, node)
		}
	})
	if c.end() {
		for _, node := range told {
			a.fileSystem.Forget(node, 1)
		}
	}
	return st
}

func (a *admission) FsyncDir(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	c, st := a.admit(&in.InHeader, use{file: in.Fh})
	if !st.Ok() {
		return st
	}
	defer a.leave(&in.InHeader, c)
	return a.fileSystem.FsyncDir(cancel, in)
}

func (a *admission) GetXAttr(cancel <-chan struct{}, h *fuse.InHeader, name string, dest []byte) (uint32, fuse.Status) {
	c, st := a.admit(h, use{})
	if !st.Ok() {
		return 0, st
	}
	defer a.leave(h, c)
	return a.fileSystem.GetXAttr(cancel, h, name, dest)
}

func (a *admission) ListXAttr(cancel <-chan struct{}, h *fuse.InHeader, dest []byte) (uint32, fuse.Status) {
	c, st := a.admit(h, use{})
	if !st.Ok() {
		return 0, st
	}
	defer a.leave(h, c)
	return a.fileSystem.ListXAttr(cancel, h, dest)
}

func (a *admission) SetXAttr(cancel <-chan struct{}, in *fuse.SetXAttrIn, name string, value []byte) fuse.Status {
	c, st := a.admit(&in.InHeader, use{how: changes})
	if !st.Ok() {
		return st
	}
	defer a.leave(&in.InHeader, c)
	return a.fileSystem.SetXAttr(cancel, in, name, value)
}

func (a *admission) RemoveXAttr(cancel <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	c, st := a.admit(h, use{how: changes})
	if !st.Ok() {
		return st
	}
	defer a.leave(h, c)
	return a.fileSystem.RemoveXAttr(cancel, h, name)
}

func (a *admission) Ioctl(cancel <-chan struct{}, in *fuse.IoctlIn, arg []byte, out *fuse.IoctlOut, outArg []byte) fuse.Status {
	c, st := a.admit(&in.InHeader, use{how: effortOf(in), file: in.Fh, bytes: in.Cmd == wire.IoctlPunchHole})
	if !st.Ok() {
		return st
	}
	defer a.leave(&in.InHeader, c)
	return a.fileSystem.ioctl(proceed(cancel, c), c.unanswered, in, arg, out, outArg)
}
