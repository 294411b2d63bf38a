package hostile

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// Disk is a file system in a daemon's data directory that a test can make hang. It has files
// f0, f1, ... of DiskFileBytes each, full of 'd', which everybody may open, read, write and
// remove. Removing succeeds and removes nothing.
//
// While it hangs, opening and stat work, and these calls do not return: reads, writes and
// fsync of the files, removals, and looking up a name that begins with "lost". Not even
// SIGKILL ends a process that waits in one, so a test calls Release before it stops its
// processes and the daemon: t.Cleanup(disk.Release) after the last Start.
type Disk struct {
	Path string // of its root

	calls chan struct{} // has an element if a call hangs or has hung
	mu    sync.Mutex
	hung  chan struct{} // closed by Release; nil: it answers at once
}

// DiskFileBytes is the size of a file on a Disk.
const DiskFileBytes = 1 << 20

// NewDisk mounts a disk with that many files at data/disk, where data is the data directory
// of a daemon that has not been started yet; see daemontest.Options.
func NewDisk(t testing.TB, data string, files int) *Disk {
	t.Helper()
	daemontest.NeedRoot(t)
	d := &Disk{Path: filepath.Join(data, "disk"), calls: make(chan struct{}, 1)}
	if err := os.Mkdir(d.Path, 0o777); err != nil {
		t.Fatal(err)
	}
	root := &diskDir{disk: d}
	server, err := fs.Mount(d.Path, root, &fs.Options{
		// go-fuse keeps the pipes that it splices through until the process ends.
		MountOptions:   fuse.MountOptions{DirectMount: true, AllowOther: true, MaxBackground: 4096, DisableSplice: true},
		RootStableAttr: &fs.StableAttr{Ino: 1},
		OnAdd: func(ctx context.Context) {
			for i := range files {
				file := root.NewPersistentInode(ctx, &diskFile{disk: d}, fs.StableAttr{Ino: uint64(1<<20 + i)})
				root.AddChild(fmt.Sprintf("f%d", i), file, false)
			}
		},
	})
	if err != nil {
		daemontest.NotTested(t, "a disk that hangs needs a FUSE mount: "+err.Error())
	}
	t.Cleanup(func() {
		d.Release()
		if err := unix.Unmount(d.Path, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
		server.Wait()
	})
	return d
}

// NewData returns an empty data directory that every user can write, for NewDisk and
// daemontest.Options.
func NewData(t testing.TB) string {
	t.Helper()
	data := filepath.Join(daemontest.NewDir(t), "data")
	if err := os.Mkdir(data, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(data, 0o777); err != nil { // whatever the umask
		t.Fatal(err)
	}
	return data
}

// Hang makes calls wait until Release.
func (d *Disk) Hang() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.hung == nil {
		d.hung = make(chan struct{})
	}
}

// Release lets all calls return, those that wait and later ones.
func (d *Disk) Release() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.hung != nil {
		close(d.hung)
		d.hung = nil
	}
}

// Hanging returns a channel with an element if a call has begun to wait since it was last
// received from.
func (d *Disk) Hanging() <-chan struct{} { return d.calls }

func (d *Disk) wait() {
	d.mu.Lock()
	hung := d.hung
	d.mu.Unlock()
	if hung == nil {
		return
	}
	select {
	case d.calls <- struct{}{}:
	default:
	}
	<-hung
}

type diskDir struct {
	fs.Inode
	disk *Disk
}

func (r *diskDir) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Mode = 0o777
	return 0
}

func (r *diskDir) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	if strings.HasPrefix(name, "lost") {
		r.disk.wait()
	}
	file := r.GetChild(name)
	if file == nil {
		return nil, syscall.ENOENT
	}
	out.Attr.Size, out.Attr.Mode = DiskFileBytes, 0o666
	return file, 0
}

func (r *diskDir) Unlink(context.Context, string) syscall.Errno {
	r.disk.wait()
	return 0
}

type diskFile struct {
	fs.Inode
	disk *Disk
}

func (f *diskFile) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Size, out.Mode = DiskFileBytes, 0o666
	return 0
}

func (f *diskFile) Setattr(context.Context, fs.FileHandle, *fuse.SetAttrIn, *fuse.AttrOut) syscall.Errno {
	return 0
}

func (f *diskFile) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	return nil, fuse.FOPEN_DIRECT_IO, 0
}

func (f *diskFile) Read(_ context.Context, _ fs.FileHandle, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	f.disk.wait()
	n := min(int64(len(dest)), max(0, DiskFileBytes-off))
	return fuse.ReadResultData(bytes.Repeat([]byte{'d'}, int(n))), 0
}

func (f *diskFile) Write(_ context.Context, _ fs.FileHandle, data []byte, _ int64) (uint32, syscall.Errno) {
	f.disk.wait()
	return uint32(len(data)), 0
}

func (f *diskFile) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno {
	f.disk.wait()
	return 0
}
