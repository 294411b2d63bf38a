package shm

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Both ways count the same pages, and counting brings none into the page cache.
func TestCachedPages(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const page, pages = 4096, 64
	if _, err := f.Write(make([]byte, pages*page-100)); err != nil {
		t.Fatal(err)
	}
	fd := int(f.Fd())
	check := func(what string, off, n int64, want int) {
		t.Helper()
		got, err := CachedPages(fd, off*page, n*page)
		other, otherErr := residentPages(fd, off*page, n*page)
		if got != want || other != want || err != nil || otherErr != nil {
			t.Errorf("%s: pages %d to %d: %d (%v), by mincore %d (%v), want %d", what, off, off+n, got, err, other, otherErr, want)
		}
	}
	check("written", 0, pages, pages)
	check("written", 3, 7, 7)
	check("written", pages-1, 10, 1) // up to the end of the file
	check("written", pages, 10, 0)
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fadvise(fd, 8*page, 16*page, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	if got, _ := CachedPages(fd, 8*page, page); got != 0 {
		t.Skip("this file system keeps pages that were dropped")
	}
	for range 2 { // the second time shows what the first one brought in
		check("partly dropped", 0, 8, 8)
		check("partly dropped", 8, 16, 0)
		check("partly dropped", 0, pages, pages-16)
	}
	if _, err := CachedPages(-1, 0, page); err != unix.EBADF {
		t.Errorf("no file: %v", err)
	}
	if _, err := residentPages(-1, 0, page); err != unix.EBADF {
		t.Errorf("no file, by mincore: %v", err)
	}
}
