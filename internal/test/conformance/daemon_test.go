package conformance

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/usrbio"
)

// patience bounds every wait for something that should happen soon.
const patience = 30 * time.Second

// chunk is st_blksize, which stands for 3FS's chunk size.
const chunk = 1 << 20

// world is a running daemon with helpers for the cases.
type world struct{ *daemontest.Daemon }

// start starts a daemon that runs until the test ends.
func start(t *testing.T, o daemontest.Options) *world {
	t.Helper()
	return &world{daemontest.ServeWith(t, o)}
}

// shared returns the daemon that serves most tests. Its blocks are chunk bytes.
func shared(t *testing.T) *world {
	t.Helper()
	return &world{daemontest.Shared(t, "--block-bytes", strconv.Itoa(chunk))}
}

// signal sends sig, waits until the daemon exits and returns how long that took.
func (w *world) signal(t *testing.T, sig syscall.Signal) time.Duration {
	t.Helper()
	began := time.Now()
	must(t, w.Signal(sig))
	select {
	case <-w.Ended():
	case <-time.After(patience):
		t.Fatalf("the daemon does not exit\n%s", w.Log())
	}
	return time.Since(began)
}

// dirs numbers the directories of tests.
var dirs atomic.Int64

// dir makes a directory of the test's own on the mount, which every user may use.
func (w *world) dir(t *testing.T) string {
	t.Helper()
	d := filepath.Join(w.Mount, fmt.Sprintf("t%d", dirs.Add(1)))
	must(t, os.Mkdir(d, 0o777))
	must(t, os.Chmod(d, 0o777))
	return d
}

// behind returns the path in the data directory that is behind a path on the mount.
func (w *world) behind(path string) string { return w.Data + strings.TrimPrefix(path, w.Mount) }

func (w *world) iovs(name string) string    { return filepath.Join(w.Mount, "3fs-virt", "iovs", name) }
func (w *world) virtual(name string) string { return filepath.Join(w.Mount, "3fs-virt", name) }

// client connects to the mount through package usrbio.
func (w *world) client(t *testing.T) *usrbio.Mount {
	t.Helper()
	m, err := usrbio.Open(context.Background(), w.Mount)
	must(t, err)
	t.Cleanup(func() { m.Close(context.Background()) })
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

// eventually polls until ok returns true, for conditions that nothing signals.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("still not true after %v: %s", patience, what)
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
