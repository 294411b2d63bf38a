package sharing

import (
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

// Requests of rings and calls of the mount end within their deadline when the file system hangs, in whatever way it is used.
// Where only one name hangs, others go on.
func TestHungStore(t *testing.T) {
	daemontest.NeedRoot(t)
	ctx := t.Context()
	d := faultdir.New(t)
	k := daemontest.ServeWith(t, daemontest.Options{Data: d.Path, Flags: []string{
		"--shared", "on", "--pages-listen", "off", "--deadline", "1s", "--attr-timeout", "0s", "--entry-timeout", "0s", "--negative-timeout", "0s"}})
	// Should anything here wait without a bound, the daemon says where, and ends.
	watchdog := time.AfterFunc(4*time.Minute, func() { _ = k.Signal(syscall.SIGQUIT) })
	defer watchdog.Stop()
	path := filepath.Join(k.Mount, "file")
	if err := os.WriteFile(path, make([]byte, 8192), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	read := newRing(t, k.Mount, f, false)

	waits := make(chan error, 1)
	stat := func(name string) { waits <- unix.Stat(filepath.Join(k.Mount, name), new(unix.Stat_t)) }
	hangs := d.Hang(func(c faultdir.Call) bool { return c.Name == "one" })
	go stat("one")
	hung(t, hangs)
	for range 10 {
		if err := read.do(ctx); err != nil {
			t.Errorf("a ring's read while another name hangs: %v", err)
		}
	}
	eventually(t, "a read of the mount while another name hangs", func() bool { _, err := os.ReadFile(path); return err == nil })
	eventually(t, "one name that hangs does not count as the whole file system, except by a look that was slow", func() bool {
		return strings.Count(k.Log(), "does not work") == strings.Count(k.Log(), "works again")
	})
	if err := <-waits; err != unix.EIO {
		t.Errorf("the one that hangs: %v", err)
	}
	d.Heal()
	eventually(t, "the name that has hung is looked up", func() bool { return unix.Stat(filepath.Join(k.Mount, "one"), new(unix.Stat_t)) == unix.ENOENT })

	hangs = d.Hang(func(faultdir.Call) bool { return true })
	go stat("two")
	hung(t, hangs)
	if err := read.do(ctx); err != syscall.ETIMEDOUT {
		t.Errorf("a ring's read: %v", err)
	}
	if err := <-waits; err != unix.EIO {
		t.Errorf("a call that has begun before: %v", err)
	}
	eventually(t, "the log says that it hangs", func() bool { return strings.Contains(k.Log(), "it has not answered for 1s") })
	virt := filepath.Join(k.Mount, "3fs-virt")
	for _, c := range []struct {
		what string
		call func() error
	}{
		{"stat of the root", func() error { return unix.Stat(k.Mount, new(unix.Stat_t)) }},
		{"open", func() error { _, err := os.Open(path); return err }},
		{"read", func() error { _, err := f.ReadAt(make([]byte, 4096), 0); return err }},
		{"write", func() error { _, err := f.WriteAt(make([]byte, 4096), 0); return err }},
		{"sync", f.Sync},
		{"statfs of 3fs-virt", func() error { return unix.Statfs(virt, new(unix.Statfs_t)) }},
		{"symlink into rm-rf", func() error { return os.Symlink(path, filepath.Join(virt, "rm-rf", "remove")) }},
		{"symlink that moves", func() error { return os.Symlink("mv:"+path, path+".moved") }},
	} {
		if err := c.call(); !errors.Is(err, syscall.EIO) || errors.Is(err, usrbio.ErrDaemonGone) {
			t.Errorf("%s: %v, want EIO", c.what, err)
		}
	}
	d.Heal()
	eventually(t, "a read works again", func() bool { _, err := f.ReadAt(make([]byte, 4096), 0); return err == nil })
	eventually(t, "a ring's read works again", func() bool { return read.do(ctx) == nil })
}

// hung waits until a call hangs.
func hung(t *testing.T, hangs <-chan faultdir.Call) {
	t.Helper()
	select {
	case <-hangs:
	case <-time.After(2 * time.Minute):
		t.Fatal("nothing hangs after two minutes")
	}
}
