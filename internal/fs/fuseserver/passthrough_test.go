package fuseserver

import (
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/cred"
	"github.com/kv3fs/kv3fs/internal/fs/tree"
	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// routeOf returns how the bytes of an open file travel.
func (w *world) routeOf(f *os.File) (kernel bool) {
	w.t.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		w.t.Fatal(err)
	}
	p := w.m.fs.passthrough
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, r := range p.nodes {
		if ino, err := w.tree.Ino(id); err == nil && ino == st.Ino {
			r.chosen.Do(func() {}) // has been done: what it has set is seen from here on
			return r.kernel
		}
	}
	w.t.Fatalf("%s is not open", f.Name())
	return false
}

func needPassthrough(t *testing.T, w *world) {
	t.Helper()
	if why := w.m.WhyNoPassthrough(); why != "" {
		t.Skip("no passthrough here: " + why)
	}
}

// A registration that fails for a moment is tried again: the file gets the same route as
// all others.
func TestPassthroughIsTriedAgain(t *testing.T) {
	var tries atomic.Int64
	w := newWorldWith(t, Options{}, func(m *Mount) {
		register := m.fs.passthrough.register
		m.fs.passthrough.register = func(fd int) (int32, error) {
			if tries.Add(1) < 3 {
				return 0, unix.ENOMEM
			}
			return register(fd)
		}
	})
	needPassthrough(t, w)
	f, err := os.Create(w.path("f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if !w.routeOf(f) || tries.Load() != 3 {
		t.Errorf("kernel's route: %v, after %d tries", w.routeOf(f), tries.Load())
	}
}

// A close of a file waits for the daemon only where it may have a write error to report: where
// the file was open for writing, and its file system writes when files are closed.
func TestCloseAsksWhereItMust(t *testing.T) {
	w := newWorld(t, Options{})
	f, err := os.Create(w.path("f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fs := w.m.fs
	var id uint64
	fs.passthrough.mu.Lock()
	for id = range fs.passthrough.nodes {
	}
	fs.passthrough.mu.Unlock()
	for _, flags := range []uint32{unix.O_RDONLY, unix.O_WRONLY, unix.O_RDWR} {
		in := fuse.OpenIn{InHeader: fuse.InHeader{NodeId: id}, Flags: flags}
		var out fuse.OpenOut
		if st := fs.openFile(func(...uint64) error { return nil }, &in, &out); !st.Ok() {
			t.Fatal(st)
		}
		if h := fs.handles.get(out.Fh).file; (out.OpenFlags&fuse.FOPEN_NOFLUSH == 0) != h.CloseMayFail() {
			t.Errorf("flags %o: open flags %x; may the close fail: %v", flags, out.OpenFlags, h.CloseMayFail())
		}
		fs.Release(nil, &fuse.ReleaseIn{InHeader: in.InHeader, Fh: out.Fh})
	}
}

// A file that cannot get the kernel's route works, except that it cannot be mapped with
// MAP_SHARED, and the log says so, once for many.
func TestPassthroughFailures(t *testing.T) {
	for name, failure := range map[string]struct {
		errno unix.Errno
		tries int64 // for each file
	}{"for a while": {unix.ENOMEM, 5}, "for good": {unix.ELOOP, 1}} {
		t.Run(name, func(t *testing.T) {
			var tries atomic.Int64
			var works atomic.Bool
			w := newWorldWith(t, Options{}, func(m *Mount) {
				register := m.fs.passthrough.register
				m.fs.passthrough.register = func(fd int) (int32, error) {
					if works.Load() {
						return register(fd)
					}
					tries.Add(1)
					return 0, failure.errno
				}
			})
			needPassthrough(t, w)
			var files []*os.File
			for _, name := range []string{"f", "g"} {
				w.write(name, "")
				f, err := os.OpenFile(w.path(name), os.O_RDWR, 0)
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				files = append(files, f)
			}
			if got := tries.Load(); got < 2*failure.tries {
				t.Errorf("%d tries, want at least %d", got, 2*failure.tries)
			}
			works.Store(true) // not for those that are open
			for _, f := range files {
				if w.routeOf(f) {
					t.Errorf("%s has the kernel's route", f.Name())
				}
				if err := f.Truncate(8192); err != nil {
					t.Error(err)
				}
				child := exec.Command("/proc/self/exe", f.Name())
				child.Env = append(os.Environ(), "KV3FS_TEST_CHILD=mmap")
				if out, err := child.CombinedOutput(); err == nil || !strings.Contains(string(out), unix.ENODEV.Error()) {
					t.Errorf("mmap: %s, want ENODEV", out)
				}
				if _, err := f.WriteAt([]byte("x"), 0); err != nil {
					t.Error(err)
				}
			}
			said := w.log.String()
			if lines := strings.Count(said, "\n"); lines < 1 || lines > 2 || !strings.Contains(said, "MAP_SHARED") || !strings.Contains(said, failure.errno.Error()) {
				t.Errorf("logged %q, want a line about MAP_SHARED and %v", said, failure.errno)
			}
			w.log.forget()
		})
	}
}

// A data directory in which no file can be made now, on a full disk for example, says
// nothing against passthrough: each file tries it.
func TestPassthroughOnAFullDisk(t *testing.T) {
	daemontest.NeedRoot(t)
	data := t.TempDir()
	s, err := tree.Open(data, tree.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := os.RemoveAll(filepath.Join(data, tree.StateName)); err != nil {
		t.Fatal(err)
	}
	p := newPassthrough(slog.New(slog.DiscardHandler))
	if why := p.whyNot(s, Options{Passthrough: PassthroughAuto}, true); why != "" {
		t.Errorf("passthrough is off: %s", why)
	}
}

// A program can be run from the mount, and a private mapping shows what a ring writes, in
// every mode.
func TestPrivateMappings(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		program, err := os.ReadFile("/proc/self/exe")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(w.path("program"), program, 0o755); err != nil {
			t.Fatal(err)
		}
		w.write("f", "text")
		// The shell starts it, not this process: while this one starts a program, the runtime
		// can stop none of its threads, and the mount that is served here may wait for just that.
		child := exec.Command("sh", "-c", `exec "$0" "$1"`, w.path("program"), w.path("f"))
		child.Env = append(os.Environ(), "KV3FS_TEST_CHILD=read")
		if out, err := child.CombinedOutput(); err != nil {
			t.Errorf("a program on the mount: %v\n%s", err, out)
		}

		child = exec.Command("/proc/self/exe", w.path("f"))
		child.Env = append(os.Environ(), "KV3FS_TEST_CHILD=look")
		say, err := child.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		see, err := child.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		defer child.Wait()
		defer say.Close()
		look := func(want string) {
			t.Helper()
			if _, err := say.Write([]byte{'?'}); err != nil {
				t.Fatal(err)
			}
			seen := make([]byte, 4)
			if _, err := see.Read(seen); err != nil || string(seen) != want {
				t.Errorf("the mapping shows %q, %v; want %q", seen, err, want)
			}
		}
		look("text")
		var st unix.Stat_t
		if err := unix.Stat(w.path("f"), &st); err != nil {
			t.Fatal(err)
		}
		r, err := w.tree.Acquire(st.Ino, cred.Caller{}, true)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Release()
		for _, text := range []string{"ring", "RING"} {
			if _, err := unix.Pwrite(r.FD(), []byte(text), 0); err != nil {
				t.Fatal(err)
			}
			r.Written()
			look(text)
		}
		if err := os.WriteFile(w.path("f"), []byte("file"), 0o644); err != nil {
			t.Fatal(err)
		}
		look("file")
	})
}
