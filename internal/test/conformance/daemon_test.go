package conformance

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/usrbio"
)

// patience bounds every wait for something that should be there soon.
const patience = 30 * time.Second

// chunk is st_blksize, which plays the part of 3FS's chunk size.
const chunk = 1 << 20

// world is a running daemon and its mount.
type world struct {
	top, data, mnt string
	cmd            *exec.Cmd
	log            logBuffer
	ready          chan struct{}
	exited         chan struct{} // closed when the process has ended and log is complete
	exitErr        error
	dirs           atomic.Int64
	private        bool // the mount is in a mount namespace of the daemon's own
}

// logBuffer keeps what the daemon says.
type logBuffer struct {
	mu    sync.Mutex
	b     bytes.Buffer
	ready chan struct{}
	said  bool
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b.Write(p)
	if !l.said && bytes.Contains(l.b.Bytes(), []byte("kv3fs: serving ")) {
		l.said = true
		close(l.ready)
	}
	return len(p), nil
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// serveOptions say how a daemon is started; the zero value is as shared.
type serveOptions struct {
	args   []string
	env    []string
	data   string // below top when empty
	mnt    string
	uid    uint32
	binary string
}

func newTop(t *testing.T) string {
	t.Helper()
	top, err := os.MkdirTemp(runDir, "world-")
	if err == nil {
		err = os.Chmod(top, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	return top
}

// launch starts a daemon and waits until clients may come.
func launch(t *testing.T, o serveOptions) *world {
	t.Helper()
	if _, err := os.Stat("/dev/fuse"); err != nil {
		notTested(t, "there is no /dev/fuse: "+err.Error())
	}
	if os.Geteuid() != 0 {
		if _, err := exec.LookPath("fusermount3"); err != nil {
			notTested(t, "neither root nor fusermount3")
		}
	}
	if o.binary == "" {
		o.binary = kv3fs(t)
	}
	w := &world{data: o.data, mnt: o.mnt, exited: make(chan struct{})}
	w.top = newTop(t)
	if w.data == "" {
		w.data = filepath.Join(w.top, "data")
		must(t, os.Mkdir(w.data, 0o755))
		must(t, os.Chmod(w.data, 0o777)) // many users write in the mount's root
		if o.uid != 0 {
			must(t, os.Chown(w.data, int(o.uid), int(o.uid)))
		}
	}
	if w.mnt == "" {
		w.mnt = filepath.Join(w.top, "mnt")
		must(t, os.Mkdir(w.mnt, 0o755))
		if o.uid != 0 {
			must(t, os.Chown(w.mnt, int(o.uid), int(o.uid)))
		}
	}
	w.log.ready = make(chan struct{})
	w.ready = w.log.ready
	w.cmd = exec.Command(o.binary, append([]string{"serve", "--data", w.data, "--mount", w.mnt, "--cluster", "stage"}, o.args...)...)
	w.cmd.Dir = "/"
	w.cmd.Env = append(os.Environ(), o.env...)
	w.cmd.Stderr = &w.log
	w.cmd.Stdout = &w.log
	if o.uid != 0 {
		w.cmd.SysProcAttr = asUser(o.uid)
		w.usableFuse(t, o.uid)
	}
	must(t, w.cmd.Start())
	go func() {
		w.exitErr = w.cmd.Wait()
		close(w.exited)
	}()
	select {
	case <-w.ready:
	case <-w.exited:
		if strings.Contains(w.log.String(), "fusermount") || strings.Contains(w.log.String(), "/dev/fuse") {
			notTested(t, "no mount: "+w.log.String())
		}
		t.Fatalf("the daemon ended: %v\n%s", w.exitErr, w.log.String())
	case <-time.After(patience):
		w.cmd.Process.Kill()
		t.Fatalf("the daemon does not come up\n%s", w.log.String())
	}
	return w
}

// usableFuse lets a daemon of another uid open /dev/fuse where the host keeps it
// for root: by a node of its own, in a mount namespace of its own.
func (w *world) usableFuse(t *testing.T, uid uint32) {
	t.Helper()
	if info, err := os.Stat("/dev/fuse"); err != nil || info.Mode()&0o006 == 0o006 {
		return
	}
	for _, name := range []string{"setpriv", "nsenter"} {
		if _, err := exec.LookPath(name); err != nil {
			notTested(t, "a mount without root: /dev/fuse is root's, and there is no "+name)
		}
	}
	node := filepath.Join(w.top, "fuse")
	must(t, unix.Mknod(node, unix.S_IFCHR, int(unix.Mkdev(10, 229))))
	must(t, os.Chmod(node, 0o666))
	script := fmt.Sprintf(`mount --bind %s /dev/fuse; exec setpriv --reuid=%d --regid=%d --clear-groups "$0" "$@"`, node, uid, uid)
	args := append([]string{"/bin/sh", "-ec", script, w.cmd.Path}, w.cmd.Args[1:]...)
	w.cmd.Path, w.cmd.Args = args[0], args
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	w.private = true
}

// start is launch for the time of one test.
func start(t *testing.T, o serveOptions) *world {
	t.Helper()
	w := launch(t, o)
	t.Cleanup(func() {
		if err := w.end(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("daemon:\n%s", w.log.String())
		}
	})
	return w
}

func (w *world) alive() bool {
	select {
	case <-w.exited:
		return false
	default:
		return true
	}
}

// signal sends sig and waits for the end, which it times.
func (w *world) signal(t *testing.T, sig syscall.Signal) time.Duration {
	t.Helper()
	began := time.Now()
	must(t, w.cmd.Process.Signal(sig))
	select {
	case <-w.exited:
	case <-time.After(patience):
		t.Fatalf("the daemon does not end\n%s", w.log.String())
	}
	return time.Since(began)
}

// end stops a daemon in order and says what was not in order.
func (w *world) end() error {
	if w.alive() {
		w.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-w.exited:
		case <-time.After(patience):
			w.cmd.Process.Kill()
			<-w.exited
			unix.Unmount(w.mnt, unix.MNT_DETACH)
			return fmt.Errorf("the daemon did not end\n%s", w.log.String())
		}
	}
	log := w.log.String()
	for _, bad := range []string{"panic:", "fatal error:", "DATA RACE", "SIGSEGV"} {
		if strings.Contains(log, bad) {
			return fmt.Errorf("the daemon's log has %q:\n%s", bad, log)
		}
	}
	if left := mountsBelow(w.mnt); len(left) > 0 {
		for range left {
			unix.Unmount(w.mnt, unix.MNT_DETACH)
		}
		return fmt.Errorf("left mounted: %v\n%s", left, log)
	}
	return nil
}

// mountsBelow lists mount points at or below dir.
func mountsBelow(dir string) (found []string) {
	table, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) > 4 && (f[4] == dir || strings.HasPrefix(f[4], dir+"/")) {
			found = append(found, f[4])
		}
	}
	return found
}

