package fuseserver

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/wire"
)

// The root names the daemon that serves it in an attribute that is not listed, because
// programs list attributes in order to copy them.
func TestDaemonAttribute(t *testing.T) {
	w := newWorld(t, Options{Daemon: &wire.Daemon{Version: "v1"}, Passthrough: PassthroughOff})
	value := `{"version":"v1","pid":0,"data":"","cluster":"","io":"","started":"","passthrough":"` + w.m.WhyNoPassthrough() + `"}`
	buf := make([]byte, 256)
	n, err := unix.Getxattr(w.dir, wire.DaemonXattr, buf)
	if err != nil || string(buf[:n]) != value {
		t.Errorf("%q, %v; want %q", buf[:max(n, 0)], err, value)
	}
	if n, err = unix.Getxattr(w.dir, wire.DaemonXattr, nil); n != len(value) || err != nil {
		t.Errorf("its size: %d, %v; want %d", n, err, len(value))
	}
	_, err = unix.Getxattr(w.dir, wire.DaemonXattr, buf[:1])
	wantErrno(t, "with too little room", err, unix.ERANGE)
	if n, err := unix.Listxattr(w.dir, buf); n != 0 || err != nil {
		t.Errorf("listed: %q, %v", buf[:max(n, 0)], err)
	}
	wantErrno(t, "set", unix.Setxattr(w.dir, wire.DaemonXattr, []byte("x"), 0), unix.ENOTSUP)
	wantErrno(t, "remove", unix.Removexattr(w.dir, wire.DaemonXattr), unix.EPERM)
	w.write("f", "x")
	_, err = unix.Getxattr(w.path("f"), wire.DaemonXattr, buf)
	wantErrno(t, "of a file", err, unix.ENODATA)
	_, err = unix.Getxattr(w.path("3fs-virt"), wire.DaemonXattr, buf)
	wantErrno(t, "of the virtual directory", err, unix.ENOTSUP)
}

// Without Options.Daemon there is no such attribute, as on a real 3FS.
func TestNoDaemonAttribute(t *testing.T) {
	w := newWorld(t, Options{})
	_, err := unix.Getxattr(w.dir, wire.DaemonXattr, make([]byte, 256))
	wantErrno(t, "without a daemon's name", err, unix.ENODATA)
}

// The lock of a directory lasts until the directory is removed, even if the kernel
// forgets the directory. Removing a lock where there can be none fails with an errno
// that says why (usrbio.md 7.5).
func TestDirectoryLock(t *testing.T) {
	w := newWorld(t, Options{})
	dir := w.path("d")
	mkdir := func() {
		t.Helper()
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	locked := func() bool {
		_, err := unix.Getxattr(dir, lockName, nil)
		return err == nil
	}
	mkdir()
	if err := unix.Setxattr(dir, lockName, []byte("try_lock"), 0); err != nil {
		t.Fatal(err)
	}
	os.WriteFile("/proc/sys/vm/drop_caches", []byte("2"), 0) // most likely causes a forget
	if !locked() {
		t.Error("the lock was forgotten")
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	mkdir()
	if locked() {
		t.Error("a new directory is locked")
	}
	wantErrno(t, "unlock", unix.Setxattr(dir, lockName, []byte("unlock"), 0), unix.ENOLCK)
	wantErrno(t, "clear", unix.Setxattr(dir, lockName, []byte("clear"), 0), 0)
	w.write("f", "x")
	if err := os.Symlink("f", w.path("l")); err != nil {
		t.Fatal(err)
	}
	wantErrno(t, "remove from a file", unix.Removexattr(w.path("f"), lockName), unix.ENOTDIR)
	wantErrno(t, "remove from a symbolic link", unix.Lremovexattr(w.path("l"), lockName), unix.EPERM)
}
