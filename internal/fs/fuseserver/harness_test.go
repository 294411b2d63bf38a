package fuseserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/controldir"
	"github.com/kv3fs/kv3fs/internal/fs/cred"
	"github.com/kv3fs/kv3fs/internal/fs/tree"
	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/internal/test/leaktest"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// fakeControlDir is a control directory with its four directories and one set
// of links in iovs.
type fakeControlDir struct {
	mu    sync.Mutex
	links map[string]string
	point string
	opens atomic.Int64 // OpenDir minus ReleaseDir
	kept  string       // a directory of files that are called like the handles that are open; "": none
}

func dirAttr(ino uint64, mode uint32) controldir.Attr {
	return controldir.Attr{Ino: ino, Mode: syscall.S_IFDIR | mode}
}

var virtDirs = []controldir.Entry{
	{Name: "rm-rf", Attr: dirAttr(wire.InoRmRf, 0o777)}, {Name: "iovs", Attr: dirAttr(wire.InoIovs, 0o777)},
	{Name: "get-conf", Attr: dirAttr(wire.InoGetConf, 0o555)}, {Name: "set-conf", Attr: dirAttr(wire.InoSetConf, 0o777)},
}

func (t *fakeControlDir) RelPath(abs string) (string, syscall.Errno) {
	if rel, ok := strings.CutPrefix(filepath.Clean(abs), t.point+"/"); ok {
		return rel, 0
	}
	return "", syscall.EINVAL
}

func (t *fakeControlDir) link(name string) controldir.Attr {
	return controldir.Attr{Ino: wire.InoIovFirst, Mode: syscall.S_IFLNK | 0o400, Size: uint64(len(t.links[name]))}
}

func (t *fakeControlDir) Lookup(_ cred.Caller, dir uint64, name string) (controldir.Attr, syscall.Errno) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if dir == wire.InoVirt {
		for _, e := range virtDirs {
			if e.Name == name {
				return e.Attr, 0
			}
		}
	}
	if _, ok := t.links[name]; ok && dir == wire.InoIovs {
		return t.link(name), 0
	}
	return controldir.Attr{}, syscall.ENOENT
}

func (t *fakeControlDir) Getattr(_ cred.Caller, ino uint64) (controldir.Attr, syscall.Errno) {
	if ino == wire.InoVirt {
		return dirAttr(wire.InoVirt, 0o555), 0
	}
	for _, e := range virtDirs {
		if e.Attr.Ino == ino {
			return e.Attr, 0
		}
	}
	return controldir.Attr{}, syscall.ENOENT
}

func (t *fakeControlDir) Readlink(_ cred.Caller, ino uint64) (string, syscall.Errno) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, target := range t.links {
		return target, 0
	}
	return "", syscall.ENOENT
}

func (t *fakeControlDir) RemoveTarget(_ cred.Caller, target string) (string, syscall.Errno) {
	return t.RelPath(target)
}

func (t *fakeControlDir) Symlink(c cred.Caller, dir uint64, name, target string) (controldir.Attr, syscall.Errno) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if dir == wire.InoSetConf {
		return controldir.Attr{Ino: wire.InoSetConfFirst, Mode: syscall.S_IFLNK | 0o400}, 0
	}
	t.links[name] = target
	return t.link(name), 0
}

func (t *fakeControlDir) Unlink(_ cred.Caller, dir uint64, name string) syscall.Errno {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.links[name]; !ok {
		return syscall.ENOENT
	}
	delete(t.links, name)
	return 0
}

func (t *fakeControlDir) List(_ cred.Caller, dir uint64) ([]controldir.Entry, syscall.Errno) {
	if dir == wire.InoVirt {
		return virtDirs, 0
	}
	return nil, 0
}

func (t *fakeControlDir) OpenDir(cred.Caller, uint64) (uint64, syscall.Errno) {
	n := uint64(t.opens.Add(1))
	if t.kept != "" {
		n = uint64(time.Now().UnixNano())
		if err := os.WriteFile(filepath.Join(t.kept, fmt.Sprint(n)), nil, 0o600); err != nil {
			return 0, syscall.EIO
		}
	}
	return n, 0
}

