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
func (a *admission) admit(h *fuse.InHeader) fuse.Status {
	h.NodeId = virtualIno(h.NodeId)
	if a.opts.FailWhileHung && a.opts.Health.Hangs() && !wire.IsVirtual(h.NodeId) {
		return fuse.EIO
	}
	return a.admitHung(h)
}

// admitHung is admit for a request that may not need the data directory.
func (a *admission) admitHung(h *fuse.InHeader) fuse.Status {
	if !a.requests.Take(h.Uid, 1) {
		return refused
	}
	return fuse.OK
}

func (a *admission) leave(h *fuse.InHeader) { a.requests.Return(h.Uid, 1) }

// patience is for a request that was admitted and may wait for room. leave is to be called in
// place of admission's.
func (a *admission) patience(h *fuse.InHeader, cancel <-chan struct{}) (wait *tree.Waiting, leave func()) {
	held := a.requests
	wait = &tree.Waiting{Cancel: cancel, Begin: func() error {
		if !a.waiting.Take(h.Uid, 1) {
			return unix.EAGAIN
		}
		a.leave(h)
		held = a.waiting
		return nil
	}}
	return wait, func() { held.Return(h.Uid, 1) }
}

func (a *admission) Lookup(cancel <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	admit := a.admit
	if h.NodeId == tree.RootID && name == controldir.DirName {
		admit = a.admitHung
	}
	if st := admit(h); !st.Ok() {
		return st
	}
	defer a.leave(h)
	return a.fileSystem.Lookup(cancel, h, name, out)
}

func (a *admission) GetAttr(cancel <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	if st := a.admit(&in.InHeader); !st.Ok() {
		return st
	}
	defer a.leave(&in.InHeader)
	return a.fileSystem.GetAttr(cancel, in, out)
}

func (a *admission) SetAttr(cancel <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	if st := a.admit(&in.InHeader); !st.Ok() {
		return st
	}
	defer a.leave(&in.InHeader)
	return a.fileSystem.SetAttr(cancel, in, out)
}

func (a *admission) Readlink(cancel <-chan struct{}, h *fuse.InHeader) ([]byte, fuse.Status) {
	if st := a.admit(h); !st.Ok() {
		return nil, st
	}
	defer a.leave(h)
	return a.fileSystem.Readlink(cancel, h)
}

func (a *admission) Mknod(cancel <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	if st := a.admit(&in.InHeader); !st.Ok() {
		return st
	}
	defer a.leave(&in.InHeader)
	return a.fileSystem.Mknod(cancel, in, name, out)
}

func (a *admission) Mkdir(cancel <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	if st := a.admit(&in.InHeader); !st.Ok() {
		return st
	}
	defer a.leave(&in.InHeader)
	return a.fileSystem.Mkdir(cancel, in, name, out)
}

func (a *admission) Symlink(cancel <-chan struct{}, h *fuse.InHeader, target, name string, out *fuse.EntryOut) fuse.Status {
	if st := a.admit(h); !st.Ok() {
		return st
	}
	defer a.leave(h)
	return a.fileSystem.Symlink(cancel, h, target, name, out)
}

func (a *admission) Link(cancel <-chan struct{}, in *fuse.LinkIn, name string, out *fuse.EntryOut) fuse.Status {
	if st := a.admit(&in.InHeader); !st.Ok() {
		return st
	}
	defer a.leave(&in.InHeader)
	return a.fileSystem.Link(cancel, in, name, out)
}

func (a *admission) Unlink(cancel <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	if st := a.admit(h); !st.Ok() {
		return st
	}
	defer a.leave(h)
	return a.fileSystem.Unlink(cancel, h, name)
}

func (a *admission) Rmdir(cancel <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	if st := a.admit(h); !st.Ok() {
		return st
	}
	defer a.leave(h)
	return a.fileSystem.Rmdir(cancel, h, name)
}

func (a *admission) Rename(cancel <-chan struct{}, in *fuse.RenameIn, name, newName string) fuse.Status {
	if st := a.admit(&in.InHeader); !st.Ok() {
		return st
	}
	defer a.leave(&in.InHeader)
	return a.fileSystem.Rename(cancel, in, name, newName)
}

func (a *admission) StatFs(cancel <-chan struct{}, h *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	if st := a.admit(h); !st.Ok() {
		return st
	}
	defer a.leave(h)
	return a.fileSystem.StatFs(cancel, h, out)
}

func (a *admission) Open(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	if st := a.admit(&in.InHeader); !st.Ok() {
		return st
	}
	defer a.leave(&in.InHeader)
	return a.fileSystem.Open(cancel, in, out)
}

