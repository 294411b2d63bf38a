package fuseserver

import (
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/kv3fs/kv3fs/internal/histogram"
)

// Operation is what the mount was asked for by one kind of FUSE request, with the answers.
type Operation struct {
	Name   string
	Took   histogram.Count
	Failed []Failure
}

// Failure is how many requests failed with an errno; the errno 0 stands for all others.
type Failure struct {
	Errno    syscall.Errno
	Requests int64
}

// operationBounds are the bounds of Operation.Took.
var operationBounds = [...]time.Duration{
	20 * time.Microsecond, 50 * time.Microsecond, 100 * time.Microsecond, 200 * time.Microsecond, 500 * time.Microsecond, time.Millisecond, 2 * time.Millisecond,
	5 * time.Millisecond, 10 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond, 500 * time.Millisecond, time.Second, 5 * time.Second, 30 * time.Second,
}

// operationErrnos are counted apart. The last one is for all others.
var operationErrnos = [...]syscall.Errno{
	syscall.ENOENT, syscall.EACCES, syscall.EPERM, syscall.EEXIST, syscall.EINVAL, syscall.EAGAIN, syscall.EINTR, syscall.EROFS, syscall.ESTALE, syscall.EMFILE,
	syscall.EIO, syscall.ENOSPC, syscall.EDQUOT, syscall.ENODATA, syscall.EOPNOTSUPP, syscall.ENOSYS, 0,
}

// operation counts one kind of request.
type operation struct {
	took   *histogram.Histogram
	failed [len(operationErrnos)]atomic.Int64
}

func (o *operation) note(began time.Time, st *fuse.Status) {
	o.took.Observe(time.Since(began))
	if *st == fuse.OK {
		return
	}
	i := 0
	for i < len(operationErrnos)-1 && operationErrnos[i] != syscall.Errno(*st) {
		i++
	}
	o.failed[i].Add(1)
}

// Operations returns what the mount was asked for, in the order of the operations' names. What the kernel answers by itself is not in it: reads and writes
// of files in passthrough, and what it has cached.
func (m *Mount) Operations() (all []Operation) {
	for i := range m.operations.all {
		o := &m.operations.all[i]
		one := Operation{Name: operationNames[i], Took: o.took.Count()}
		for e, errno := range operationErrnos {
			one.Failed = append(one.Failed, Failure{errno, o.failed[e].Load()})
		}
		all = append(all, one)
	}
	return all
}

// operations counts what is asked for, and passes it on to admission.
type operations struct {
	*admission
	all [operationKinds]operation
}

func newOperations(a *admission) *operations {
	o := &operations{admission: a}
	for i := range o.all {
		o.all[i].took = histogram.New(operationBounds[:])
	}
	return o
}

func (o *operations) note(kind int, began time.Time, st *fuse.Status) { o.all[kind].note(began, st) }

const (
	opCreate = iota
	opFallocate
	opFlush
	opFsync
	opFsyncDir
	opGetAttr
	opGetXAttr
	opIoctl
	opLink
	opListXAttr
	opLookup
	opLseek
	opMkdir
	opMknod
	opOpen
	opOpenDir
	opRead
	opReadDir
	opReadDirPlus
	opReadlink
	opRemoveXAttr
	opRename
	opRmdir
	opSetAttr
	opSetXAttr
	opStatFs
	opSymlink
	opTmpfile
	opUnlink
	opWrite
	operationKinds
)

