package integrity

import (
	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/shm"
)

// Read is a read of a file, from BeginRead to End: some of its ranges have sums. The zero value has none.
type Read struct {
	file    *File
	fd      int
	epoch   uint64
	size    int64
	sealed  bool // before the read began
	first   int64
	words   []word // of the ranges from first on
	array   [mostRanges]word
	checked int  // of words; those that did not match are 0
	matched bool // some that are not confirmed
	// verified is how many bytes were compared.
	verified int64
}

// Damage is a range of a file that is not what was written.
type Damage struct {
	Off, Bytes int64
	// Certain: what was stored has changed, and nobody has written to the file. Otherwise the
	// range has never been read as it should be, and the client that wrote it may have
	// changed its memory at the time, or another process the file.
	Certain bool
}

// BeginRead begins a read of n bytes at off. fd is open for reading until End. It reports false if there is
// nothing to compare, and then End need not be called.
func (f *File) BeginRead(r *Read, fd int, off, n int64) bool {
	if f == nil || !f.has.Load() {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.inFlux > 0 || !f.known {
		return false
	}
	// Field by field: the array need not be cleared.
	r.file, r.fd, r.first, r.checked, r.matched, r.verified = f, fd, rangeOf(off+RangeBytes-1), 0, false, 0
	end := rangeOf(off + n)
	if f.tail.word != 0 && off+n >= f.tail.end {
		end = rangeOf(f.tail.end) + 1
	}
	if !r.snapshot(end) {
		return false
	}
	if !f.sealed && r.unconfirmed() {
		if f.seal(fd); !r.snapshot(end) {
			return false
		}
	}
	r.epoch, r.sealed = f.epoch, f.sealed
	return true
}

// snapshot copies the words up to a range and reports whether there are any.
func (r *Read) snapshot(end int64) (any bool) {
	r.words, r.size = r.array[:0], r.file.stamp.size
	for k := r.first; k < end; k++ {
		w := r.file.wordOf(k)
		r.words = append(r.words, w)
		any = any || w != 0
	}
	return any
}

func (r *Read) unconfirmed() bool {
	for _, w := range r.words {
		if d := w.degree(); d == soft || d == firm {
			return true
		}
	}
	return false
}

// wordOf returns the word of a range, be it whole or the last.
func (f *File) wordOf(k int64) word {
	if k == rangeOf(f.tail.end) && f.tail.word != 0 {
		return f.tail.word
	}
	return f.words.get(k)
}

// Check compares what was read at off into a window. It returns the first damage. What it finds to be right
// in the file, but not in the window, it puts there.
func (r *Read) Check(bytes shm.Window, off int64) (bad Damage, found bool) {
	for k := rangeOf(off + RangeBytes - 1); k-r.first < int64(len(r.words)); k++ {
		w := r.words[k-r.first]
		begin := k * RangeBytes
		n := min(RangeBytes, r.size-begin)
		if begin+n > off+bytes.Len() {
			break
		}
		r.checked = int(k-r.first) + 1
		if w == 0 || n <= 0 {
			continue
		}
		part := bytes.From(begin - off).First(n)
		var sum uint64
		if part.Look(func(b []byte) { sum = xxh3.Hash(b) }) != nil {
			r.words[k-r.first] = 0
			continue // the client has taken its memory away
		}
		r.verified += n
		if w.is(sum) {
			r.matched = r.matched || w.degree() != confirmed
			continue
		}
		r.words[k-r.first] = 0
		if d := r.doubt(part, k, n, w); d != unknown {
			return Damage{Off: begin, Bytes: n, Certain: d == confirmed}, true
		}
	}
	return Damage{}, false
}

// doubt looks again at a range that seems to differ, in memory of our own. It returns unknown where
// nothing is wrong, or nobody can tell.
func (r *Read) doubt(part shm.Window, k, n int64, w word) degree {
	f := r.file
	passing := f.passing.Load() > 0 // before the look at what others did
	own := make([]byte, n)
	got, err := readAll(r.fd, own, k*RangeBytes)
	if err == nil && got == n && w.is(xxh3.Hash(own)) {
		_ = part.Fill(own) // where it is gone, there is nobody to be misled
		return unknown
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.epoch != r.epoch || f.inFlux > 0 {
		return unknown
	}
	f.listen()
	if f.refresh(r.fd); f.wordOf(k) != w {
		return unknown // or no more than soft
	}
	switch w.degree() {
	case confirmed:
		f.store.counters.damaged.Add(1)
	case firm:
		if passing {
			return unknown // the kernel may be about to tell of a write
		}
		f.store.counters.doubtful.Add(1)
	default:
		f.store.counters.unsure.Add(1)
		f.setWord(k, 0)
		return unknown
	}
	return w.degree()
}

func (f *File) setWord(k int64, w word) {
	f.dirty = true
	if k == rangeOf(f.tail.end) && f.tail.word != 0 {
		f.tail.word, f.top = w, max(f.top, w.degree())
		return
	}
	f.set(k, w)
}

// End ends the read.
func (r *Read) End() {
	r.file.store.counters.verified.Add(r.verified)
	if !r.matched || !r.sealed {
		return
	}
	f := r.file
	proven := confirmed
	if f.store.memory {
		proven = firm // a later mapping need not show
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.epoch != r.epoch || !f.sealed {
		return
	}
	for i, w := range r.words[:r.checked] {
		k := r.first + int64(i)
		if w.degree() != unknown && w.degree() < proven && f.wordOf(k) == w {
			f.setWord(k, newWord(uint64(w), proven))
		}
	}
}

// readAll reads into b up to the end of the file.
func readAll(fd int, b []byte, off int64) (n int64, err error) {
	for n < int64(len(b)) {
		got, err := unix.Pread(fd, b[n:], off+n)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return n, err
		case got == 0:
			return n, nil
		}
		n += int64(got)
		if n%4096 != 0 {
			return n, nil // a direct read goes on from pages only, and this is the end of the file
		}
	}
	return n, nil
}
