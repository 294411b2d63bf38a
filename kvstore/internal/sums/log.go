package sums

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// windowBytes is how much of a log is read at a time. The first read is only lookBytes:
// most often there is nothing new.
const (
	windowBytes = 1 << 20
	lookBytes   = 4 << 10

	pageBytes = 4 << 10 // what the kernel reads at least
)

// log is one log file.
type log struct {
	name string
	f    *os.File
	data io.ReaderAt // f
	ino  uint64
	end  int64 // of the last good record read or written
	gap  gap
}

// gap is where reading had to leave something out. It is read again later: the file system may have been away.
type gap struct {
	at    int64 // where reading is to begin again
	to    int64 // and to end: behind that, all was read
	open  bool
	next  time.Time
	pause time.Duration
}

const (
	firstPause = time.Second
	mostPause  = time.Hour
)

// leaveOut notes that what is at an offset could not be read.
func (g *gap) leaveOut(at int64) {
	if g.open {
		return
	}
	g.pause = min(max(2*g.pause, firstPause), mostPause)
	g.at, g.open, g.next = at, true, time.Now().Add(g.pause)
}

// openLog opens a log that exists.
func openLog(path string, flags int) (*log, error) {
	f, err := os.OpenFile(path, flags, 0o644)
	if err != nil {
		return nil, err
	}
	l := &log{f: f, data: f}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		f.Close()
		return nil, fmt.Errorf("stat %s: %w", path, err)
	}
	l.ino = st.Ino
	return l, nil
}

// lock makes the log this process's own, and reports whether it could: it fails while the
// process that owns the log is alive.
func (l *log) lock() bool {
	return unix.Flock(int(l.f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
}

// mayPass reports whether there is a gap that has not been there for long.
func (g *gap) mayPass() bool { return g.open && g.pause < mostPause }

// readGap is read from where something could not be read before, if it is time to try that again. It may call
// found again for records that were found before.
func (l *log) readGap(now time.Time, found func(at int64, r *record)) error {
	if !l.gap.open || now.Before(l.gap.next) {
		return nil
	}
	to := l.gap.to
	again := log{f: l.f, data: io.NewSectionReader(l.data, 0, to), end: l.gap.at, gap: gap{pause: l.gap.pause}}
	err := again.read(found)
	if l.gap = again.gap; err != nil {
		l.gap.leaveOut(again.end)
		l.gap.to = to
	}
	return err
}

// read calls found for every record since the last read, until the file ends. What cannot be
// read is left out for now, and is the log's gap.
func (l *log) read(found func(at int64, r *record)) error {
	skip := int64(pageBytes)
	for window := make([]byte, lookBytes); ; {
		n, err := l.data.ReadAt(window, l.end)
		unreadable := kv.IsUnreadable(err)
		if err != nil && !unreadable && !errors.Is(err, io.EOF) {
			return fmt.Errorf("read %s: %w", l.f.Name(), err)
		}
		base := l.end
		l.end += int64(scan(window[:n], func(at int, r *record) { found(base+int64(at), r) }))
		if unreadable {
			l.gap.leaveOut(l.end)
			more, err := l.skip(base+int64(n), skip)
			l.gap.to = max(l.gap.to, l.end+mostBytes) // with a record that began before
			if !more || err != nil {
				return err
			}
			skip = min(2*skip, windowBytes) // each attempt may take the disk seconds
			continue
		}
		skip = pageBytes
		if n < len(window) {
			return nil
		}
		if len(window) < windowBytes {
			window = make([]byte, windowBytes)
			continue
		}
		if l.end == base { // nothing but damage, and perhaps the beginning of a record
			l.end += windowBytes - (mostBytes+alignBytes-1)/alignBytes*alignBytes
		}
	}
}

// skip has the next read begin so many bytes behind the page at an offset, which cannot be
// read, or where the file ends if that is before. It reports whether it is not.
func (l *log) skip(at, bytes int64) (more bool, err error) {
	st, err := l.f.Stat()
	if err != nil {
		return false, err
	}
	size := (st.Size() + alignBytes - 1) / alignBytes * alignBytes
	next := at/pageBytes*pageBytes + bytes
	l.end = max(l.end, min(next, size))
	return next < size, nil
}

// errDamaged says that a record that was read before has been damaged since, errUnread that it cannot be
// read now.
var (
	errDamaged = errors.New("a damaged record")
	errUnread  = errors.New("a record that cannot be read")
)

// at reads again a record of a block with this key and shape. Anything else in its place is
// damage: the file was cut, overwritten or exchanged while it was open.
func (l *log) at(offset int64, key kv.Key, shape Shape) (record, error) {
	var r record
	raw := make([]byte, leastBytes+8*shape.Shards)
	_, err := l.data.ReadAt(raw, offset)
	switch {
	case err == nil, errors.Is(err, io.EOF):
	case kv.IsUnreadable(err):
		return r, fmt.Errorf("read %s: %w at %d: %w", l.f.Name(), errUnread, offset, err)
	default:
		return r, fmt.Errorf("read %s: %w", l.f.Name(), err)
	}
	if err != nil || !r.decode(raw) || r.forget || r.key != key || r.shape != shape {
		return record{}, fmt.Errorf("read %s: %w at %d", l.f.Name(), errDamaged, offset)
	}
	return r, nil
}

// removed reports whether the log file was removed: no other process reads it any more.
func (l *log) removed() bool {
	var st unix.Stat_t
	return unix.Fstat(int(l.f.Fd()), &st) == nil && st.Nlink == 0
}

// append writes at the log's end, all or nothing.
func (l *log) append(raw []byte) error {
	n, err := l.f.WriteAt(raw, l.end)
	if err != nil {
		if n > 0 {
			_ = l.f.Truncate(l.end) // if that fails, readers skip the torn record
		}
		return fmt.Errorf("write %s: %w", l.f.Name(), err)
	}
	l.end += int64(len(raw))
	return nil
}

// mend cuts off the record that a dead writer left half-written.
func (l *log) mend() error {
	st, err := l.f.Stat()
	if err != nil || st.Size() == l.end {
		return err
	}
	return l.f.Truncate(l.end)
}
