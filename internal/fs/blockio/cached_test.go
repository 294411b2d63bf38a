package blockio

import (
	"bytes"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/shm"
)

// coldFile returns a file on a disk with direct I/O, of random bytes, that is not in the
// page cache.
func coldFile(t *testing.T, size int) (onDisk, []byte) {
	t.Helper()
	dir := t.TempDir()
	f := open(t, filepath.Join(dir, "f"))
	if KindOf(dir) != Disk || f.direct < 0 {
		t.Skipf("%s is not on a disk with direct I/O", dir)
	}
	content := randomBytes(size)
	if _, err := unix.Pwrite(f.buffered, content, 0); err != nil {
		t.Fatal(err)
	}
	f.drop(t)
	if n := f.pages(t, 0, int64(size)); n != 0 {
		t.Skipf("%d pages of a file that was dropped are in the page cache", n)
	}
	return f, content
}

// drop drops the file from the page cache.
func (f onDisk) drop(t *testing.T) {
	t.Helper()
	if err := unix.Fdatasync(f.buffered); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fadvise(f.buffered, 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
}

// warm brings a range, and nothing else, into the page cache.
func (f onDisk) warm(t *testing.T, off, n int64) {
	t.Helper()
	for _, advice := range []int{unix.FADV_RANDOM, unix.FADV_NORMAL} {
		if err := unix.Fadvise(f.buffered, 0, 0, advice); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.Pread(f.buffered, make([]byte, n), off); err != nil {
			t.Fatal(err)
		}
	}
}

// pages returns how many pages of a range are in the page cache.
func (f onDisk) pages(t *testing.T, off, n int64) int {
	t.Helper()
	cached, err := shm.CachedPages(f.buffered, off, n)
	if err != nil {
		t.Fatal(err)
	}
	return cached
}

// What is not cached is read once, directly: asking what is cached must not make the
// kernel read ahead.
func TestColdReadsAreReadOnce(t *testing.T) {
	const size = 8 << 20
	f, content := coldFile(t, size)
	mem := memory(t, size)
	for _, r := range [][2]int64{{0, 1 << 20}, {1 << 20, autoDirectBytes}, {2 << 20, 256 << 10}, {3 << 20, 4 << 20}, {0, size}, {size - 1<<20, 1 << 20}} {
		w := shm.OwnWindow(mem[:r[1]])
		n, waited, err := Mover{Mode: Auto, Kind: Disk}.Read(f, w, 0, r[0])
		if n != r[1] || !waited || err != nil || !bytes.Equal(mem[:n], content[r[0]:r[0]+n]) {
			t.Fatalf("read %v: %d bytes, waited %v, %v, or the bytes differ", r, n, waited, err)
		}
		if cached := f.pages(t, 0, size); cached != 0 {
			t.Errorf("read %v: it brought %d pages into the page cache, so they were read twice", r, cached)
		}
	}
}

// A file of which a part is cached is read no more than once, either.
func TestPartlyCachedReadsAreReadOnce(t *testing.T) {
	const size = 4 << 20
	f, content := coldFile(t, size)
	mem := memory(t, size)
	for _, part := range [][2]int64{{0, 4096}, {0, 512 << 10}, {512 << 10, 512 << 10}, {1<<20 - 4096, 8192}, {0, 1 << 20}, {4096, size - 8192}} {
		f.drop(t)
		f.warm(t, part[0], part[1])
		before := f.pages(t, 0, size)
		n, _, err := Mover{Mode: Auto, Kind: Disk}.Read(f, shm.OwnWindow(mem), 0, 0)
		if n != size || err != nil || !bytes.Equal(mem, content) {
			t.Fatalf("with %v cached: %d bytes, %v, or the bytes differ", part, n, err)
		}
		if after := f.pages(t, 0, size); after > before {
			t.Errorf("with %v cached: the page cache went from %d to %d pages", part, before, after)
		}
	}
}

// What is cached is not read from the disk, up to the end of the file, wherever that is.
func TestCachedReadsDoNotWait(t *testing.T) {
	for _, size := range []int64{1 << 20, 1<<20 - 4096, 1<<20 + 123, autoDirectBytes + 1} {
		f, content := coldFile(t, int(size))
		f.warm(t, 0, size)
		mem := memory(t, 2<<20)
		n, waited, err := Mover{Mode: Auto, Kind: Disk}.Read(f, shm.OwnWindow(mem), 0, 0)
		if n != size || waited || err != nil || !bytes.Equal(mem[:n], content) {
			t.Errorf("a file of %d bytes: %d bytes, waited %v, %v, or the bytes differ", size, n, waited, err)
		}
	}
}

// Dirty pages are newer than the disk.
func TestPartlyDirtyReads(t *testing.T) {
	const size = 2 << 20
	f, content := coldFile(t, size)
	mem := memory(t, size)
	for _, off := range []int64{0, 4096, 1<<20 - 4096, size - 4096} {
		f.drop(t)
		copy(content[off:off+4096], randomBytes(4096))
		if _, err := unix.Pwrite(f.buffered, content[off:off+4096], off); err != nil {
			t.Fatal(err)
		}
		n, _, err := Mover{Mode: Auto, Kind: Disk}.Read(f, shm.OwnWindow(mem), 0, 0)
		if n != size || err != nil || !bytes.Equal(mem, content) {
			t.Errorf("dirty at %d: %d bytes, %v, or the bytes differ", off, n, err)
		}
	}
}
