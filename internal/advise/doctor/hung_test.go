package doctor

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/kv3fs/kv3fs/internal/advise/engineconfig"
)

// stuckRoot is a file system that accepts requests and does not answer them. The
// kernel cannot even kill the process that waits for an answer.
type stuckRoot struct {
	fs.Inode
	end chan struct{}
}

func (r *stuckRoot) Statfs(context.Context, *fuse.StatfsOut) syscall.Errno {
	<-r.end
	return syscall.EIO
}

// Access lets callers enter the file system; nothing in it answers.
func (r *stuckRoot) Access(context.Context, uint32) syscall.Errno { return fs.OK }

func (r *stuckRoot) Getattr(context.Context, fs.FileHandle, *fuse.AttrOut) syscall.Errno {
	<-r.end
	return syscall.EIO
}

func (r *stuckRoot) Lookup(context.Context, string, *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	<-r.end
	return nil, syscall.EIO
}

// mountStuck mounts a stuckRoot until the test ends.
func mountStuck(t *testing.T, options fuse.MountOptions) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	root := &stuckRoot{end: make(chan struct{})}
	options.DirectMount, options.DisableSplice = os.Geteuid() == 0, true
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

// The doctor returns in bounded time from a mount or disk that hangs, although its
// probes cannot be killed.
func TestHung(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: waits for timeouts")
	}
	disk := mountStuck(t, fuse.MountOptions{})
	began := time.Now()
	want(t, "a disk that hangs", checkData(t.Context(), local(), &engine{}, disk)[0], "data", Failure)
	if took := time.Since(began); took < dataTimeout || took > time.Minute {
		t.Errorf("a disk that hangs took %v", took)
	}

	point := mountStuck(t, fuse.MountOptions{Name: "hf3fs", FsName: "hf3fs.stuck"})
	began = time.Now()
	_, _, all := checkMounts(t.Context(), local(), point, nil, false)
	f := byID(t, all, "mount")
	want(t, "a mount that hangs", f, "mount", Failure)
	if !strings.Contains(f.Found, "does not answer") || !strings.Contains(f.Fix, "umount -f "+point+" || ") {
		t.Errorf("%+v", f)
	}
	if took := time.Since(began); took > time.Minute {
		t.Errorf("a mount that hangs took %v", took)
	}
}

// The same holds for other ways to a mount that hangs: PATH, a file that the
// environment names, and the working directory.
func TestHungSurroundings(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: waits for timeouts")
	}
	dir := mountStuck(t, fuse.MountOptions{})
	within := func(what string, limit time.Duration, check func()) {
		t.Helper()
		ended := make(chan struct{})
		go func() { defer close(ended); check() }()
		select {
		case <-ended:
		case <-time.After(limit + 3*time.Second):
			t.Fatalf("%s: no answer", what)
		}
	}

	o := local()
	o.Host.LookupEnv = environment(map[string]string{"CUFILE_ENV_PATH_JSON": dir + "/cufile.json"})
	within("CUFILE_ENV_PATH_JSON", mountTimeout, func() {
		want(t, "CUFILE_ENV_PATH_JSON", byID(t, checkGDS(t.Context(), o, &engine{}), "gds.config"), "gds.config", Note)
	})

	// Only the probes change their working directory: this process has to end.
	here := local()
	here.Probe = append([]string{"sh", "-c", `cd "$1" && shift && exec "$@"`, "sh", dir}, here.Probe...)
	within("the working directory", mountTimeout, func() {
		_, f := chooseMount(t.Context(), here, ".", nil, nil, nil)
		want(t, "the working directory", f, "mount.path", Failure)
	})

	t.Setenv("PATH", dir)
	within("PATH", commandTimeout, func() {
		for _, f := range checkPackages(t.Context(), local(), []engineconfig.Package{{Kind: engineconfig.PythonModule, Name: "json"}, {Kind: engineconfig.Command, Name: "c++"}}) {
			want(t, "PATH", f, f.ID, Note)
		}
	})
	o.Host.EUID = 1000
	within("PATH", mountTimeout, func() {
		all := checkFuse(o.Host, func(name string) (string, error) {
			return find(t.Context(), o, mountTimeout, "command", name)
		}, false)
		want(t, "PATH", byID(t, all, "fuse.helper"), "fuse.helper", Note)
	})
	if _, err := find(t.Context(), o, mountTimeout, "command", "c++"); !errors.Is(err, errNoAnswer) {
		t.Errorf("PATH: %v", err)
	}
}
