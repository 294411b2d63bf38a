package integrity

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
)

// The log has the sums of files that are not in use: segments of records, only ever appended to. The last
// record of an inode counts. Nothing is synced on the way: a record that a crash loses makes its file unknown, as does
// one that a later change of the file has overtaken. What is damaged ends its segment. The oldest segment is
// copied and removed once more than half of the log is dead, or segments are many for what they have; so a record that
// says that an inode is gone outlives what it is about.
type log struct {
	dir   string
	write bool

	mu       sync.Mutex
	segments []*segment // oldest first; the last one is appended to, unless it is full
	numbered map[uint64]*segment
	index    map[uint64]place // by inode
	live     int64            // bytes of what index names
	buf      []byte

	segmentBytes int64 // from which on a segment is not appended to
}

type segment struct {
	number uint64
	file   *os.File
	bytes  int64
	full   bool // it is not appended to
}

// place is where an inode's record lies: the segment's number, the offset, and the size, or sizeElsewhere if it does not
// fit. Offsets and sizes are multiples of unitBytes. There may be millions, so it is small; 0 is no place.
type place uint64

const (
	unitBytes     = 8
	sizeBits      = 16
	offBits       = 22 // a record begins within the first 32 MiB of its segment
	sizeElsewhere = 1<<sizeBits - 1
	mostSegment   = unitBytes << offBits
)

func placeOf(s *segment, off int64, size int) place {
	units := min(uint64(size/unitBytes), sizeElsewhere)
	return place(s.number<<(offBits+sizeBits) | uint64(off/unitBytes)<<sizeBits | units)
}

func (p place) segment() uint64 { return uint64(p >> (offBits + sizeBits)) }
func (p place) off() int64      { return int64(p>>sizeBits) & (1<<offBits - 1) * unitBytes }

// bytesLocked returns the size of the record at a place.
func (l *log) bytesLocked(p place) int64 {
	if units := int64(p & sizeElsewhere); units < sizeElsewhere {
		return units * unitBytes
	}
	head := make([]byte, headBytes)
	s := l.numbered[p.segment()]
	if s == nil {
		return 0
	}
	if _, err := s.file.ReadAt(head, p.off()); err != nil {
		return 0
	}
	return int64(order.Uint32(head[4:]))
}

const (
	defaultSegment = 16 << 20
	// spareSegments may be dead, or small, in any case.
	spareSegments  = 4
	segmentSuffix  = ".sums"
	segmentDigits  = 16
	mostRecordSize = 1 << 30
)