var operationNames = [operationKinds]string{
	opCreate:      "create",
	opFallocate:   "fallocate",
	opFlush:       "flush",
	opFsync:       "fsync",
	opFsyncDir:    "fsyncdir",
	opGetAttr:     "getattr",
	opGetXAttr:    "getxattr",
	opIoctl:       "ioctl",
	opLink:        "link",
	opListXAttr:   "listxattr",
	opLookup:      "lookup",
	opLseek:       "lseek",
	opMkdir:       "mkdir",
	opMknod:       "mknod",
	opOpen:        "open",
	opOpenDir:     "opendir",
	opRead:        "read",
	opReadDir:     "readdir",
	opReadDirPlus: "readdirplus",
	opReadlink:    "readlink",
	opRemoveXAttr: "removexattr",
	opRename:      "rename",
	opRmdir:       "rmdir",
	opSetAttr:     "setattr",
	opSetXAttr:    "setxattr",
	opStatFs:      "statfs",
	opSymlink:     "symlink",
	opTmpfile:     "tmpfile",
	opUnlink:      "unlink",
	opWrite:       "write",
}

func (o *operations) Lookup(cancel <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) (st fuse.Status) {
	began := time.Now()
	st = o.admission.Lookup(cancel, h, name, out)
	counted := st
	if st.Ok() && out.NodeId == 0 { // no such entry, which the kernel may cache
		counted = fuse.ENOENT
	}
	o.note(opLookup, began, &counted)
	return st
}

func (o *operations) GetAttr(cancel <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) (st fuse.Status) {
	defer o.note(opGetAttr, time.Now(), &st)
	return o.admission.GetAttr(cancel, in, out)
}

func (o *operations) SetAttr(cancel <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) (st fuse.Status) {
	defer o.note(opSetAttr, time.Now(), &st)
	return o.admission.SetAttr(cancel, in, out)
}

func (o *operations) Readlink(cancel <-chan struct{}, h *fuse.InHeader) (_ []byte, st fuse.Status) {
	defer o.note(opReadlink, time.Now(), &st)
	return o.admission.Readlink(cancel, h)
}

func (o *operations) Mknod(cancel <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) (st fuse.Status) {
	defer o.note(opMknod, time.Now(), &st)
	return o.admission.Mknod(cancel, in, name, out)
}

func (o *operations) Mkdir(cancel <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) (st fuse.Status) {
	defer o.note(opMkdir, time.Now(), &st)
	return o.admission.Mkdir(cancel, in, name, out)
}

func (o *operations) Symlink(cancel <-chan struct{}, h *fuse.InHeader, target, name string, out *fuse.EntryOut) (st fuse.Status) {
	defer o.note(opSymlink, time.Now(), &st)
	return o.admission.Symlink(cancel, h, target, name, out)
}

func (o *operations) Link(cancel <-chan struct{}, in *fuse.LinkIn, name string, out *fuse.EntryOut) (st fuse.Status) {
	defer o.note(opLink, time.Now(), &st)
	return o.admission.Link(cancel, in, name, out)
}

func (o *operations) Unlink(cancel <-chan struct{}, h *fuse.InHeader, name string) (st fuse.Status) {
	defer o.note(opUnlink, time.Now(), &st)
	return o.admission.Unlink(cancel, h, name)
}

func (o *operations) Rmdir(cancel <-chan struct{}, h *fuse.InHeader, name string) (st fuse.Status) {
	defer o.note(opRmdir, time.Now(), &st)
	return o.admission.Rmdir(cancel, h, name)
}

func (o *operations) Rename(cancel <-chan struct{}, in *fuse.RenameIn, name, newName string) (st fuse.Status) {
	defer o.note(opRename, time.Now(), &st)
	return o.admission.Rename(cancel, in, name, newName)
}

func (o *operations) StatFs(cancel <-chan struct{}, h *fuse.InHeader, out *fuse.StatfsOut) (st fuse.Status) {
	defer o.note(opStatFs, time.Now(), &st)
	return o.admission.StatFs(cancel, h, out)
}

func (o *operations) Open(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) (st fuse.Status) {
	defer o.note(opOpen, time.Now(), &st)
	return o.admission.Open(cancel, in, out)
}

func (o *operations) Create(cancel <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) (st fuse.Status) {
	defer o.note(opCreate, time.Now(), &st)
	return o.admission.Create(cancel, in, name, out)
}

