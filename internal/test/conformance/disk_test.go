package conformance

import (
	"bytes"
	"context"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// disk is a file system below a daemon's data directory that the test can make
// hang. It has the files slow and eio, each diskBytes long, full of 'd'; eio fails.
type disk struct {
	hanging chan struct{} // gets a value for each call that hangs

	mu      sync.Mutex
	release chan struct{} // nil: answer at once
}

const diskBytes = 1 << 20

// hang makes calls on slow wait until the returned function is called.
func (d *disk) hang() (release func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	ch := make(chan struct{})
	d.release = ch
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.release == ch {
			d.release = nil
			close(ch)
		}
	}
}

// releaseAll ends every wait that hang began.
func (d *disk) releaseAll() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.release != nil {
		close(d.release)
		d.release = nil
	}
}

func (d *disk) wait() {
	d.mu.Lock()
	ch := d.release
	d.mu.Unlock()
	if ch != nil {
		select {
		case d.hanging <- struct{}{}:
		default:
		}
		select {
		case <-ch:
		// A child of this process that is being forked may close a file here, and wait for an answer;
		// whoever would release it waits for the child.
		case <-time.After(time.Minute):
		}
	}
}

type diskFile struct {
	fs.Inode
	disk *disk
	err  syscall.Errno
}

func (f *diskFile) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Size, out.Mode = diskBytes, 0o666
	return 0
}
func (f *diskFile) Setattr(context.Context, fs.FileHandle, *fuse.SetAttrIn, *fuse.AttrOut) syscall.Errno {
	return 0
}
func (f *diskFile) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	return nil, fuse.FOPEN_DIRECT_IO, 0
}
func (f *diskFile) Read(_ context.Context, _ fs.FileHandle, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	if f.err != 0 {
		return nil, f.err
	}
	f.disk.wait()
	n := min(int64(len(dest)), max(0, diskBytes-off))
	return fuse.ReadResultData(bytes.Repeat([]byte{'d'}, int(n))), 0
}
func (f *diskFile) Write(_ context.Context, _ fs.FileHandle, data []byte, _ int64) (uint32, syscall.Errno) {
	if f.err != 0 {
		return 0, f.err
	}
	f.disk.wait()
	return uint32(len(data)), 0
}
func (f *diskFile) Fsync(context.Context, fs.FileHandle, uint32) syscall.Errno { return f.err }

// newDisk mounts a disk at data/disk.
func newDisk(t *testing.T, data string) *disk {
	t.Helper()
	daemontest.NeedRoot(t)
	d := &disk{hanging: make(chan struct{}, 1)}
	at := data + "/disk"
	must(t, os.Mkdir(at, 0o777))
	root := &fs.Inode{}
	server, err := fs.Mount(at, root, &fs.Options{
		// go-fuse keeps the pipes that it splices through until the process ends.
		MountOptions:   fuse.MountOptions{DirectMount: true, AllowOther: true, MaxBackground: 64, DisableSplice: true},
		RootStableAttr: &fs.StableAttr{Ino: 1},
		OnAdd: func(ctx context.Context) {
			root.AddChild("slow", root.NewPersistentInode(ctx, &diskFile{disk: d}, fs.StableAttr{Ino: 1 << 20}), false)
			root.AddChild("eio", root.NewPersistentInode(ctx, &diskFile{disk: d, err: syscall.EIO}, fs.StableAttr{Ino: 1<<20 + 1}), false)
		},
	})
	if err != nil {
		daemontest.NotTested(t, "the failing disk needs a FUSE mount: "+err.Error())
	}
	t.Cleanup(func() {
		d.releaseAll()
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
		server.Wait()
	})
	return d
}

// slowDisk starts a daemon with such a disk at disk/.
func slowDisk(t *testing.T, args ...string) (*world, *disk) {
	t.Helper()
	data := daemontest.NewDir(t) + "/data"
	must(t, os.Mkdir(data, 0o777))
	must(t, os.Chmod(data, 0o777))
	d := newDisk(t, data)
	w := start(t, daemontest.Options{Data: data, Flags: args})
	t.Cleanup(d.releaseAll) // before the daemon must end
	return w, d
}
