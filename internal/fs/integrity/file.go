package integrity

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"
)

// File has the sums of a file that is in use. Its methods may be called concurrently.
type File struct {
	store   *Store
	key     uint64 // its inode number
	birthNs int64
	uid     uint32       // its owner, whom Store.chunks charges
	refs    int          // guarded by Store.mu
	uses    atomic.Int64 // between Acquire and Release
	has     atomic.Bool
	gone    atomic.Bool // it has no name any more

	others   atomic.Uint64       // counts what other processes were seen to do that may change it
	modified atomic.Bool         // one of them was a change; until that was taken into account
	passing  atomic.Int32        // see Passing
	handle   string              // while it is watched; guarded by mu
	passed   map[int32]time.Time // threads whose next opening does not count, and since when; guarded by watch.mu

	mu        sync.Mutex
	stamp     stamp
	known     bool // stamp is the file's state after the last own change
	words     table
	tail      tail
	inFlux    int
	least     int64  // that the file must be long at its end
	drop      bool   // at the end of the flux everything is unknown
	epoch     uint64 // counts own changes
	cleared   uint64 // what others was when nobody else could change it any more
	top       degree // no word's is higher
	mapped    bool   // on tmpfs: a client may have it mapped
	sealed    bool   // nobody else could write to it when it had this stamp
	triedSeal time.Time
	writes    []*Write // in progress
	stream    *stream  // the range that the next piece of a sequential writer continues
	dirty     bool     // the log does not have it
}

// tail is the sum of the last range of a file, which the file's end cuts short. It holds while the file
// ends at end.
type tail struct {
	end int64
	word
}

// stream is the sum, so far, of the range that pos lies in.
type stream struct {
	pos int64
	xxh3.Hasher
}

func rangeOf(off int64) int64 { return off / RangeBytes }

// forget makes everything unknown.
func (f *File) forget() {
	if len(f.words) > 0 || f.tail != (tail{}) {
		f.dirty = true
	}
	f.giveBack()
	f.tail, f.stream = tail{}, nil
	f.has.Store(false)
}

// giveBack returns the chunks of its table.
func (f *File) giveBack() {
	if n := len(f.words); n > 0 {
		f.store.chunks.Return(f.uid, int64(n))
		f.words = make(table)
	}
}

// set sets a range's word, if there is memory for it; else the range stays unknown. f.mu is held.
func (f *File) set(k int64, w word) bool {
	f.top = max(f.top, w.degree())
	has := f.words.set(k, w, func() bool { return f.store.chunks.Take(f.uid, 1) })
	if !has {
		f.store.counters.forgotten.Add(1)
	}
	return has
}

// disturbed reports whether others may be able to change the file, as far as they were noted.
func (f *File) disturbed() bool { return f.others.Load() != f.cleared }

// alone reports whether nobody else can write to the file of fd, and notes that. f.mu is held.
func (f *File) alone(fd int) bool {
	// Before the lease: who opens it after that is noted later.
	f.listen()
	others := f.others.Load()
	if !unshared(fd) {
		return false
	}
	f.cleared = others
	return true
}

// listen takes into account what others have done up to now. f.mu is held.
func (f *File) listen() {
	f.store.watch.drain()
	if f.modified.Swap(false) {
		f.limit(soft) // it may have been during a flux
	}
}

// begin begins a change by the daemon: the file of fd is about to be written to. f.mu is held.
func (f *File) begin(fd int) {
	if f.inFlux == 0 {
		f.listen()
		alone := !f.disturbed() || f.alone(fd)
		if f.refresh(fd) && alone {
			f.cleared++ // who has changed it has left
		}
		switch {
		case !alone:
			f.limit(soft) // nobody could tell what they write from now on
		case f.sealed:
			f.limit(firm)
		}
		f.sealed = false
		f.least = f.stamp.size
	}
	f.inFlux++
	f.epoch++
}

// refresh drops everything if somebody else has changed the file, and reports whether that is so. f.mu is held, and the
// file is not in flux.
func (f *File) refresh(fd int) (changed bool) {
	now, err := look(fd)
	if err == nil && f.known && now == f.stamp {
		return false
	}
	if err == nil && f.known && now.sameBytes(f.stamp) {
		// A new name, or bytes of a file with the same times: cp -p sets them, rsync does.
		f.limit(soft)
		f.sealed, f.stamp, f.dirty = false, now, true
		return false
	}
	if f.has.Load() {
		f.store.counters.changed.Add(1)
	}
	f.forget()
	f.others.Add(1)
	f.sealed, f.stamp, f.known = false, now, err == nil
	return true
}

// end ends what begin has begun.
func (f *File) end(fd int) {
	if f.inFlux--; f.inFlux > 0 {
		return
	}
	drop := f.drop
	f.drop = false
	now, err := look(fd)
	if cut := now.size < f.least; drop || cut || err != nil {
		f.forget()
		if cut && !drop {
			f.others.Add(1)
		}
	}
	f.stamp, f.known, f.dirty = now, err == nil, true
	if f.tail.end != now.size {
		f.tail = tail{}
	}
	// After the look: what others did before it does not show in the file's times.
	if f.listen(); f.disturbed() || f.handle == "" {
		f.limit(soft)
	}
}

// Change runs fn, which changes the length of the file of fd, or bytes of it that nobody can tell:
// all sums are dropped.
func (f *File) Change(fd int, fn func() error) error {
	if f == nil {
		return fn()
	}
	f.mu.Lock()
	f.begin(fd)
	f.drop = true
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		f.drop = true
		f.end(fd)
		f.mu.Unlock()
	}()
	return fn()
}

// Touch runs fn, which changes the file's times and no bytes.
func (f *File) Touch(fd int, fn func() error) error {
	if f == nil {
		return fn()
	}
	f.mu.Lock()
	f.begin(fd)
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		f.end(fd)
		f.mu.Unlock()
	}()
	return fn()
}

// mayBeMapped says that a client may store into the file through a mapping from now on.
func (f *File) mayBeMapped() {
	if !f.store.memory {
		return // a first store moves the time of modification
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sealed = false
	f.limit(soft)
	if f.mapped {
		return // the log has no better ones
	}
	f.mapped, f.dirty = true, true
	if s := f.store; !s.opts.Readonly {
		// A daemon that is killed before it saves the soft ones must not leave better ones.
		s.failed(s.log.remove(f.key))
	}
}

// limit lowers every degree to at most d. f.mu is held.
func (f *File) limit(d degree) {
	if f.top <= d {
		return
	}
	f.top = d
	f.words.limit(d)
	f.tail.word = f.tail.atMost(d)
}

// degree is that of a sum of what was just written.
func (f *File) degree() degree {
	if f.disturbed() || f.mapped || f.handle == "" || !f.store.fine {
		return soft
	}
	return firm
}

const sealPeriod = 20 * time.Millisecond

// seal finds out whether nobody else can write to the file, whose stamp is right. f.mu is held, and the file is not in
// flux.
func (f *File) seal(fd int) {
	if f.sealed || time.Since(f.triedSeal) < sealPeriod {
		return
	}
	f.triedSeal = time.Now()
	if !f.alone(fd) {
		return
	}
	// After the lease: what a writer did who has left shows here.
	if f.refresh(fd) {
		f.cleared++
	}
	if f.known && (f.store.fine || f.stamp.old()) {
		f.sealed, f.mapped = true, false
	}
}