func (o *operations) Tmpfile(cancel <-chan struct{}, in *fuse.CreateIn, out *fuse.CreateOut) (st fuse.Status) {
	defer o.note(opTmpfile, time.Now(), &st)
	return o.admission.Tmpfile(cancel, in, out)
}

func (o *operations) Fallocate(cancel <-chan struct{}, in *fuse.FallocateIn) (st fuse.Status) {
	defer o.note(opFallocate, time.Now(), &st)
	return o.admission.Fallocate(cancel, in)
}

func (o *operations) Lseek(cancel <-chan struct{}, in *fuse.LseekIn, out *fuse.LseekOut) (st fuse.Status) {
	defer o.note(opLseek, time.Now(), &st)
	return o.admission.Lseek(cancel, in, out)
}

func (o *operations) Read(cancel <-chan struct{}, in *fuse.ReadIn, buf []byte) (_ fuse.ReadResult, st fuse.Status) {
	defer o.note(opRead, time.Now(), &st)
	return o.admission.Read(cancel, in, buf)
}

func (o *operations) Write(cancel <-chan struct{}, in *fuse.WriteIn, data []byte) (_ uint32, st fuse.Status) {
	defer o.note(opWrite, time.Now(), &st)
	return o.admission.Write(cancel, in, data)
}

func (o *operations) Flush(cancel <-chan struct{}, in *fuse.FlushIn) (st fuse.Status) {
	defer o.note(opFlush, time.Now(), &st)
	return o.admission.Flush(cancel, in)
}

func (o *operations) Fsync(cancel <-chan struct{}, in *fuse.FsyncIn) (st fuse.Status) {
	defer o.note(opFsync, time.Now(), &st)
	return o.admission.Fsync(cancel, in)
}

func (o *operations) OpenDir(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) (st fuse.Status) {
	defer o.note(opOpenDir, time.Now(), &st)
	return o.admission.OpenDir(cancel, in, out)
}

func (o *operations) ReadDir(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) (st fuse.Status) {
	defer o.note(opReadDir, time.Now(), &st)
	return o.admission.ReadDir(cancel, in, out)
}

func (o *operations) ReadDirPlus(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) (st fuse.Status) {
	defer o.note(opReadDirPlus, time.Now(), &st)
	return o.admission.ReadDirPlus(cancel, in, out)
}

func (o *operations) FsyncDir(cancel <-chan struct{}, in *fuse.FsyncIn) (st fuse.Status) {
	defer o.note(opFsyncDir, time.Now(), &st)
	return o.admission.FsyncDir(cancel, in)
}

func (o *operations) GetXAttr(cancel <-chan struct{}, h *fuse.InHeader, name string, dest []byte) (_ uint32, st fuse.Status) {
	defer o.note(opGetXAttr, time.Now(), &st)
	return o.admission.GetXAttr(cancel, h, name, dest)
}

func (o *operations) ListXAttr(cancel <-chan struct{}, h *fuse.InHeader, dest []byte) (_ uint32, st fuse.Status) {
	defer o.note(opListXAttr, time.Now(), &st)
	return o.admission.ListXAttr(cancel, h, dest)
}

func (o *operations) SetXAttr(cancel <-chan struct{}, in *fuse.SetXAttrIn, name string, value []byte) (st fuse.Status) {
	defer o.note(opSetXAttr, time.Now(), &st)
	return o.admission.SetXAttr(cancel, in, name, value)
}

func (o *operations) RemoveXAttr(cancel <-chan struct{}, h *fuse.InHeader, name string) (st fuse.Status) {
	defer o.note(opRemoveXAttr, time.Now(), &st)
	return o.admission.RemoveXAttr(cancel, h, name)
}

func (o *operations) Ioctl(cancel <-chan struct{}, in *fuse.IoctlIn, arg []byte, out *fuse.IoctlOut, outArg []byte) (st fuse.Status) {
	defer o.note(opIoctl, time.Now(), &st)
	return o.admission.Ioctl(cancel, in, arg, out, outArg)
}
