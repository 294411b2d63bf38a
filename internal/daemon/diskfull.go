package daemon

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"
)

const (
	// fullEvery is how often the file system is asked how full it is.
	fullEvery = 2 * time.Second
	// fullQuiet is for how long no write must have failed before a disk counts as not full any more.
	fullQuiet = 30 * time.Second
	// fullPause is how long nothing is asked after an answer, however many writes fail: on some file systems each question is a call to a server.
	fullPause = 100 * time.Millisecond
)

// muchFree is more than an engine that has met a full disk gives back at once.
const muchFree = 1 << 30

// leastFree is less than most writes of KV cache need.
const leastFree = 1 << 20

// diskFull says once that the disk is full, and once that it is not any more, however many writes fail between. It asks the
// file system, since the daemon hears nothing while the kernel writes by itself.
type diskFull struct {
	dir   string
	ask   func(ctx context.Context, age time.Duration) (space, error) // as dataSpace.lookNow
	log   *slog.Logger
	wake  chan struct{}
	fails atomic.Int64

	since  time.Time // the disk is full; zero: it is not
	last   time.Time // of the last write that failed, as far as it was seen
	first  time.Time // of the writes that have failed with fullQuiet between none of them
	seen   int64     // of fails
	before int64     // of fails, when the disk became full
}

func newDiskFull(space *dataSpace, log *slog.Logger) *diskFull {
	return &diskFull{dir: space.dir, ask: space.lookNow, log: log, wake: make(chan struct{}, 1)}
}

// failed says that a write found no space. It returns at once.
func (d *diskFull) failed() {
	d.fails.Add(1)
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// run looks until ctx ends.
func (d *diskFull) run(ctx context.Context) {
	tick := time.NewTicker(fullEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-d.wake:
		}
		age := spaceAge
		if d.since.IsZero() && d.fails.Load() > d.seen {
			age = 0 // what was free a moment ago is not why a write has failed
		}
		look, cancel := context.WithTimeout(ctx, fullEvery)
		s, err := d.ask(look, age)
		cancel()
		if err == nil { // else others say that it hangs
			d.found(s, time.Now())
		}
		select {
		case <-ctx.Done():
		case <-time.After(fullPause):
		}
	}
}

func (d *diskFull) found(s space, now time.Time) {
	before := d.seen
	d.seen = d.fails.Load()
	if d.seen > before {
		if d.last.IsZero() || now.Sub(d.last) >= fullQuiet {
			d.first = now
		}
		d.last = now
	}
	least := int64(leastFree)
	if !d.since.IsZero() {
		least *= 2 // it does not go to and fro
	}
	bytes, files := s.bytes > 0 && s.freeBytes < least, s.files > 0 && s.freeFiles == 0
	// A disk that was full when a write failed has room once the engine has removed what it had written: that is no reason to blame a quota.
	// One that has little room and goes on refusing may be either.
	refusing, much := d.last.Sub(d.first), s.freeBytes >= muchFree
	refuses := !d.last.IsZero() && now.Sub(d.last) < fullQuiet && (!d.since.IsZero() || much && refusing >= fullEvery || refusing >= fullQuiet)
	switch full := bytes || files || refuses; {
	case full && d.since.IsZero():
		d.since, d.before = now, before
		msg, cure := "the disk of the data directory is full: saves fail with ENOSPC, and engines go on without them", "remove files, or give serve a --capacity below what others leave, so that it removes old ones"
		switch {
		case bytes || files:
		case !much:
			msg, cure = "writes to the data directory fail with ENOSPC, and its disk has little room", "remove files, or give serve a --capacity below what others leave; if that does not help, look for a quota of the file system, and at its blocks that are reserved for root"
		default:
			msg, cure = "writes to the data directory fail with ENOSPC although its disk has room for others", "look for a quota of the file system, and at its blocks that are reserved for root"
		}
		d.log.Error(msg, "data", d.dir, "free_bytes", s.freeBytes, "size_bytes", s.bytes, "free_files", s.freeFiles, "cure", cure)
	case !full && !d.since.IsZero():
		d.log.Info("the disk of the data directory has room again", "data", d.dir, "free_bytes", s.freeBytes, "size_bytes", s.bytes, "after", now.Sub(d.since).Round(time.Second), "failed_ring_writes", d.seen-d.before)
		d.since = time.Time{}
	}
}
