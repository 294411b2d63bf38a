package fuseserver

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/wire"
)

// What a client has open, as a directory or with O_PATH only, or is in, has a status as long
// as that, however it lost its name.
func TestStatusOfTheRemoved(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		open := func(name string, flags int) int {
			t.Helper()
			fd, err := unix.Open(w.path(name), flags|unix.O_CLOEXEC, 0)
			must(err)
			t.Cleanup(func() { unix.Close(fd) })
			return fd
		}
		mkdir := func(name string) error { return unix.Mkdir(name, 0o755) }
		const path = unix.O_PATH | unix.O_NOFOLLOW
		rmdir := func(name string, _ int) error { return unix.Rmdir(w.path(name)) }
		unlink := func(name string, _ int) error { return unix.Unlink(w.path(name)) }
		replace := func(name string, _ int) error {
			if err := unix.Mkdir(w.path(name+".new"), 0o755); err != nil {
				return err
			}
			return unix.Rename(w.path(name+".new"), w.path(name))
		}
		for _, c := range []struct {
			what   string
			make   func(name string) error
			flags  int
			remove func(name string, fd int) error
		}{
			{"directory", mkdir, unix.O_RDONLY | unix.O_DIRECTORY, rmdir},
			{"directory by path", mkdir, path, rmdir},
			{"replaced directory", mkdir, path, replace},
			{"recursively removed directory", mkdir, unix.O_RDONLY | unix.O_DIRECTORY, func(_ string, fd int) error {
				if errno := ioctlBytes(uintptr(fd), wire.IoctlRecursiveRm, make([]byte, 4)); errno != 0 {
					return errno
				}
				return nil
			}},
			{"symbolic link", func(name string) error { return unix.Symlink("target", name) }, path, unlink},
			{"file by path", func(name string) error { return os.WriteFile(name, nil, 0o644) }, path, unlink},
		} {
			must(c.make(w.path(c.what)))
			fd := open(c.what, c.flags)
			var before, after unix.Stat_t
			must(unix.Fstat(fd, &before))
			must(c.remove(c.what, fd))
			if err := unix.Fstat(fd, &after); err != nil || after.Ino != before.Ino || after.Mode != before.Mode || after.Nlink != 0 {
				t.Errorf("%s: %v, %+v, before %+v", c.what, err, after, before)
			}
		}
		fd := open(".", unix.O_TMPFILE|unix.O_RDWR)
		byPath, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_PATH|unix.O_CLOEXEC, 0)
		must(err)
		defer unix.Close(byPath)
		var st unix.Stat_t
		if err := unix.Fstat(byPath, &st); err != nil || st.Nlink != 0 {
			t.Errorf("a file that never had a name: %v, %d links", err, st.Nlink)
		}
	})
}