func (t *fakeControlDir) ReleaseDir(_, handle uint64) {
	t.opens.Add(-1)
	if t.kept != "" {
		_ = os.Remove(filepath.Join(t.kept, fmt.Sprint(handle)))
	}
}

func (t *fakeControlDir) DirsStayOpen(handles []uint64) {
	all, _ := os.ReadDir(t.kept)
	for _, e := range all {
		if !slices.ContainsFunc(handles, func(h uint64) bool { return fmt.Sprint(h) == e.Name() }) {
			_ = os.Remove(filepath.Join(t.kept, e.Name()))
		}
	}
}

type fakeSettings struct{ readonly atomic.Bool }

func (s *fakeSettings) Readonly(uint32) bool                 { return s.readonly.Load() }
func (s *fakeSettings) AttrTimeout(uint32) time.Duration     { return 30 * time.Second }
func (s *fakeSettings) EntryTimeout(uint32) time.Duration    { return 30 * time.Second }
func (s *fakeSettings) NegativeTimeout(uint32) time.Duration { return 5 * time.Second }
func (s *fakeSettings) SymlinkTimeout(uint32) time.Duration  { return 5 * time.Second }

// logged collects the mount's log. A test fails if there is a line in it.
type logged struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logged) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Reset()
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// world is a mounted file system under test.
type world struct {
	t         testing.TB
	m         *Mount
	tree      *tree.Tree
	control   *fakeControlDir
	settings  *fakeSettings
	data, dir string // both show the same files
	log       *logged
	serveErr  chan error
	change    func(*Mount)
}

func openUp(t testing.TB, dir string) string {
	for p := dir; len(p) > len(os.TempDir()); p = filepath.Dir(p) {
		os.Chmod(p, 0o755)
	}
	return dir
}

func newWorld(t testing.TB, o Options) *world {
	t.Helper()
	return newWorldWith(t, o, func(*Mount) {})
}

// newWorldWith is newWorld with a mount that is changed before it serves.
func newWorldWith(t testing.TB, o Options, change func(*Mount)) *world {
	t.Helper()
	return newWorldOver(t, o, tree.Options{}, change)
}

// newWorldOver is newWorldWith over a tree with options.
func newWorldOver(t testing.TB, o Options, treeOptions tree.Options, change func(*Mount)) *world {
	t.Helper()
	data := openUp(t, t.TempDir()) + "/data"
	if err := os.Mkdir(data, 0o777); err != nil {
		t.Fatal(err)
	}
	os.Chmod(data, 0o777)
	return newWorldAt(t, data, o, treeOptions, change)
}

// newWorldAt is newWorldOver with a data directory.
func newWorldAt(t testing.TB, data string, o Options, treeOptions tree.Options, change func(*Mount)) *world {
	t.Helper()
	daemontest.NeedMounts(t)
	w := &world{t: t, data: data, dir: openUp(t, t.TempDir()) + "/mnt", control: &fakeControlDir{links: map[string]string{}},
		change: change, settings: &fakeSettings{}, log: &logged{}, serveErr: make(chan error, 1)}
	var err error
	if w.tree, err = tree.Open(w.data, treeOptions); err != nil {
		t.Fatal(err)
	}
	w.control.point = w.dir
	w.mount(o)
	t.Cleanup(func() {
		w.unmount()
		w.tree.Close()
		if text := w.log.String(); text != "" {
			t.Errorf("logged: %s", text)
		}
		if n := w.control.opens.Load(); n != 0 {
			t.Errorf("%d virtual directories were not released", n)
		}
	})
	return w
}

func (w *world) mount(o Options) {
	w.t.Helper()
	o.Cluster = "stage"
	o.Log = slog.New(slog.NewTextHandler(w.log, nil))
	var err error
	if w.m, err = New(w.tree, w.control, w.settings, w.dir, o); err != nil {
		w.t.Fatal(err)
	}
	m := w.m
	w.change(m)
	go func() { w.serveErr <- m.Serve() }()
	if err := m.AllowOwnUse(); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) unmount() {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := w.m.Unmount(ctx); err != nil {
		w.t.Errorf("unmount: %v", err)
	}
	if err := <-w.serveErr; err != nil {
		w.t.Errorf("serve: %v", err)
	}
}

func (w *world) path(name string) string { return filepath.Join(w.dir, name) }

