package sharing

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/internal/test/faultdir"
	"github.com/kv3fs/kv3fs/usrbio"
)

// Requests of rings end within their deadline when the file system hangs, and calls that begin when it is known to hang
// fail at once; the one that has begun before waits. Where only one name hangs, others go on.
func TestHungStore(t *testing.T) {
	daemontest.NeedRoot(t)
	ctx := t.Context()
	d := faultdir.New(t)
	k := daemontest.ServeWith(t, daemontest.Options{Data: d.Path, Flags: []string{
		"--shared", "on", "--pages-listen", "off", "--deadline", "1s", "--attr-timeout", "0s", "--entry-timeout", "0s", "--negative-timeout", "0s"}})
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
	<-hangs
	for range 10 {
		if err := read.do(ctx); err != nil {
			t.Errorf("a ring's read while another name hangs: %v", err)
		}
		if _, err := os.ReadFile(path); err != nil {
			t.Errorf("a read of the mount while another name hangs: %v", err)
		}
	}
	if strings.Contains(k.Log(), "does not work") {
		t.Error("one name that hangs counts as the whole file system")
	}
	d.Heal()
	if err := <-waits; err != unix.ENOENT {
		t.Error(err)
	}

	hangs = d.Hang(func(faultdir.Call) bool { return true })
	go stat("two")
	<-hangs
	if err := read.do(ctx); err != syscall.ETIMEDOUT {
		t.Errorf("a ring's read: %v", err)
	}
	eventually(t, "the log says that it hangs", func() bool { return strings.Contains(k.Log(), "it has not answered for 1s") })
	for what, call := range map[string]func() error{
		"stat of the root": func() error { return unix.Stat(k.Mount, new(unix.Stat_t)) },
		"open":             func() error { _, err := os.Open(path); return err },
		"read":             func() error { _, err := f.ReadAt(make([]byte, 4096), 0); return err },
	} {
		if err := call(); !errors.Is(err, syscall.EIO) || errors.Is(err, usrbio.ErrDaemonGone) {
			t.Errorf("%s: %v, want EIO", what, err)
		}
	}
	d.Heal()
	if err := <-waits; err != unix.ENOENT && err != unix.EIO {
		t.Error(err)
	}
	eventually(t, "a read works again", func() bool { _, err := f.ReadAt(make([]byte, 4096), 0); return err == nil })
	if err := read.do(ctx); err != nil {
		t.Errorf("a ring's read: %v", err)
	}
}
