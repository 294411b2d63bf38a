package posix

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// hanging is a file that can be opened, but reads and writes of it hang until release.
type hanging struct {
	fs.Inode
	asked   chan struct{} // gets a value for each call that hangs
	end     chan struct{}
	release func()
	closed  chan struct{} // closed when the kernel has released the file
	once    sync.Once
}

var (
	_ fs.NodeOpener   = (*hanging)(nil)
	_ fs.NodeReader   = (*hanging)(nil)
	_ fs.NodeWriter   = (*hanging)(nil)
	_ fs.NodeReleaser = (*hanging)(nil)
)

func (h *hanging) Open(context.Context, uint32) (fs.FileHandle, uint32, syscall.Errno) {
	return struct{}{}, fuse.FOPEN_DIRECT_IO, fs.OK // without a handle Release is not called
}

func (h *hanging) Read(_ context.Context, _ fs.FileHandle, dest []byte, _ int64) (fuse.ReadResult, syscall.Errno) {
	h.hang()
	return fuse.ReadResultData(dest), fs.OK
}

func (h *hanging) Write(_ context.Context, _ fs.FileHandle, data []byte, _ int64) (uint32, syscall.Errno) {
	h.hang()
	return uint32(len(data)), fs.OK
}

func (h *hanging) hang() {
	select {
	case h.asked <- struct{}{}:
	default:
	}
	<-h.end
}

func (h *hanging) Release(context.Context, fs.FileHandle) syscall.Errno {
	h.once.Do(func() { close(h.closed) })
	return fs.OK
}

// mountHanging mounts a file system whose file f hangs, until the test ends.
func mountHanging(t *testing.T) (dir string, h *hanging) {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	h = &hanging{asked: make(chan struct{}, 16), end: make(chan struct{}), closed: make(chan struct{})}
	h.release = sync.OnceFunc(func() { close(h.end) })
	root := &fs.Inode{}
	options := &fs.Options{
		// Without splicing, for which go-fuse keeps pipes for the life of the process.
		MountOptions: fuse.MountOptions{DirectMount: os.Geteuid() == 0, DisableSplice: true},
		OnAdd: func(ctx context.Context) {
			root.AddChild("f", root.NewPersistentInode(ctx, h, fs.StableAttr{Mode: fuse.S_IFREG}), true)
		},
	}
	server, err := fs.Mount(dir, root, options)
	if err != nil {
		if os.Getenv("KV3FS_REQUIRE_MOUNTS") != "" {
			t.Fatal(err)
		}
		t.Skipf("no FUSE here: %v", err)
	}
	t.Cleanup(func() {
		h.release()
		if err := server.Unmount(); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return dir, h
}
