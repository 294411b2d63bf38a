package doctor

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// stuckRoot is a file system that takes questions and does not answer them: the
// kernel cannot even kill who has asked.
type stuckRoot struct {
	fs.Inode
	end chan struct{}
}

func (r *stuckRoot) Statfs(context.Context, *fuse.StatfsOut) syscall.Errno {
	<-r.end
	return syscall.EIO
}

// mountStuck mounts a stuckRoot until the test ends.
func mountStuck(t *testing.T, options fuse.MountOptions) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	root := &stuckRoot{end: make(chan struct{})}
	options.DirectMount = os.Geteuid() == 0
	server, err := fs.Mount(dir, root, &fs.Options{MountOptions: options})
	if err != nil {
		if os.Getenv("KV3FS_REQUIRE_MOUNTS") != "" {
			t.Fatal(err)
		}
		t.Skipf("no FUSE here: %v", err)
	}
	t.Cleanup(func() {
		close(root.end)
		if err := server.Unmount(); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return dir
}

// Neither a mount nor a disk that hangs holds up the doctor, though what has
// asked it cannot be killed.
func TestHung(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: waits for what does not come")
	}
	disk := mountStuck(t, fuse.MountOptions{})
	began := time.Now()
	want(t, "a disk that hangs", checkData(t.Context(), local(), disk)[0], "data", Failure)
	if took := time.Since(began); took < dataPatience || took > dataPatience+3*time.Second {
		t.Errorf("a disk that hangs took %v", took)
	}

	point := mountStuck(t, fuse.MountOptions{Name: "hf3fs", FsName: "hf3fs.stuck"})
	began = time.Now()
	_, _, all := checkMounts(t.Context(), local(), point, false)
	f := byID(t, all, "mount")
	want(t, "a mount that hangs", f, "mount", Failure)
	if !strings.Contains(f.Found, "does not answer") || !strings.Contains(f.Fix, "/abort") {
		t.Errorf("%+v", f)
	}
	if took := time.Since(began); took > 4*mountPatience {
		t.Errorf("a mount that hangs took %v", took)
	}
}
