// Package faultdir mounts a directory whose calls a test can have fail or hang, as those of a disk or a server that dies.
package faultdir

import (
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// Call is what a process asks of the file system. Name is that of the entry, "" where there is none. Offset is that of a
// read or write.
type Call struct {
	Op, Name string
	Offset   int64
}

// Dir is a directory that shows another one.
type Dir struct {
	Path    string
	Beneath string // the same without faults

	t     testing.TB
	mu    sync.Mutex
	fault func(Call) syscall.Errno // nil: there is none
	hung  chan struct{}            // closed by Heal
	hangs chan Call

	open   map[uint64]syscall.Errno // file handles, and what reads, writes, syncs and closes of them fail with; 0: they do not
	unborn bool                     // nobody is told when files were made
	cached bool                     // see Cache

	opened atomic.Int64 // files and directories that are not released yet
}

// New mounts a directory until the test ends. Nothing is cached, so that each call is seen.
func New(t testing.TB) *Dir {
	t.Helper()
	return Over(t, t.TempDir(), 0)
}

// Over is New for a directory that others may show and change, too, as other hosts do with one of a distributed file system.
// The kernel believes its names for some time, and no file has a time of birth, as on GlusterFS.
func Over(t testing.TB, beneath string, believes time.Duration) *Dir {
	t.Helper()
	at, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	d := &Dir{Path: at, Beneath: beneath, t: t, hangs: make(chan Call, 1), unborn: believes > 0, open: map[uint64]syscall.Errno{}}
	root, err := fs.NewLoopbackRoot(d.Beneath)
	if err != nil {
		t.Fatal(err)
	}
	var none time.Duration
	raw := fs.NewNodeFS(root, &fs.Options{EntryTimeout: &believes, AttrTimeout: &none, NegativeTimeout: &none})
	server, err := fuse.NewServer(&faulty{raw, d}, at, &fuse.MountOptions{
		FsName: "faultdir", DirectMount: os.Geteuid() == 0, AllowOther: os.Geteuid() == 0, DisableReadDirPlus: true, DisableSplice: true,
	})
	if err != nil {
		daemontest.NotTested(t, "no FUSE here: "+err.Error())
	}
	go server.Serve()
	t.Cleanup(func() {
		d.Heal()
		end := time.Now().Add(time.Minute)
		for d.opened.Load() > 0 && time.Now().Before(end) {
			time.Sleep(time.Millisecond) // the kernel releases what was closed a little later, and not at all after an unmount
		}
		err := server.Unmount()
		for ; err != nil && time.Now().Before(end); err = server.Unmount() {
			time.Sleep(10 * time.Millisecond) // calls that hung are coming to their ends
		}
		if err != nil {
			t.Errorf("something is open in it still: %v, %v", err, unix.Unmount(at, unix.MNT_DETACH))
			return
		}
		server.Wait()
	})
	if err := server.WaitMount(); err != nil {
		t.Fatal(err)
	}
	return d
}

// Fail has those calls fail with the error that fn returns for them, 0: they do not. It replaces what was there.
func (d *Dir) Fail(fn func(Call) syscall.Errno) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fault = fn
}

// Hang has those calls wait for Heal for which fn is true, and then go on. It returns a channel that gets a call
// that hangs. Where the test ends before Heal, it heals before what was begun until now is stopped, such as a daemon.
func (d *Dir) Hang(fn func(Call) bool) <-chan Call {
	d.t.Cleanup(d.Heal)
	d.mu.Lock()
	defer d.mu.Unlock()
	hung := make(chan struct{})
	d.hung = hung
	d.fault = func(c Call) syscall.Errno {
		if fn(c) {
			select {
			case d.hangs <- c:
			default:
			}
			<-hung
		}
		return 0
	}
	return d.hangs
}

// Break has reads, writes, syncs and closes of the files that are open now fail with an error for as long as they are open. Heal does
// not end that.
func (d *Dir) Break(errno syscall.Errno) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for fh := range d.open {
		d.open[fh] = errno
	}
}

// onFile is call for one with a file handle.
func (d *Dir) onFile(fh uint64, c Call) fuse.Status {
	d.mu.Lock()
	broken := d.open[fh]
	d.mu.Unlock()
	if broken != 0 {
		return fuse.Status(broken)
	}
	return d.call(c)
}

func (d *Dir) isOpen(st fuse.Status, fh uint64) {
	if st.Ok() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.open[fh] = 0
	}
}

// Cache has the kernel keep what it reads and writes of files that are opened from now on, so that no call is seen for that.
func (d *Dir) Cache() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cached = true
}

// Heal ends all faults.
func (d *Dir) Heal() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fault = nil
	if d.hung != nil {
		close(d.hung)
		d.hung = nil
	}
}

// EIO returns a fault: EIO for calls of these sorts.
func EIO(ops ...string) func(Call) syscall.Errno {
	return func(c Call) syscall.Errno {
		for _, op := range ops {
			if c.Op == op {
				return syscall.EIO
			}
		}
		return 0
	}
}

func (d *Dir) on(op, name string) fuse.Status { return d.call(Call{Op: op, Name: name}) }

func (d *Dir) call(c Call) fuse.Status {
	d.mu.Lock()
	fault := d.fault
	d.mu.Unlock()
	if fault == nil {
		return fuse.OK
	}
	return fuse.Status(fault(c))
}

// faulty asks for a fault before each call that a keeper makes.
type faulty struct {
	fuse.RawFileSystem
	dir *Dir
}

