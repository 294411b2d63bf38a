package blockio

import (
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/shm"
)

// readShared reads directly, and what is not aligned through the page cache, which forgets it first: what
// another request reads into it meanwhile is as new. GlusterFS accepts direct I/O of any alignment and loses
// what its bricks' disks do not like.
func readShared(f File, w shm.Window, windowOff, off int64) (done int64, err error) {
	if fd, ok := f.DirectFD(); ok && aligned(windowOff, off, w.Len()) {
		for done < w.Len() && done%SectorBytes == 0 {
			n, err := w.From(done).Pread(fd, off+done)
			if err == unix.EFAULT || refusesDirect(err) {
				break // behind the file's end, a part of the window may not be there
			}
			if err != nil || n == 0 {
				return done, err
			}
			done += n
		}
	}
	if done == w.Len() {
		return done, nil
	}
	Forget(f.FD())
	rest, err := readFull(f.FD(), w.From(done), off+done)
	return done + rest, err
}

// writeShared writes so that other requests and, with sync, other hosts read it.
func writeShared(f File, w shm.Window, windowOff, off int64, sync bool) (n int64, err error) {
	fd, direct := f.DirectFD()
	direct = direct && aligned(windowOff, off, w.Len())
	if direct {
		n, err = writeFull(fd, w, off)
		if err == nil && sync {
			err = unix.Fdatasync(fd)
		}
	}
	if direct && !refusesDirect(err) {
		return n, err
	}
	// What surrounds the bytes in their pages may be old, and must not be written with them.
	Forget(f.FD())
	n, err = writeFull(f.FD(), w, off)
	if err == nil {
		err = unix.Fdatasync(f.FD())
	}
	Forget(f.FD())
	return n, err
}

// Forget drops what the page cache has of a file, and need not write back. It is the whole file because the kernel
// keeps what is not in the range as a whole, and what it has read ahead comes in pieces of many pages.
func Forget(fd int) {
	_ = unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED) // fails only for pipes
}
