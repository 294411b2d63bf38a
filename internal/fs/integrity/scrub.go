package integrity

import (
	"context"
	"maps"
	"math"
	"slices"

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
	defer c.store.Release(f, fd)
	chunks := f.chunks()
	for off := int64(0); ctx.Err() == nil; off += scrubBytes {
		var more bool
		if off, more = f.nextPiece(chunks, fd, off); !more {
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

// nextPiece returns where the piece begins that has the first bytes from off on, and whether there are any: nobody is to wait
// for the holes of a sparse file, whose sizes cost nothing. What is written is no hole, so a hole that has sums was
// data, which the disk has lost: that is read. chunks are those of the file's table when the scrub began.
func (f *File) nextPiece(chunks []int64, fd int, off int64) (at int64, more bool) {
	data, err := unix.Seek(fd, off, unix.SEEK_DATA)
	switch more = err != unix.ENXIO; {
	case !more:
		data = math.MaxInt64
	case err != nil:
		return off, true
	}
	if k, has := f.firstKnown(chunks, rangeOf(off), rangeOf(data)); has {
		data, more = k*RangeBytes, true
	}
	if !more {
		return off, false
	}
	return max(off, data/scrubBytes*scrubBytes), true
}

// chunks lists the chunks of the table, in order.
func (f *File) chunks() []int64 {
	f.mu.Lock()
	all := slices.Collect(maps.Keys(f.words))
	f.mu.Unlock()
	slices.Sort(all)
	return all
}

// firstKnown returns the first range with a sum from first on and before end, which lies in one of chunks or is the last.
func (f *File) firstKnown(chunks []int64, first, end int64) (k int64, has bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if last := rangeOf(f.tail.end); f.tail.word != 0 && first <= last && last < end {
		end, k, has = last, last, true
	}
	i, _ := slices.BinarySearch(chunks, first/chunkRanges)
	for ; i < len(chunks) && chunks[i]*chunkRanges < end; i++ {
		for k := max(first, chunks[i]*chunkRanges); k < min(end, (chunks[i]+1)*chunkRanges); k++ {
			if f.words.get(k) != 0 {
				return k, true
			}
		}
	}
	return k, has
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
