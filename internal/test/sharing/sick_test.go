// Package sharing runs daemons over directories that they take for shared by many hosts, on this machine alone: what needs no
// distributed file system. Package hosts has the rest.
package sharing

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/internal/test/faultdir"
	"github.com/kv3fs/kv3fs/usrbio"
)

func TestMain(m *testing.M) { os.Exit(daemontest.Main(m)) }

// eventually waits for what has no bound of its own.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not in two minutes: ", what)
		}
	}
}

// A file system that has lost its servers answers ENOTCONN, which clients take for the end of the daemon: they get EIO, the
// log has the truth, and everything goes on once the servers are back.
func TestSickStore(t *testing.T) {
	daemontest.NeedRoot(t)
	ctx := t.Context()
	d := faultdir.New(t)
	k := daemontest.ServeWith(t, daemontest.Options{Data: d.Path, Flags: []string{
		"--shared", "on", "--pages-listen", "off", "--deadline", "1m", "--attr-timeout", "0s", "--entry-timeout", "0s", "--negative-timeout", "0s"}})
	dir := filepath.Join(k.Mount, "dir")
	path := filepath.Join(dir, "file")
	if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(path, make([]byte, 8192), 0o644)); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	read, write := newRing(t, k.Mount, f, false), newRing(t, k.Mount, f, true)
	for _, errno := range []syscall.Errno{syscall.ENOTCONN, syscall.EBADFD} {
		d.Fail(func(faultdir.Call) syscall.Errno { return errno })
		buf := make([]byte, 4096)
		for what, call := range map[string]func() error{
			"stat of the root":   func() error { return unix.Stat(k.Mount, new(unix.Stat_t)) },
			"statfs of the root": func() error { return unix.Statfs(k.Mount, new(unix.Statfs_t)) },
			"list of the root":   func() error { _, err := os.ReadDir(k.Mount); return err },
			"stat":               func() error { return unix.Stat(path, new(unix.Stat_t)) },
			"open":               func() error { _, err := os.Open(path); return err },
			"create":             func() error { return os.WriteFile(path+".new", nil, 0o644) },
			"mkdir":              func() error { return os.Mkdir(dir+".new", 0o755) },
			"remove":             func() error { return unix.Unlink(path) },
			"rename":             func() error { return os.Rename(path, path+".new") },
			"read":               func() error { _, err := f.ReadAt(buf, 0); return err },
			"unaligned read":     func() error { _, err := f.ReadAt(buf[:10], 10); return err },
			"write":              func() error { _, err := f.WriteAt(buf, 0); return err },
			"sync":               f.Sync,
			"truncate":           func() error { return f.Truncate(4096) },
			"a ring's read":      func() error { return read.do(ctx) },
			"a ring's write":     func() error { return write.do(ctx) },
		} {
			if err := call(); !errors.Is(err, syscall.EIO) || errors.Is(err, usrbio.ErrDaemonGone) {
				t.Errorf("the file system answers %v: %s: %v, want EIO", errno, what, err)
			}
		}
		if _, err := usrbio.Open(ctx, path); errors.Is(err, usrbio.ErrDaemonGone) {
			t.Errorf("the file system answers %v: a new client takes the daemon for dead: %v", errno, err)
		}
		eventually(t, "the log says what is wrong", func() bool {
			for line := range strings.Lines(k.Log()) {
				if strings.Contains(line, "file system does not work") && strings.Contains(line, errno.Error()) {
					return true
				}
			}
			return false
		})
		recovered := strings.Count(k.Log(), "file system works again")
		d.Heal()
		for what, call := range map[string]func() error{
			"read": func() error { _, err := f.ReadAt(buf, 0); return err }, "a ring's read": func() error { return read.do(ctx) }, "a ring's write": func() error { return write.do(ctx) },
		} {
			if err := call(); err != nil {
				t.Errorf("after %v, %s: %v", errno, what, err)
			}
		}
		eventually(t, "the log says that it works again", func() bool { return strings.Count(k.Log(), "file system works again") > recovered })
	}
}

// ring is one of a request each.
type ring struct {
	*usrbio.Ring
	one usrbio.Request
}

// newRing registers f, whose first 4 KiB it reads or writes.
func newRing(t *testing.T, mount string, f *os.File, write bool) *ring {
	t.Helper()
	ctx := t.Context()
	m, err := usrbio.Open(ctx, mount)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	iov, err := m.NewIov(ctx, 4096, usrbio.IovOptions{})
	if err != nil {
		t.Fatal(err)
	}
	file, err := m.Register(ctx, f)
	if err != nil {
		t.Fatal(err)
	}
	r, err := m.NewRing(ctx, usrbio.RingOptions{Entries: 1, Write: write})
	if err != nil {
		t.Fatal(err)
	}
	return &ring{r, usrbio.Request{File: file, Iov: iov, Bytes: 4096}}
}

// do returns the error of the request.
func (r *ring) do(ctx context.Context) error {
	all := []usrbio.Request{r.one}
	if err := r.Do(ctx, all); err != nil {
		return err
	}
	if n := all[0].Result; n < 0 {
		return syscall.Errno(-n)
	}
	return nil
}
