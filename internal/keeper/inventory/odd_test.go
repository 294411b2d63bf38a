package inventory_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/keeper/inventory"
)

// Names of any bytes, paths longer than the kernel takes, and what is no file.
func TestOddEntries(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"new\nline", "\xff\xfe", " ", "-rf", strings.Repeat("n", 255), "*", "\\"} {
		if err := os.MkdirAll(filepath.Join(root, name, name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name, name, name), make([]byte, 5000), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{"loop": ".", "out": "/", "nowhere": "nothing"} {
		if err := os.Symlink(target, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(root, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	v := open(t, root)
	scan(t, v)
	same(t, v, root)
	if n := v.Root().Files(); n != 7 || v.Unread() != 0 {
		t.Errorf("%d files, %d unreadable", n, v.Unread())
	}

	deep := t.TempDir()
	fd, err := unix.Open(deep, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	name := strings.Repeat("d", 200)
	for range 40 {
		if err := unix.Mkdirat(fd, name, 0o700); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(fd, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		unix.Close(fd)
		if err != nil {
			t.Fatal(err)
		}
		fd = next
	}
	file, err := unix.Openat(fd, "file", unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	unix.Close(fd)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(file)
	v = open(t, deep)
	scan(t, v)
	if f, d := v.Root().Files(), v.Directories(); f != 1 || d != 41 {
		t.Errorf("%d files and %d directories; want 1 and 41", f, d)
	}
}

// What cannot be read is counted; the rest is there, and what was known before stays.
func TestUnreadable(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"open", "closed"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, dir, "file"), make([]byte, 5000), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	v, err := inventory.New(root, inventory.Options{Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	scan(t, v)
	before := v.Root().Bytes()
	for _, path := range []string{root, filepath.Join(root, "open")} {
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(root, "closed"), 0); err != nil {
		t.Fatal(err)
	}
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if os.Geteuid() == 0 {
			unix.SetfsuidRetUid(65534)
		}
		result <- v.Scan(context.Background())
	}()
	err = <-result
	os.Chmod(filepath.Join(root, "closed"), 0o700)
	if err != nil || v.Unread() != 1 {
		t.Errorf("%v, %d unreadable; want 1", err, v.Unread())
	}
	if b, n := v.Root().Bytes(), v.Root().Files(); b != before || n != 2 {
		t.Errorf("%d files of %d bytes; want 2 of %d", n, b, before)
	}
}

// A file system that is mounted below is not entered, and events from it change nothing.
func TestMountBelow(t *testing.T) {
	root := t.TempDir()
	point := filepath.Join(root, "other")
	if err := os.Mkdir(point, 0o700); err != nil {
		t.Fatal(err)
	}
	err := unix.Mount("none", point, "tmpfs", 0, "size=1m")
	if errors.Is(err, unix.EPERM) && os.Getenv("KV3FS_REQUIRE_MOUNTS") == "" {
		t.Skip("this user may not mount")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(point, unix.MNT_DETACH)
	if err := os.WriteFile(filepath.Join(point, "file"), make([]byte, 5000), 0o600); err != nil {
		t.Fatal(err)
	}
	v := open(t, root)
	scan(t, v)
	var st unix.Stat_t
	if err := unix.Stat(point, &st); err != nil {
		t.Fatal(err)
	}
	dir, key := keyOf(&st), inventory.Key{Dev: keyOf(&st).Dev, Ino: 99}
	v.Created(key, dir, "new", false)
	v.Opened(key, dir, "new")
	if v.Claim(key, 1<<40, false) != nil {
		t.Error("a claim on another file system was refused")
	}
	v.Settle(key, 1<<40, 1000)
	v.Closed(key, 2000)
	if n, d := v.Root().Files(), v.Directories(); n != 0 || d != 1 || v.Root().Claimed() != v.Root().Bytes() {
		t.Errorf("%d files, %d directories, %d bytes", n, d, v.Root().Claimed())
	}
}

// Absurd events change nothing but what they are about, and never panic.
func TestAbsurdEvents(t *testing.T) {
	root := t.TempDir()
	v := open(t, root)
	scan(t, v)
	before := v.Root().Bytes()
	top := v.KeyOf(v.Root())
	k := inventory.Key{Dev: top.Dev, Ino: 1 << 60}
	v.Settle(k, 5, 5)
	v.Closed(k, 5)
	v.Read(k)
	v.Removed(k, top, "x", true)
	v.Removed(k, inventory.Key{}, "", true)
	v.Renamed(k, top, "x", top, "y")
	v.Renamed(top, top, "x", top, "y")
	v.Created(top, top, "self", true)
	v.Removed(top, top, "self", true)
	v.Created(k, top, "dir", true)
	v.Renamed(k, top, "dir", k, "below itself")
	v.Removed(k, top, "dir", true)
	v.Removed(k, top, "dir", true)
	v.Created(k, top, "file", false)
	v.Settle(k, 0, 1<<62)
	v.Settle(k, 0, -1<<62)
	v.Settle(k, 0, 0)
	if refused := v.Claim(k, 1<<62, false); refused != nil {
		v.Settle(k, 0, 0)
	} else {
		v.Settle(k, 1<<62, 0)
	}
	v.Removed(k, top, "file", true)
	stray := inventory.Key{Dev: top.Dev, Ino: 1<<60 + 1}
	v.Claim(stray, 1000, false)
	v.Claim(stray, 500, false)
	v.Settle(stray, 1000, 77)
	v.Settle(stray, 500, -1)
	look(t, v)
	if v.Root().Bytes() != before || v.Root().Claimed() != before || v.Root().Files() != 0 || v.Directories() != 1 {
		t.Errorf("%d bytes, %d claimed, %d files; want %d, %d, 0", v.Root().Bytes(), v.Root().Claimed(), v.Root().Files(), before, before)
	}
}

// A directory can be removed while a claim for it is held, or a file in it is in use.
func TestRemovedWhileInUse(t *testing.T) {
	root := t.TempDir()
	v := open(t, root)
	scan(t, v)
	before := v.Root().Claimed()
	top := v.KeyOf(v.Root())
	key := func(n uint64) inventory.Key { return inventory.Key{Dev: top.Dev, Ino: 1<<60 + n} }
	for n := range uint64(100) {
		dir, sub, file := key(3*n), key(3*n+1), key(3*n+2)
		v.Created(dir, top, fmt.Sprint(n), true)
		v.Created(sub, dir, "sub", true)
		v.Created(file, sub, "file", false)
		v.Opened(file, sub, "file")
		v.Settle(sub, 0, 8)
		v.Claim(file, 4096, false)
		v.Claim(sub, 4096, false)
		v.Removed(file, sub, "file", true)
		v.Removed(sub, dir, "sub", true)
		v.Removed(dir, top, fmt.Sprint(n), true)
		v.Settle(file, 4096, 8)
		v.Settle(sub, 4096, -1)
		if b := v.Root().Claimed() - before; b != 4096 {
			t.Fatalf("%d bytes are claimed of a removed file in use; want 4096", b)
		}
		v.Closed(file, 8)
		if c := v.Root().Claimed(); c != before || v.Directories() != 1 {
			t.Fatalf("%d bytes are claimed, %d directories", c-before, v.Directories())
		}
	}
}

// A scan drops directories that were removed, unseen, with those above them.
func TestNestedRemoval(t *testing.T) {
	root := t.TempDir()
	v := open(t, root)
	if err := os.MkdirAll(filepath.Join(root, "d1/d2/d3"), 0o700); err != nil {
		t.Fatal(err)
	}
	scan(t, v)
	same(t, v, root)
	if err := os.RemoveAll(filepath.Join(root, "d1")); err != nil {
		t.Fatal(err)
	}
	scan(t, v)
	same(t, v, root)
}
