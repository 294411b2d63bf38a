package integrity

import (
	"github.com/zeebo/xxh3"

	"github.com/kv3fs/kv3fs/internal/shm"
)

// Write is a write of the daemon to a file, from BeginWrite to End.
type Write struct {
	file     *File
	fd       int
	off, end int64
	pos      int64    // up to which sums were taken
	from     []uint64 // sums of the ranges from the first on that begins in it, as far as they are whole
	array    [mostRanges]uint64
	stream   *stream // of the range that pos lies in; nil: nobody knows the bytes before, or there are none
	head     uint64  // sum of the first range, if it begins before off
	headDone bool
	failed   bool // the client has taken its memory away
	// Ranges that another write overlaps, whose order nobody knows; empty: shared[0] > shared[1].
	shared [2]int64
}

// mostRanges is for writes that need no memory: of 4 MiB and a bit.
const mostRanges = 34

// BeginWrite begins a write of n bytes at off, with w, which is used for nothing else until End. fd is open for as long
// as it takes. On a nil File it returns nil, on which every method does nothing.
func (f *File) BeginWrite(w *Write, fd int, off, n int64) *Write {
	if f == nil || n <= 0 {
		return nil
	}
	// Field by field: the array need not be cleared.
	w.file, w.fd, w.off, w.pos, w.end, w.shared = f, fd, off, off, off+n, [2]int64{1, 0}
	w.from, w.stream, w.headDone, w.failed = w.array[:0], nil, false, false
	f.mu.Lock()
	defer f.mu.Unlock()
	f.begin(fd)
	first, last := w.ranges()
	for _, other := range f.writes {
		a, b := other.ranges()
		if a, b = max(a, first), min(b, last); a <= b {
			w.share(a, b)
			other.share(a, b)
		}
	}
	f.writes = append(f.writes, w)
	if s := f.stream; s != nil {
		switch k := rangeOf(s.pos); {
		case s.pos == off:
			w.stream, f.stream = s, nil
		case first <= k && k <= last:
			f.stream = nil
		}
	}
	// A crash of the disk, or a reader, must not find the old ones.
	f.words.clear(first, last)
	if k := rangeOf(f.tail.end); first <= k && k <= last {
		f.tail = tail{}
	}
	return w
}

// ranges returns the first and the last range that the write touches.
func (w *Write) ranges() (first, last int64) { return rangeOf(w.off), rangeOf(w.end - 1) }

func (w *Write) share(a, b int64) {
	if w.shared[0] > w.shared[1] {
		w.shared = [2]int64{a, b}
		return
	}
	w.shared = [2]int64{min(w.shared[0], a), max(w.shared[1], b)}
}

// HashOwn is Hash for bytes of our own.
func (w *Write) HashOwn(b []byte) { w.Hash(shm.OwnWindow(b)) }

// Hash takes the sums of the next of the bytes that are written, of all of them in one call or several. It may be called
// before they are written or after; right after, the processor still has them in its cache.
func (w *Write) Hash(bytes shm.Window) {
	if w == nil || w.failed {
		return
	}
	w.failed = bytes.Len() > w.end-w.pos || bytes.Look(w.take) != nil
}

// take takes the sums of the next bytes.
func (w *Write) take(b []byte) {
	for len(b) > 0 {
		rest := w.pos % RangeBytes
		n := min(RangeBytes-rest, int64(len(b)))
		if n == RangeBytes {
			w.from = append(w.from, xxh3.Hash(b[:n]))
		} else {
			w.part(b[:n], rest)
		}
		b, w.pos = b[n:], w.pos+n
	}
}

// part takes in a part of the range that pos lies in, rest bytes behind its beginning.
func (w *Write) part(b []byte, rest int64) {
	if rest == 0 {
		w.stream = &stream{}
	}
	if w.stream == nil {
		return // nobody knows what is before it
	}
	_, _ = w.stream.Write(b)
	if w.stream.pos = w.pos + int64(len(b)); w.stream.pos%RangeBytes != 0 {
		return
	}
	sum := w.stream.Sum64()
	w.stream = nil
	if rangeOf(w.pos) == rangeOf(w.off) && w.off%RangeBytes != 0 {
		w.head, w.headDone = sum, true
		return
	}
	w.from = append(w.from, sum)
}

// End ends the write. ok says that all of it is in the file, and that nothing has taken the client's memory away
// meanwhile.
func (w *Write) End(ok bool) {
	if w == nil {
		return
	}
	f := w.file
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, other := range f.writes {
		if other == w {
			f.writes[i] = f.writes[len(f.writes)-1]
			f.writes[len(f.writes)-1] = nil
			f.writes = f.writes[:len(f.writes)-1]
			break
		}
	}
	if ok {
		f.least = max(f.least, w.end)
	}
	if ok && !w.failed && w.pos == w.end && !f.drop {
		w.keep()
	}
	f.end(w.fd)
}

// keep notes the sums.
func (w *Write) keep() {
	f, d := w.file, w.file.degree()
	set := func(k int64, sum uint64) {
		if w.shared[0] <= k && k <= w.shared[1] {
			return
		}
		if f.set(k, newWord(sum, d)) {
			f.has.Store(true)
		}
	}
	first, last := w.ranges()
	if w.headDone {
		set(first, w.head)
	}
	for i, sum := range w.from {
		set(rangeOf(w.off+RangeBytes-1)+int64(i), sum)
	}
	if w.stream == nil || w.shared[0] <= last && last <= w.shared[1] {
		return
	}
	f.stream = w.stream
	if w.end > f.tail.end {
		f.tail, f.top = tail{w.end, newWord(w.stream.Sum64(), d)}, max(f.top, d) // end drops it if the file goes on
		f.has.Store(true)
	}
}
