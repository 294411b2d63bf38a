package capacity

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// chunk is the name of the n-th chunk as LMCache's file backend has it.
func chunk(n int) string { return fmt.Sprintf("meta-llama-SEP-Llama-3-8B@1@0@%x@half.data", n) }

// put makes a file that was last changed an hour ago.
func put(t *testing.T, path string, size int) {
	t.Helper()
	old := time.Now().Add(-time.Hour)
	err := os.WriteFile(path, make([]byte, size), 0o644)
	if err == nil {
		err = os.Chtimes(path, old, old)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	patience := time.Minute
	if soak() {
		patience *= 10
	}
	for end := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s has not come in %v", what, patience)
		}
	}
}

// free returns what statfs says that a mount has free.
func free(t *testing.T, dir string) int64 {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	return int64(st.Bavail) * st.Bsize
}

// A capacity below what is there, names of any bytes, and a disk below the directory: what is of a
// layout goes, whatever its directory is called, and nothing else; then there is room to write.
func TestOddDirectory(t *testing.T) {
	const limit, size = 8 << 20, 1 << 20
	disk := ownDisk(t, 64<<20)
	odd := filepath.Join(disk, "new\nline and \xff\xfe")
	other := filepath.Join(disk, "other")
	for _, dir := range []string{odd, other} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mount("kv3fs-test", other, "tmpfs", 0, "size=32m,mode=755"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(other, 0); err != nil {
			t.Error(err)
		}
	})
	for n := range 16 {
		put(t, filepath.Join(odd, chunk(n)), size)
		put(t, filepath.Join(other, chunk(n)), size)
	}
	unknown := filepath.Join(odd, "what\nis \xff")
	put(t, unknown, size)
	d := daemontest.ServeWith(t, daemontest.Options{
		Data: disk, Flags: []string{"--capacity", strconv.Itoa(limit), "--eviction-grace", "1s", "--pages-listen", "off"},
	})
	left := func() (n int) {
		for i := range 16 {
			if exists(filepath.Join(odd, chunk(i))) {
				n++
			}
		}
		return n
	}
	eventually(t, "the low watermark", func() bool { return left() <= 6 })
	if err := os.WriteFile(filepath.Join(d.Mount, filepath.Base(odd), chunk(99)), make([]byte, size), 0o644); err != nil {
		t.Error(err)
	}
	if left() == 0 || !exists(unknown) {
		t.Errorf("%d chunks are left; the file of no layout is there: %v", left(), exists(unknown))
	}
	for n := range 16 {
		if !exists(filepath.Join(other, chunk(n))) {
			t.Errorf("chunk %d of another file system is gone", n)
		}
	}
	if has := free(t, d.Mount); has > limit-size {
		t.Errorf("%d bytes are free of %d, with a file in it", has, limit)
	}
}

// Where others fill the disk, the directory's files give way, before a writer of the mount meets
// the disk's end.
func TestOthersFillTheDisk(t *testing.T) {
	const mib = 1 << 20
	disk := ownDisk(t, 64*mib)
	data, others := filepath.Join(disk, "data"), filepath.Join(disk, "others")
	for _, dir := range []string{data, others} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for n := range 40 {
		put(t, filepath.Join(data, chunk(n)), mib)
	}
	d := daemontest.ServeWith(t, daemontest.Options{
		Data: data, Flags: []string{"--capacity", "48MiB", "--eviction-grace", "1s", "--pages-listen", "off"},
	})
	f, err := os.Create(filepath.Join(others, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for range 44 { // more than the disk has beside what is there
		eventually(t, "room for others", func() bool { return free(t, disk) >= mib })
		if _, err := f.Write(make([]byte, mib)); err != nil {
			t.Fatal(err)
		}
	}
	var st unix.Statfs_t
	size := func() int64 {
		if err := unix.Statfs(d.Mount, &st); err != nil {
			t.Fatal(err)
		}
		return int64(st.Blocks) * st.Bsize
	}
	eventually(t, "what others leave, as the size of the mount", func() bool { return size() <= 20*mib })
	if err := os.WriteFile(filepath.Join(d.Mount, chunk(99)), make([]byte, 2*mib), 0o644); err != nil {
		t.Errorf("a write through the mount: %v", err)
	}
}