// openLog reads the log in dir, which is made if need be and write is set.
func openLog(dir string, write bool) (*log, error) {
	l := &log{dir: dir, write: write, segmentBytes: defaultSegment, numbered: make(map[uint64]*segment), index: make(map[uint64]place)}
	if write {
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
	}
	how := os.O_RDONLY
	if write {
		how = os.O_RDWR
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !(errors.Is(err, fs.ErrNotExist) && !write) {
		return nil, err
	}
	for _, e := range entries {
		digits, isOurs := cutSuffix(e.Name())
		number, err := strconv.ParseUint(digits, 16, 64)
		if !isOurs || err != nil || len(digits) != segmentDigits {
			continue
		}
		file, err := os.OpenFile(filepath.Join(dir, e.Name()), how, 0)
		if err != nil {
			l.close()
			return nil, err
		}
		l.segments = append(l.segments, &segment{number: number, file: file, full: true})
	}
	slices.SortFunc(l.segments, func(a, b *segment) int { return cmp.Compare(a.number, b.number) })
	end := int64(-1)
	for _, s := range l.segments {
		l.numbered[s.number] = s
		end = l.scan(s)
	}
	if write {
		l.tidy(end)
	}
	return l, nil
}

// tidy goes on with the last segment, whose records end there, and removes those that have nothing: a daemon
// that starts and dies again and again must not leave one each time.
func (l *log) tidy(end int64) {
	if end >= 0 && end < l.segmentBytes {
		// What is behind its last good record, as a crash leaves it, would hide what is appended.
		last := l.segments[len(l.segments)-1]
		if last.file.Truncate(end) == nil {
			last.bytes, last.full = end, false
		}
	}
	l.segments = slices.DeleteFunc(l.segments, func(s *segment) bool {
		st, err := s.file.Stat()
		if err != nil || st.Size() > 0 || os.Remove(s.file.Name()) != nil {
			return false
		}
		delete(l.numbered, s.number)
		_ = s.file.Close() // it has nothing
		return true
	})
}

func cutSuffix(name string) (string, bool) {
	n := len(name) - len(segmentSuffix)
	if n < 0 || name[n:] != segmentSuffix {
		return "", false
	}
	return name[:n], true
}

// scan indexes the records of a segment, up to the first that is damaged, and returns where it ended; negative: the
// segment cannot be read.
func (l *log) scan(s *segment) (end int64) {
	b, err := os.ReadFile(s.file.Name())
	s.bytes = int64(len(b))
	if err != nil {
		return -1 // unknown
	}
	for off := 0; ; {
		n, ino, gone, ok := recordAt(b[off:])
		if !ok || off >= mostSegment || n%unitBytes != 0 {
			return int64(off)
		}
		l.note(ino, gone, placeOf(s, int64(off), n), n)
		off += n
	}
}

func (l *log) note(ino uint64, gone bool, p place, bytes int) {
	l.live -= l.bytesLocked(l.index[ino])
	if gone {
		delete(l.index, ino)
		return
	}
	l.index[ino] = p
	l.live += int64(bytes)
}

// put appends the record of an inode.
func (l *log) put(r *record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf = r.append(l.buf[:0])
	return l.appendLocked(l.buf, r.stamp.ino, false)
}

// remove forgets an inode.
func (l *log) remove(ino uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, has := l.index[ino]; !has {
		return nil
	}
	l.buf = appendGone(l.buf[:0], ino)
	return l.appendLocked(l.buf, ino, true)
}

func (l *log) appendLocked(b []byte, ino uint64, gone bool) error {
	if len(b) > mostRecordSize {
		return fmt.Errorf("the sums of one file take %d bytes", len(b))
	}
	s, err := l.openLocked()
	if err != nil {
		return err
	}
	if _, err := s.file.WriteAt(b, s.bytes); err != nil {
		// What is there of it would end the segment. A full disk must not get one more for each record.
		s.full = s.file.Truncate(s.bytes) != nil
		return err
	}
	l.note(ino, gone, placeOf(s, s.bytes, len(b)), len(b))
	s.bytes += int64(len(b))
	s.full = s.bytes >= l.segmentBytes
	if cap(l.buf) > defaultSegment {
		l.buf = nil
	}
	return nil
}

// openLocked returns the segment that is appended to.
func (l *log) openLocked() (*segment, error) {
	number := uint64(1)
	if n := len(l.segments); n > 0 {
		last := l.segments[n-1]
		if !last.full {
			return last, nil
		}
		number = last.number + 1
	}
	file, err := os.OpenFile(filepath.Join(l.dir, fmt.Sprintf("%0*x", segmentDigits, number)+segmentSuffix), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	s := &segment{number: number, file: file}
	l.segments = append(l.segments, s)
	l.numbered[number] = s
	return s, nil
}

// get returns the last record of an inode, or nil.
func (l *log) get(ino uint64) *record {
	l.mu.Lock()
	defer l.mu.Unlock()
	p, has := l.index[ino]
	if !has {
		return nil
	}
	b := l.readLocked(p)
	r := &record{}
	if b == nil || !r.parse(b) {
		return nil
	}
	return r
}

func (l *log) readLocked(p place) []byte {
	s := l.numbered[p.segment()]
	b := make([]byte, l.bytesLocked(p))
	if s == nil || len(b) == 0 {
		return nil
	}
	if _, err := s.file.ReadAt(b, p.off()); err != nil {
		return nil
	}
	if _, _, gone, ok := recordAt(b); !ok || gone {
		return nil
	}
	return b
}

// compact removes the oldest segment if too much of the log is dead, or too many segments are small, and reports
// whether it did.
func (l *log) compact() (bool, error) {
	l.mu.Lock()
	total := int64(0)
	for _, s := range l.segments {
		total += s.bytes
	}
	dead := total > 2*l.live+spareSegments*l.segmentBytes
	// Each that is not small adds one to the right side. So this ends, at last when all have been copied.
	small := int64(len(l.segments)) > total/l.segmentBytes+spareSegments
	if !l.write || len(l.segments) < 2 || !dead && !small {
		l.mu.Unlock()
		return false, nil
	}
	oldest := l.segments[0]
	var inos []uint64
	for ino, p := range l.index {
		if p.segment() == oldest.number {
			inos = append(inos, ino)
		}
	}
	l.mu.Unlock()
	for _, ino := range inos {
		if err := l.move(ino, oldest); err != nil {
			return false, err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.segments = l.segments[1:]
	delete(l.numbered, oldest.number)
	_ = oldest.file.Close()
	return true, os.Remove(oldest.file.Name())
}

func (l *log) move(ino uint64, from *segment) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	p, has := l.index[ino]
	if !has || p.segment() != from.number {
		return nil
	}
	b := l.readLocked(p)
	if b == nil {
		l.note(ino, true, 0, 0)
		return nil
	}
	return l.appendLocked(b, ino, false)
}

func (l *log) files() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.index)
}

func (l *log) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.segments {
		_ = s.file.Close()
	}
	l.segments = nil
}
