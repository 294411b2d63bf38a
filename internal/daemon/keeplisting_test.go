package daemon

import (
	"context"
	"log/slog"
	"os"
	"syscall"
	"testing"
	"time"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/kv3fs/kv3fs/internal/keeper"
	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// numberless is a file system whose listings have no inode numbers, as those of many FUSE ones.
type numberless struct{ *fusefs.LoopbackNode }

// WrapChild has all nodes be such.
func (n *numberless) WrapChild(_ context.Context, ops fusefs.InodeEmbedder) fusefs.InodeEmbedder {
	return &numberless{ops.(*fusefs.LoopbackNode)}
}

// OpendirHandle opens a directory.
func (n *numberless) OpendirHandle(ctx context.Context, flags uint32) (fusefs.FileHandle, uint32, syscall.Errno) {
	h, flags, errno := n.LoopbackNode.OpendirHandle(ctx, flags)
	if errno != 0 {
		return nil, 0, errno
	}
	return &listing{h}, flags, 0
}

// listing is an open directory.
type listing struct{ fusefs.FileHandle }

// Readdirent returns the next entry.
func (l *listing) Readdirent(ctx context.Context) (*fuse.DirEntry, syscall.Errno) {
	e, errno := l.FileHandle.(fusefs.FileReaddirenter).Readdirent(ctx)
	if e != nil {
		e.Ino = 1<<32 - 1
	}
	return e, errno
}

// Releasedir closes it.
func (l *listing) Releasedir(ctx context.Context, flags uint32) {
	l.FileHandle.(fusefs.FileReleasedirer).Releasedir(ctx, flags)
}

// On a file system whose listings show other numbers than the files have, and that does not answer for a file without
// a name, what has to go goes, and no more.
func TestKeepListingWithoutNumbers(t *testing.T) {
	beneath, dir := t.TempDir(), t.TempDir()
	root := &fusefs.LoopbackRoot{Path: beneath}
	top := &numberless{&fusefs.LoopbackNode{RootData: root}}
	root.RootNode = top
	server, err := fusefs.Mount(dir, top, &fusefs.Options{MountOptions: fuse.MountOptions{FsName: "numberless", DirectMount: os.Geteuid() == 0, DisableReadDirPlus: true}})
	if err != nil {
		daemontest.NotTested(t, "no FUSE here: "+err.Error())
	}
	defer func() {
		if err := server.Unmount(); err != nil {
			t.Error(err)
		}
	}()
	oldBlocks(t, beneath, 0, 40)
	c := KeepConfig{
		Dir: dir, Keeping: Keeping{Capacity: keeper.Limit{Bytes: 2 << 20}}, Lease: 3 * time.Second, Log: slog.New(slog.DiscardHandler),
	}
	went := 0
	p, err := KeepOnce(t.Context(), c, func(keeper.Entry) { went++ })
	if err != nil {
		t.Fatal(err)
	}
	const most, fewest = 2 << 20 / (64 << 10), 20
	if left := blocksIn(t, beneath); left > most || left < fewest || left+went != 40 || p.Files != int64(left) {
		t.Errorf("%d files are left and %d are known, %d went", left, p.Files, went)
	}
}
