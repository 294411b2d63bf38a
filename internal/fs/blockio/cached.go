package blockio

import (
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/shm"
)

// inCache returns how many of the n bytes at off a file has, if the page cache has all of
// them.
//
// It is asked before a read with RWF_NOWAIT, which begins to read ahead what it does not
// find. A direct read of the same bytes then waits for those pages: blocks of 1 MiB were
// read from the disk two to three times.
func inCache(fd int, off, n int64) (has int64, ok bool) {
	page := int64(unix.Getpagesize())
	start := off &^ (page - 1)
	cached, err := shm.CachedPages(fd, start, off+n-start)
	if err != nil {
		return n, true // nobody knows: try
	}
	missing := func(n int64) bool { return int64(cached)*page < off+n-start }
	if !missing(n) {
		return n, true
	}
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return 0, false
	}
	has = max(0, min(n, st.Size-off))
	return has, has == 0 || !missing(has)
}
