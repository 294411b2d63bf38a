package integrity

import (
	"context"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/shm"
)

// Scrubber reads files to compare them with their checksums. One goroutine at a time may use it.
type Scrubber struct {
	store *Store
	buf   []byte // page-aligned
}

// scrubBytes is read at once.
const scrubBytes = 8 * RangeBytes

// NewScrubber returns a Scrubber. The caller closes it.
func (s *Store) NewScrubber() (*Scrubber, error) {
	buf, err := unix.Mmap(-1, 0, scrubBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, err
	}
	return &Scrubber{s, buf}, nil
}

// Close gives back its memory.
func (c *Scrubber) Close() { _ = unix.Munmap(c.buf) }

// File reads an open file. direct is a descriptor of the same file with O_DIRECT, or negative: the page cache may have
// bytes that the disk has no more. It calls turn after each piece, and found for each damage; their errors end it, as
// does an error of a read.
func (c *Scrubber) File(ctx context.Context, fd, direct int, turn func(read, verified int64) error, found func(Damage) error) error {
	f := c.store.Acquire(fd, false)
	if f == nil {
		return nil
	}
	defer c.store.Release(f)
	for off := int64(0); ctx.Err() == nil; off += scrubBytes {
		var more bool
		if off, more = nextData(fd, off); !more {
			return nil
		}
		n, verified, err := c.piece(f, fd, direct, off, found)
		if err != nil {
			return err
		}
		if err := turn(n, verified); err != nil {
			return err
		}
		if n < scrubBytes {
			return nil
		}
	}
	return ctx.Err()
}

// nextData returns where the piece begins that has the first bytes from off on, and whether there are any: nobody is to wait
// for the holes of a sparse file, whose sizes cost nothing. They have no sums, since whatever is written is no hole.
func nextData(fd int, off int64) (at int64, more bool) {
	data, err := unix.Seek(fd, off, unix.SEEK_DATA)
	switch {
	case err == unix.ENXIO:
		return off, false
	case err != nil:
		return off, true
	}
	return max(off, data/scrubBytes*scrubBytes), true
}

// piece reads and compares what is at off.
func (c *Scrubber) piece(f *File, fd, direct int, off int64, found func(Damage) error) (n, verified int64, err error) {
	var r Read
	checks := f.BeginRead(&r, fd, off, scrubBytes)
	n, err = -1, unix.EINVAL
	if direct >= 0 {
		n, err = readAll(direct, c.buf, off)
	}
	if err == unix.EINVAL {
		n, err = readAll(fd, c.buf, off)
	}
	if err != nil || !checks {
		return max(n, 0), 0, err
	}
	defer r.End()
	for at := int64(0); at < n; {
		bad, is := r.Check(shm.OwnWindow(c.buf[at:n]), off+at)
		if !is {
			break
		}
		if err := found(bad); err != nil {
			return n, r.verified, err
		}
		at = bad.Off + bad.Bytes - off
	}
	return n, r.verified, nil
}