func (a *admission) Create(cancel <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	if st := a.admit(&in.InHeader); !st.Ok() {
		return st
	}
	defer a.leave(&in.InHeader)
	return a.fileSystem.Create(cancel, in, name, out)
}

func (a *admission) Tmpfile(cancel <-chan struct{}, in *fuse.CreateIn, out *fuse.CreateOut) fuse.Status {
	if st := a.admit(&in.InHeader); !st.Ok() {
		return st
	}
	defer a.leave(&in.InHeader)
	return a.fileSystem.Tmpfile(cancel, in, out)
}

func (a *admission) Fallocate(cancel <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	if st := a.admit(&in.InHeader); !st.Ok() {
		return st
	}
	wait, leave := a.patience(&in.InHeader, cancel)
	defer leave()
	return a.fileSystem.fallocate(in, wait)
}

func (a *admission) Lseek(cancel <-chan struct{}, in *fuse.LseekIn, out *fuse.LseekOut) fuse.Status {
	if st := a.admit(&in.InHeader); !st.Ok() {
		return st
	}
	defer a.leave(&in.InHeader)
	return a.fileSystem.Lseek(cancel, in, out)
}

func (a *admission) Read(cancel <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	if st := a.admit(&in.InHeader); !st.Ok() {
		return nil, st
	}
	defer a.leave(&in.InHeader)
	return a.fileSystem.Read(cancel, in, buf)
}

func (a *admission) Write(cancel <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	if st := a.admit(&in.InHeader); !st.Ok() {
		return 0, st
	}
	wait, leave := a.patience(&in.InHeader, cancel)
	defer leave()
	return a.fileSystem.write(in, data, wait)
}

func (a *admission) Flush(cancel <-chan struct{}, in *fuse.FlushIn) fuse.Status {
	if st := a.admit(&in.InHeader); !st.Ok() {
		return st
	}
	defer a.leave(&in.InHeader)
	return a.fileSystem.Flush(cancel, in)
}

func (a *admission) Fsync(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	if st := a.admit(&in.InHeader); !st.Ok() {
		return st
	}
	defer a.leave(&in.InHeader)
	return a.fileSystem.Fsync(cancel, in)
}

func (a *admission) OpenDir(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	if st := a.admit(&in.InHeader); !st.Ok() {
		return st
	}
	defer a.leave(&in.InHeader)
	return a.fileSystem.OpenDir(cancel, in, out)
}

func (a *admission) ReadDir(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	if st := a.admit(&in.InHeader); !st.Ok() {
		return st
	}
	defer a.leave(&in.InHeader)
	return a.fileSystem.ReadDir(cancel, in, out)
}

func (a *admission) ReadDirPlus(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	if st := a.admit(&in.InHeader); !st.Ok() {
		return st
	}
	defer a.leave(&in.InHeader)
	return a.fileSystem.ReadDirPlus(cancel, in, out)
}

func (a *admission) FsyncDir(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	if st := a.admit(&in.InHeader); !st.Ok() {
		return st
	}
	defer a.leave(&in.InHeader)
	return a.fileSystem.FsyncDir(cancel, in)
}

func (a *admission) GetXAttr(cancel <-chan struct{}, h *fuse.InHeader, name string, dest []byte) (uint32, fuse.Status) {
	if st := a.admit(h); !st.Ok() {
		return 0, st
	}
	defer a.leave(h)
	return a.fileSystem.GetXAttr(cancel, h, name, dest)
}

func (a *admission) ListXAttr(cancel <-chan struct{}, h *fuse.InHeader, dest []byte) (uint32, fuse.Status) {
	if st := a.admit(h); !st.Ok() {
		return 0, st
	}
	defer a.leave(h)
	return a.fileSystem.ListXAttr(cancel, h, dest)
}

func (a *admission) SetXAttr(cancel <-chan struct{}, in *fuse.SetXAttrIn, name string, value []byte) fuse.Status {
	if st := a.admit(&in.InHeader); !st.Ok() {
		return st
	}
	defer a.leave(&in.InHeader)
	return a.fileSystem.SetXAttr(cancel, in, name, value)
}

func (a *admission) RemoveXAttr(cancel <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	if st := a.admit(h); !st.Ok() {
		return st
	}
	defer a.leave(h)
	return a.fileSystem.RemoveXAttr(cancel, h, name)
}

func (a *admission) Ioctl(cancel <-chan struct{}, in *fuse.IoctlIn, arg []byte, out *fuse.IoctlOut, outArg []byte) fuse.Status {
	if st := a.admit(&in.InHeader); !st.Ok() {
		return st
	}
	defer a.leave(&in.InHeader)
	return a.fileSystem.Ioctl(cancel, in, arg, out, outArg)
}