var sharedWorld struct {
	mu sync.Mutex
	w  *world
}

// shared is the daemon that serves most tests. Its blocks are chunk bytes.
func shared(t *testing.T) *world {
	t.Helper()
	sharedWorld.mu.Lock()
	defer sharedWorld.mu.Unlock()
	if sharedWorld.w == nil {
		sharedWorld.w = launch(t, serveOptions{args: []string{"--block-bytes", strconv.Itoa(chunk)}})
	}
	if !sharedWorld.w.alive() {
		t.Fatalf("the shared daemon has ended: %v\n%s", sharedWorld.w.exitErr, sharedWorld.w.log.String())
	}
	return sharedWorld.w
}

func endShared() (ok bool) {
	if sharedWorld.w == nil {
		return true
	}
	if err := sharedWorld.w.end(); err != nil {
		fmt.Fprintln(os.Stderr, "FAIL: shared daemon:", err)
		return false
	}
	return true
}

// dir makes a directory of the test's own in the mount, which everybody may use.
func (w *world) dir(t *testing.T) string {
	t.Helper()
	d := filepath.Join(w.mnt, fmt.Sprintf("t%d", w.dirs.Add(1)))
	must(t, os.Mkdir(d, 0o777))
	must(t, os.Chmod(d, 0o777))
	return d
}

// behind is where a path of the mount lies in the data directory.
func (w *world) behind(path string) string { return w.data + strings.TrimPrefix(path, w.mnt) }

func (w *world) iovs(name string) string    { return filepath.Join(w.mnt, "3fs-virt", "iovs", name) }
func (w *world) virtual(name string) string { return filepath.Join(w.mnt, "3fs-virt", name) }

// client connects package usrbio.
func (w *world) client(t *testing.T) *usrbio.Mount {
	t.Helper()
	m, err := usrbio.Open(w.mnt)
	must(t, err)
	t.Cleanup(func() { m.Close() })
	return m
}

func asUser(uid uint32) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually polls: nothing notifies about the things it is used for.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("in vain: %s", what)
		}
	}
}

// within fails a test whose call hangs.
func within(t *testing.T, limit time.Duration, what string, fn func()) time.Duration {
	t.Helper()
	began := time.Now()
	done := make(chan struct{})
	go func() { defer close(done); fn() }()
	select {
	case <-done:
	case <-time.After(limit):
		t.Fatalf("%s hangs: not done after %v", what, limit)
	}
	return time.Since(began)
}

func withDeadline(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}