func (w *world) write(name, text string) string {
	w.t.Helper()
	if err := os.WriteFile(w.path(name), []byte(text), 0o644); err != nil {
		w.t.Fatal(err)
	}
	return w.path(name)
}

func (w *world) want(name, text string) {
	w.t.Helper()
	if got, err := os.ReadFile(w.path(name)); err != nil || string(got) != text {
		w.t.Errorf("%s: %q, %v; want %q", name, got, err, text)
	}
}

func wantErrno(t testing.TB, what string, err error, want syscall.Errno) {
	t.Helper()
	if want == 0 && err == nil {
		return
	}
	var got syscall.Errno
	if e, ok := err.(syscall.Errno); ok {
		got = e
	} else if pe, ok := err.(*os.PathError); ok {
		got, _ = pe.Err.(syscall.Errno)
	} else if le, ok := err.(*os.LinkError); ok {
		got, _ = le.Err.(syscall.Errno)
	}
	if got != want {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

// both runs a test with passthrough and without.
func both(t *testing.T, test func(t *testing.T, w *world)) {
	for _, mode := range []struct {
		name string
		o    Options
	}{{"auto", Options{}}, {"off", Options{Passthrough: PassthroughOff}}} {
		t.Run("passthrough="+mode.name, func(t *testing.T) { test(t, newWorld(t, mode.o)) })
	}
}

// as runs one of the children below as uid 12345.
func (w *world) as(child string, args ...string) (string, error) {
	exe := filepath.Join(filepath.Dir(w.data), "test.exe")
	if _, err := os.Stat(exe); err != nil {
		self, err := os.ReadFile("/proc/self/exe")
		if err != nil {
			w.t.Fatal(err)
		}
		if err := os.WriteFile(exe, self, 0o755); err != nil {
			w.t.Fatal(err)
		}
	}
	cmd := exec.Command(exe, args...)
	cmd.Env = append(os.Environ(), "KV3FS_TEST_CHILD="+child)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 12345, Gid: 12345}}
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// children are the main functions of the test binary when it is started as a child.
var children = map[string]func(args []string) error{
	"write":  func(a []string) error { return os.WriteFile(a[0], []byte("child"), 0o640) },
	"read":   func(a []string) error { _, err := os.ReadFile(a[0]); return err },
	"mkdir":  func(a []string) error { return os.Mkdir(a[0], 0o750) },
	"remove": func(a []string) error { return os.Remove(a[0]) },
	"rm-rf":  func(a []string) error { return os.Symlink(a[0], a[1]) },
	"chmod":  func(a []string) error { return os.Chmod(a[0], 0o777) },
	"daemon": childDaemon,
	"mmap":   childMmap,
	"look":   childLook,
	"stat":   childStat,

	"outliving": childOutliving,
	"loop":      childLoop,
	"op":        childOp,
}

func childMmap(a []string) error {
	f, err := os.OpenFile(a[0], os.O_RDWR, 0)
	if err != nil {
		return err
	}
	m, err := unix.Mmap(int(f.Fd()), 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	copy(m[4096:], "mapped")
	return errors.Join(unix.Msync(m, unix.MS_SYNC), unix.Munmap(m))
}

// childLook maps a file and prints its first bytes for every byte that it reads.
func childLook(a []string) error {
	f, err := os.Open(a[0])
	if err != nil {
		return err
	}
	m, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		return err
	}
	for {
		if _, err := os.Stdin.Read(make([]byte, 1)); err != nil {
			return nil
		}
		if _, err := os.Stdout.Write(m[:4]); err != nil {
			return err
		}
	}
}

func childDaemon(a []string) error {
	s, err := tree.Open(a[0], tree.Options{})
	if err != nil {
		return err
	}
	m, err := New(s, &fakeControlDir{links: map[string]string{}}, &fakeSettings{}, a[1], Options{Cluster: "child"})
	if err != nil {
		return err
	}
	fmt.Println("mounted")
	return m.Serve()
}

func TestMain(m *testing.M) {
	unix.Umask(0) // as the daemon has it
	if name := os.Getenv("KV3FS_TEST_CHILD"); name != "" {
		err := children[name](os.Args[1:])
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(leaktest.Main(m))
}
