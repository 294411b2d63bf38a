package blockio

import (
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/shm"
)

// inCache returns how many of the n bytes at off a file has, if the page cache has them.
//
// It is asked before a read with RWF_NOWAIT, which begins to read ahead what it does not
// find. A direct read of the same bytes then waits for those pages: blocks of 1 MiB were
// read from the disk two to three times.
//
// Three pages stand for all, which takes 1 µs: with pages of 4 KiB, counting those of a MiB
// takes 7. If others are missing, the read stops there, and some bytes are read twice.
func inCache(fd int, off, n int64) (has int64, ok bool) {
	has = n
	if !pageInCache(fd, off+n-1) {
		var st unix.Stat_t
		if unix.Fstat(fd, &st) != nil || st.Size >= off+n {
			return 0, false
		}
		has = max(0, st.Size-off)
		if has > 0 && !pageInCache(fd, off+has-1) {
			return 0, false
		}
	}
	return has, has == 0 || pageInCache(fd, off) && pageInCache(fd, off+has/2)
}

// pageInCache reports whether the page at off is in the page cache, or nobody knows.
func pageInCache(fd int, off int64) bool {
	page := int64(unix.Getpagesize())
	n, err := shm.CachedPages(fd, off&^(page-1), page)
	return err != nil || n > 0
}

// anyInCache reports whether the page cache is known to have any of n bytes at a page's
// offset.
func anyInCache(fd int, off, n int64) bool {
	pages, err := shm.CachedPages(fd, off, n)
	return err == nil && pages > 0
}
