package gdsfiles

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// stuck is the root of a file system that answers no lookup and no attribute until it is released.
type stuck struct {
	fs.Inode
	on, end chan struct{}
}

var (
	_ fs.NodeLookuper  = (*stuck)(nil)
	_ fs.NodeGetattrer = (*stuck)(nil)
	_ fs.NodeMkdirer   = (*stuck)(nil)
)

func (s *stuck) wait() {
	select {
	case <-s.on:
		<-s.end
	default:
	}
}

func (s *stuck) Lookup(context.Context, string, *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	s.wait()
	return nil, syscall.ENOENT
}

func (s *stuck) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	s.wait()
	out.Mode = syscall.S_IFDIR | 0o755
	return 0
}

func (s *stuck) Mkdir(context.Context, string, uint32, *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	s.wait()
	return nil, syscall.EIO
}

// A gds_path that hangs makes an Open fail in its time, whether it is the path itself, one below it,
// or where a link leads.
func TestOpenOfADirectoryThatHangs(t *testing.T) {
	mount, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	root := &stuck{on: make(chan struct{}), end: make(chan struct{})}
	none := time.Duration(0)
	server, err := fs.Mount(mount, root, &fs.Options{
		MountOptions: fuse.MountOptions{DirectMount: os.Geteuid() == 0, DisableSplice: true},
		EntryTimeout: &none, AttrTimeout: &none, NegativeTimeout: &none,
	})
	if err != nil {
		if os.Getenv("KV3FS_REQUIRE_MOUNTS") != "" {
			t.Fatal(err)
		}
		t.Skipf("no FUSE here: %v", err)
	}
	release := sync.OnceFunc(func() { close(root.end) })
	t.Cleanup(func() {
		release()
		must(t, server.Unmount())
	})
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(mount, link))
	close(root.on)
	for name, dir := range map[string]string{"itself": mount, "below it": filepath.Join(mount, "kv"), "behind a link": link} {
		t.Run(name, func(t *testing.T) {
			o := options(dir)
			o.Timeout = 100 * time.Millisecond
			s, err := Open(o)
			if s != nil {
				s.Close()
			}
			if !errors.Is(err, kv.ErrTimeout) || !strings.Contains(err.Error(), dir) {
				t.Errorf("%v", err)
			}
		})
	}
}
