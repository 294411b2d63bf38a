package fuseserver

import (
	"encoding/binary"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/wire"
)

// Inode flags can be read back, whether the backing file system has them or not;
// unknown ones are refused (usrbio.md 1.5).
func TestInodeFlags(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.write("f", "x")
		f, err := os.Open(w.path("f"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		get := func() int {
			t.Helper()
			flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
			if err != nil {
				t.Fatal(err)
			}
			return flags
		}
		set := func(flags int) error { return unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags) }
		const immutable, hugeFile, index, newChunkEngine = 0x10, 0x40000, 0x1000, 0x1
		for _, flags := range []int{hugeFile, index | newChunkEngine, 0, hugeFile | immutable} {
			if err := set(flags); err != nil {
				t.Fatalf("set %#x: %v", flags, err)
			}
			if got := get(); got != flags {
				t.Errorf("set %#x, got %#x", flags, got)
			}
		}
		if err := os.WriteFile(w.path("f"), nil, 0o644); err == nil {
			t.Error("an immutable file was opened for writing")
		}
		if err := set(0); err != nil {
			t.Fatal(err)
		}
		if err := set(0x20); err != unix.EINVAL {
			t.Errorf("append-only: %v, want EINVAL", err)
		}
	})
}

// A move to the trash never replaces a file, and takes files and symbolic links; directories
// enter the trash only if they are the caller's (usrbio.md 1.5).
func TestMoveToTrash(t *testing.T) {
	both(t, func(t *testing.T, w *world) {
		w.write("file", "x")
		w.write("plain", "x")
		w.write("taken", "x")
		for _, dir := range []string{"d", "other", "trash", "trash/u", "full", "full/x"} {
			if err := os.Mkdir(w.path(dir), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		w.write("trash/u/taken", "x")
		for _, link := range []string{"link", "trash/u/link"} {
			if err := os.Symlink("nowhere", w.path(link)); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chmod(w.path("other"), 0o500); err != nil {
			t.Fatal(err)
		}
		root, err := os.Open(w.dir)
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		var trash unix.Stat_t
		if err := unix.Stat(w.path("trash/u"), &trash); err != nil {
			t.Fatal(err)
		}
		move := func(src string, dir uint64, dst string, trash byte) unix.Errno {
			b := make([]byte, wire.MoveBytes)
			binary.LittleEndian.PutUint64(b, 1)
			copy(b[8:], src)
			binary.LittleEndian.PutUint64(b[264:], dir)
			copy(b[272:], dst)
			b[528] = trash
			return ioctlBytes(root.Fd(), wire.IoctlMove, b)
		}
		for _, c := range []struct {
			src  string
			dir  uint64
			dst  string
			want unix.Errno
		}{
			{"missing", trash.Ino, "x", unix.ENOENT},
			{"file", trash.Ino, "taken", unix.EEXIST},
			{"d", trash.Ino, "taken", unix.EEXIST},
			{"d", trash.Ino, "link", unix.ENOTDIR},
			{"other", trash.Ino, "x", unix.EPERM}, // not writable by its owner
			{"d", trash.Ino, "x", 0},
			{"file", trash.Ino, "f", 0},
			{"link", trash.Ino, "l", 0},
			{"other", 1, "elsewhere", 0}, // only what enters the trash is checked
			{"plain", 1, "taken", unix.EEXIST},
		} {
			if got := move(c.src, c.dir, c.dst, 1); got != c.want {
				t.Errorf("trash %s as %s: %v, want %v", c.src, c.dst, got, c.want)
			}
		}
		if got := move("plain", 1, "taken", 0); got != 0 {
			t.Errorf("an ordinary move replaces a file: %v", got)
		}
		if got := move("full", trash.Ino, "full", 0); got != 0 && os.Getuid() == 0 {
			t.Errorf("an ordinary move by root: %v", got)
		}
	})
}
