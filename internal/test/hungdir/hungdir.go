// Package hungdir mounts a file system that stops answering, as one does whose server has died.
package hungdir

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// root is the root of a file system that answers no lookup and no attribute until it is released.
type root struct {
	fs.Inode
	on, end chan struct{}
}

var (
	_ fs.NodeLookuper  = (*root)(nil)
	_ fs.NodeGetattrer = (*root)(nil)
	_ fs.NodeMkdirer   = (*root)(nil)
)

func (r *root) wait() {
	select {
	case <-r.on:
		<-r.end
	default:
	}
}

// Lookup finds nothing.
func (r *root) Lookup(context.Context, string, *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	r.wait()
	return nil, syscall.ENOENT
}

// Getattr says that the root is a directory.
func (r *root) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	r.wait()
	out.Mode = syscall.S_IFDIR | 0o755
	return 0
}

// Mkdir makes nothing.
func (r *root) Mkdir(context.Context, string, uint32, *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	r.wait()
	return nil, syscall.EIO
}

// Each runs a test with a path that hangs until the test ends: the directory itself, one below it,
// and a link that leads there.
func Each(t *testing.T, do func(t *testing.T, dir string)) {
	t.Helper()
	mount, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	r := &root{on: make(chan struct{}), end: make(chan struct{})}
	none := time.Duration(0)
	server, err := fs.Mount(mount, r, &fs.Options{
		MountOptions: fuse.MountOptions{DirectMount: os.Geteuid() == 0, DisableSplice: true},
		EntryTimeout: &none, AttrTimeout: &none, NegativeTimeout: &none,
	})
	if err != nil {
		daemontest.NotTested(t, "no FUSE here: "+err.Error())
	}
	release := sync.OnceFunc(func() { close(r.end) })
	t.Cleanup(func() {
		release()
		if err := server.Unmount(); err != nil {
			t.Error(err)
		}
	})
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(mount, link); err != nil {
		t.Fatal(err)
	}
	close(r.on)
	for name, dir := range map[string]string{"itself": mount, "below it": filepath.Join(mount, "kv"), "behind a link": link} {
		t.Run(name, func(t *testing.T) { do(t, dir) })
	}
}
