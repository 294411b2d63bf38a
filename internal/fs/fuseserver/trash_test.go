package fuseserver

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/cred"
	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// A user's directory enters the trash only by the ioctl that is for this, as 3FS has it by
// default; files, links, and what is there already, move as they like (usrbio.md 7.5).
func TestRenameIntoTrash(t *testing.T) {
	daemontest.NeedRoot(t)
	w := newWorld(t, Options{})
	const uid = 12345
	if err := unix.Chmod(w.data, 0o777); err != nil {
		t.Fatal(err)
	}
	as := func(fn func() error) error { return cred.RunAs(cred.Caller{UID: uid, GID: uid}, fn) }
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"trash", "trash/u"} {
		must(os.Mkdir(w.path(dir), 0o777))
		must(os.Chmod(w.path(dir), 0o777))
	}
	must(os.Mkdir(w.path("roots"), 0o755))
	must(as(func() error {
		for _, dir := range []string{"d", "home"} {
			if err := unix.Mkdir(w.path(dir), 0o755); err != nil {
				return err
			}
		}
		return nil
	}))
	w.write("file", "x")
	move := func(src, dir, dst string, trash byte) error {
		from, err := unix.Open(w.dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(from)
		var to unix.Stat_t
		if err := unix.Stat(w.path(dir), &to); err != nil {
			return err
		}
		b := make([]byte, wire.MoveBytes)
		binary.LittleEndian.PutUint64(b, 1)
		copy(b[8:], src)
		binary.LittleEndian.PutUint64(b[264:], to.Ino)
		copy(b[272:], dst)
		b[528] = trash
		if errno := ioctlBytes(uintptr(from), wire.IoctlMove, b); errno != 0 {
			return errno
		}
		return nil
	}
	rename := func(from, to string, flags uint) func() error {
		return func() error {
			return unix.Renameat2(unix.AT_FDCWD, w.path(from), unix.AT_FDCWD, w.path(to), flags)
		}
	}
	for _, c := range []struct {
		what string
		do   func() error
		want unix.Errno
	}{
		{"into a user's trash", rename("d", "trash/u/d", 0), unix.EPERM},
		{"into the trash", rename("d", "trash/d", 0), unix.EPERM},
		{"without replacing", rename("d", "trash/u/d", unix.RENAME_NOREPLACE), unix.EPERM},
		{"by a link", func() error { return unix.Symlink("mv:"+w.path("d"), w.path("trash/u/d")) }, unix.EPERM},
		{"by the ioctl, without its flag", func() error { return move("d", "trash/u", "d", 0) }, unix.EPERM},
		{"a file", rename("file", "trash/u/file", 0), 0},
		{"in exchange for a file", rename("d", "trash/u/file", unix.RENAME_EXCHANGE), unix.EPERM},
		{"in exchange for a file, from there", rename("trash/u/file", "d", unix.RENAME_EXCHANGE), unix.EPERM},
		{"by the ioctl", func() error { return move("d", "trash/u", "d", 1) }, 0},
		{"within the trash", rename("trash/u/d", "trash/u/e", 0), 0},
		{"out of the trash", rename("trash/u/e", "home/e", 0), 0},
		{"into a trash that is not the root's", func() error {
			if err := unix.Mkdir(w.path("home/trash"), 0o755); err != nil {
				return err
			}
			return rename("home/e", "home/trash/e", 0)()
		}, 0},
		{"another user's, by the ioctl", func() error { return move("roots", "trash/u", "roots", 1) }, unix.EPERM},
	} {
		wantErrno(t, c.what, as(c.do), c.want)
	}
	wantErrno(t, "by root", rename("roots", "trash/u/roots", 0)(), 0)
	if _, err := os.Stat(filepath.Join(w.data, "trash/u/roots")); err != nil {
		t.Error(err)
	}
}
