package integrity

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// While the disk is full the log stays as it is, and it goes on once there is room.
func TestFullDisk(t *testing.T) {
	daemontest.NeedRoot(t)
	daemontest.NeedMounts(t)
	dir := t.TempDir()
	if err := unix.Mount("kv3fs-test", dir, "tmpfs", 0, "size=1m,mode=755"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	l, err := openLog(filepath.Join(dir, "sums"), true)
	if err != nil {
		t.Fatal(err)
	}
	put := func(ino uint64) error { return l.put(&record{stamp: stamp{ino: ino, mtimeNs: 5}}) }
	if err := put(1); err != nil {
		t.Fatal(err)
	}
	filler := filepath.Join(dir, "filler")
	if err := os.WriteFile(filler, make([]byte, 2<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	last := uint64(2)
	for ; ; last++ {
		if err = put(last); err != nil {
			break
		}
		if last > 1e6 {
			t.Fatal("the disk does not become full")
		}
	}
	for range 3 {
		if err = put(last); !errors.Is(err, unix.ENOSPC) {
			t.Errorf("a record without room: %v", err)
		}
	}
	if len(l.segments) != 1 || l.files() != int(last-1) {
		t.Errorf("%d segments, %d files", len(l.segments), l.files())
	}
	if err := errors.Join(os.Remove(filler), put(last)); err != nil {
		t.Fatal(err)
	}
	l.close()
	if l, err = openLog(l.dir, true); err != nil {
		t.Fatal(err)
	}
	defer l.close()
	if l.files() != int(last) {
		t.Errorf("%d files, want %d", l.files(), last)
	}
}

// A daemon that starts on a full disk still finds out how fine its times are.
func TestFineTimesOnFullDisk(t *testing.T) {
	daemontest.NeedRoot(t)
	daemontest.NeedMounts(t)
	dir := t.TempDir()
	if err := unix.Mount("kv3fs-test", dir, "tmpfs", 0, "size=64k,mode=755"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	fine := FineTimes(dir)
	if err := os.WriteFile(filepath.Join(dir, "filler"), make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	if full := FineTimes(dir); full != fine {
		t.Errorf("fine times: %v, and %v once the disk is full", fine, full)
	}
}
