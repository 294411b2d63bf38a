package fuseserver

import (
	"github.com/hanwen/go-fuse/v2/fuse"
)

// outliving answers the requests of a mount that outlives its daemon: none while that is handed over, and none before a
// successor knows of what it tells. Forgets pass.
type outliving struct {
	*operations
	gate *gate
}

func (o *outliving) begin() { o.gate.enter() }

func (o *outliving) end() {
	o.tree.Commit()
	o.gate.leave()
}

func (o *outliving) Lookup(cancel <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	o.begin()
	defer o.end()
	return o.operations.Lookup(cancel, h, name, out)
}

func (o *outliving) GetAttr(cancel <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	o.begin()
	defer o.end()
	return o.operations.GetAttr(cancel, in, out)
}

func (o *outliving) SetAttr(cancel <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	o.begin()
	defer o.end()
	return o.operations.SetAttr(cancel, in, out)
}

func (o *outliving) Readlink(cancel <-chan struct{}, h *fuse.InHeader) ([]byte, fuse.Status) {
	o.begin()
	defer o.end()
	return o.operations.Readlink(cancel, h)
}

func (o *outliving) Mknod(cancel <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	o.begin()
	defer o.end()
	return o.operations.Mknod(cancel, in, name, out)
}

func (o *outliving) Mkdir(cancel <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	o.begin()
	defer o.end()
	return o.operations.Mkdir(cancel, in, name, out)
}

func (o *outliving) Symlink(cancel <-chan struct{}, h *fuse.InHeader, target, name string, out *fuse.EntryOut) fuse.Status {
	o.begin()
	defer o.end()
	return o.operations.Symlink(cancel, h, target, name, out)
}

func (o *outliving) Link(cancel <-chan struct{}, in *fuse.LinkIn, name string, out *fuse.EntryOut) fuse.Status {
	o.begin()
	defer o.end()
	return o.operations.Link(cancel, in, name, out)
}

func (o *outliving) Unlink(cancel <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	o.begin()
	defer o.end()
	return o.operations.Unlink(cancel, h, name)
}

func (o *outliving) Rmdir(cancel <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	o.begin()
	defer o.end()
	return o.operations.Rmdir(cancel, h, name)
}

func (o *outliving) Rename(cancel <-chan struct{}, in *fuse.RenameIn, name, newName string) fuse.Status {
	o.begin()
	defer o.end()
	return o.operations.Rename(cancel, in, name, newName)
}

func (o *outliving) StatFs(cancel <-chan struct{}, h *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	o.begin()
	defer o.end()
	return o.operations.StatFs(cancel, h, out)
}

func (o *outliving) Open(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	o.begin()
	defer o.end()
	return o.operations.Open(cancel, in, out)
}

func (o *outliving) Create(cancel <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	o.begin()
	defer o.end()
	return o.operations.Create(cancel, in, name, out)
}

func (o *outliving) Tmpfile(cancel <-chan struct{}, in *fuse.CreateIn, out *fuse.CreateOut) fuse.Status {
	o.begin()
	defer o.end()
	return o.operations.Tmpfile(cancel, in, out)
}

func (o *outliving) Fallocate(cancel <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	o.begin()
	defer o.end()
	return o.operations.Fallocate(cancel, in)
}

func (o *outliving) Lseek(cancel <-chan struct{}, in *fuse.LseekIn, out *fuse.LseekOut) fuse.Status {
	o.begin()
	defer o.end()
	return o.operations.Lseek(cancel, in, out)
}

func (o *outliving) Read(cancel <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	o.begin()
	defer o.end()
	return o.operations.Read(cancel, in, buf)
}

func (o *outliving) Write(cancel <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	o.begin()
	defer o.end()
	return o.operations.Write(cancel, in, data)
}

func (o *outliving) Flush(cancel <-chan struct{}, in *fuse.FlushIn) fuse.Status {
	o.begin()
	defer o.end()
	return o.operations.Flush(cancel, in)
}

func (o *outliving) Fsync(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	o.begin()
	defer o.end()
	return o.operations.Fsync(cancel, in)
}

func (o *outliving) OpenDir(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	o.begin()
	defer o.end()
	return o.operations.OpenDir(cancel, in, out)
}

func (o *outliving) ReadDir(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	o.begin()
	defer o.end()
	return o.operations.ReadDir(cancel, in, out)
}

func (o *outliving) ReadDirPlus(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	o.begin()
	defer o.end()
	return o.operations.ReadDirPlus(cancel, in, out)
}

func (o *outliving) FsyncDir(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	o.begin()
	defer o.end()
	return o.operations.FsyncDir(cancel, in)
}

func (o *outliving) GetXAttr(cancel <-chan struct{}, h *fuse.InHeader, name string, dest []byte) (uint32, fuse.Status) {
	o.begin()
	defer o.end()
	return o.operations.GetXAttr(cancel, h, name, dest)
}

func (o *outliving) ListXAttr(cancel <-chan struct{}, h *fuse.InHeader, dest []byte) (uint32, fuse.Status) {
	o.begin()
	defer o.end()
	return o.operations.ListXAttr(cancel, h, dest)
}

func (o *outliving) SetXAttr(cancel <-chan struct{}, in *fuse.SetXAttrIn, name string, value []byte) fuse.Status {
	o.begin()
	defer o.end()
	return o.operations.SetXAttr(cancel, in, name, value)
}

func (o *outliving) RemoveXAttr(cancel <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	o.begin()
	defer o.end()
	return o.operations.RemoveXAttr(cancel, h, name)
}

func (o *outliving) Ioctl(cancel <-chan struct{}, in *fuse.IoctlIn, arg []byte, out *fuse.IoctlOut, outArg []byte) fuse.Status {
	o.begin()
	defer o.end()
	return o.operations.Ioctl(cancel, in, arg, out, outArg)
}

func (o *outliving) Release(cancel <-chan struct{}, in *fuse.ReleaseIn) {
	o.begin()
	defer o.end()
	o.operations.Release(cancel, in)
}

func (o *outliving) ReleaseDir(in *fuse.ReleaseIn) {
	o.begin()
	defer o.end()
	o.operations.ReleaseDir(in)
}