func (f *faulty) Lookup(cancel <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	if st := f.dir.on("lookup", name); !st.Ok() {
		return st
	}
	return f.RawFileSystem.Lookup(cancel, h, name, out)
}

func (f *faulty) GetAttr(cancel <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	if st := f.dir.on("getattr", ""); !st.Ok() {
		return st
	}
	return f.RawFileSystem.GetAttr(cancel, in, out)
}

// Statx is what the kernel asks for if somebody wants to know the time of birth.
func (f *faulty) Statx(cancel <-chan struct{}, in *fuse.StatxIn, out *fuse.StatxOut) fuse.Status {
	if f.dir.unborn {
		return fuse.ENOSYS
	}
	if st := f.dir.on("getattr", ""); !st.Ok() {
		return st
	}
	return f.RawFileSystem.Statx(cancel, in, out)
}

func (f *faulty) SetAttr(cancel <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	if st := f.dir.on("setattr", ""); !st.Ok() {
		return st
	}
	return f.RawFileSystem.SetAttr(cancel, in, out)
}

func (f *faulty) StatFs(cancel <-chan struct{}, h *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	if st := f.dir.on("statfs", ""); !st.Ok() {
		return st
	}
	return f.RawFileSystem.StatFs(cancel, h, out)
}

func (f *faulty) Mkdir(cancel <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	if st := f.dir.on("mkdir", name); !st.Ok() {
		return st
	}
	return f.RawFileSystem.Mkdir(cancel, in, name, out)
}

func (f *faulty) Create(cancel <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	if st := f.dir.on("create", name); !st.Ok() {
		return st
	}
	st := f.RawFileSystem.Create(cancel, in, name, out)
	f.dir.caching(&out.OpenOut)
	f.dir.isOpen(st, out.Fh)
	return f.dir.count(st)
}

// caching has the kernel ask for each read and write, unless it is to keep what it has read.
func (d *Dir) caching(out *fuse.OpenOut) {
	d.mu.Lock()
	defer d.mu.Unlock()
	out.OpenFlags &^= fuse.FOPEN_PASSTHROUGH
	out.BackingID = 0
	if d.cached {
		out.OpenFlags |= fuse.FOPEN_KEEP_CACHE
	} else {
		out.OpenFlags |= fuse.FOPEN_DIRECT_IO
	}
}

func (f *faulty) Unlink(cancel <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	if st := f.dir.on("unlink", name); !st.Ok() {
		return st
	}
	return f.RawFileSystem.Unlink(cancel, h, name)
}

func (f *faulty) Rename(cancel <-chan struct{}, in *fuse.RenameIn, from, to string) fuse.Status {
	if st := f.dir.on("rename", to); !st.Ok() {
		return st
	}
	return f.RawFileSystem.Rename(cancel, in, from, to)
}

func (f *faulty) Open(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	if st := f.dir.on("open", ""); !st.Ok() {
		return st
	}
	st := f.RawFileSystem.Open(cancel, in, out)
	f.dir.caching(out)
	f.dir.isOpen(st, out.Fh)
	return f.dir.count(st)
}

func (f *faulty) Read(cancel <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	if st := f.dir.onFile(in.Fh, Call{Op: "read", Offset: int64(in.Offset)}); !st.Ok() {
		return nil, st
	}
	return f.RawFileSystem.Read(cancel, in, buf)
}

func (f *faulty) Write(cancel <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	if st := f.dir.onFile(in.Fh, Call{Op: "write", Offset: int64(in.Offset)}); !st.Ok() {
		return 0, st
	}
	return f.RawFileSystem.Write(cancel, in, data)
}

func (f *faulty) Writev(cancel <-chan struct{}, in *fuse.WriteIn, data [][]byte) (uint32, fuse.Status) {
	if st := f.dir.onFile(in.Fh, Call{Op: "write", Offset: int64(in.Offset)}); !st.Ok() {
		return 0, st
	}
	return f.RawFileSystem.Writev(cancel, in, data)
}

func (f *faulty) Fsync(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	if st := f.dir.onFile(in.Fh, Call{Op: "fsync"}); !st.Ok() {
		return st
	}
	return f.RawFileSystem.Fsync(cancel, in)
}

func (f *faulty) Flush(cancel <-chan struct{}, in *fuse.FlushIn) fuse.Status {
	if st := f.dir.onFile(in.Fh, Call{Op: "flush"}); !st.Ok() {
		return st
	}
	return f.RawFileSystem.Flush(cancel, in)
}

func (f *faulty) OpenDir(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	if st := f.dir.on("opendir", ""); !st.Ok() {
		return st
	}
	return f.dir.count(f.RawFileSystem.OpenDir(cancel, in, out))
}

func (f *faulty) ReadDir(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	if st := f.dir.on("readdir", ""); !st.Ok() {
		return st
	}
	return f.RawFileSystem.ReadDir(cancel, in, out)
}

// count counts what has been opened with this result.
func (d *Dir) count(st fuse.Status) fuse.Status {
	if st.Ok() {
		d.opened.Add(1)
	}
	return st
}

func (f *faulty) Release(cancel <-chan struct{}, in *fuse.ReleaseIn) {
	f.dir.mu.Lock()
	delete(f.dir.open, in.Fh) // before its number is used again
	f.dir.mu.Unlock()
	f.RawFileSystem.Release(cancel, in)
	f.dir.opened.Add(-1)
}

func (f *faulty) ReleaseDir(in *fuse.ReleaseIn) {
	f.RawFileSystem.ReleaseDir(in)
	f.dir.opened.Add(-1)
}
