package mount

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// The lock of a directory is the directory's: it outlives what the kernel
// remembers, and not the directory. Who removes it where there can be none hears
// why (usrbio.md 7.5).
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
	os.WriteFile("/proc/sys/vm/drop_caches", []byte("2"), 0) // a forget, most likely
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
