package segment

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/kvstore/internal/blockhead"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// scanners is how many segments are scanned at once.
const scanners = 8

// open claims the directory and reads what is in it.
func (s *Store) open() (err error) {
	if s.heads, err = newHeads(s.o.Timeout); err != nil {
		return err
	}
	if s.newHeads, err = newHeads(s.o.Timeout); err != nil {
		return err
	}
	if s.dir, err = claim(s.o.Dir); err != nil {
		return err
	}
	l, capacity := s.o.Layout, s.o.CapacityBytes
	s.geo, err = s.dir.superblock(l, s.o.SegmentBytes, func() int64 { return chooseSegmentBytes(capacity, l) })
	if err != nil {
		return err
	}
	if s.dir.damage != nil {
		s.log.Warn("segment store: the superblock was damaged, and is repaired", "dir", s.o.Dir, "err", s.dir.damage)
	}
	count := segmentsFor(capacity, s.geo.segmentBytes)
	if count < minSegments {
		return fmt.Errorf("segment store: a capacity of %d bytes has space for %d segments of %d bytes, and at least %d are needed: give it %d bytes, or smaller segments",
			capacity, count, s.geo.segmentBytes, minSegments, ownBytes+minSegments*onDiskBytes(s.geo.segmentBytes))
	}
	if int64(count)*int64(s.geo.slots) > maxSlots {
		return fmt.Errorf("segment store: a capacity of %d bytes has space for more than %d blocks of %d bytes; make it smaller", capacity, maxSlots, l.BlockBytes)
	}
	if err := s.openSegments(count); err != nil {
		return err
	}
	s.table = newTable(len(s.segments) * s.geo.slots)
	return s.rebuild()
}

// openSegments opens the directory's segments, and makes as many as are missing. Those
// that do not fit the capacity are deleted first, oldest first.
func (s *Store) openSegments(count int) error {
	numbers, err := numbersIn(s.dir.path)
	if err != nil {
		return err
	}
	if s.dir.isNew {
		if err := s.dir.initialise(s.geo); err != nil {
			return err
		}
	}
	for _, number := range numbers {
		f, err := os.OpenFile(s.dir.file(number), os.O_RDWR, 0)
		if err != nil {
			return fmt.Errorf("segment store: %w", err)
		}
		seg := &segment{number: number, file: f}
		s.segments = append(s.segments, seg)
		if err := s.readHeader(seg); err != nil {
			return err
		}
	}
	if surplus := len(s.segments) - count; surplus > 0 {
		slices.SortFunc(s.segments, byGeneration)
		for _, seg := range s.segments[:surplus] {
			if err := errors.Join(os.Remove(seg.file.Name()), seg.file.Close()); err != nil {
				return fmt.Errorf("segment store: %w", err)
			}
		}
		s.segments = slices.Delete(s.segments, 0, surplus)
	}
	if err := s.makeMissing(count); err != nil {
		return err
	}
	for i, seg := range s.segments {
		seg.first = uint32(i * s.geo.slots)
		// The engine gets a descriptor of its own, whose flags it may change.
		f, err := os.OpenFile(seg.file.Name(), os.O_RDWR, 0)
		if err != nil {
			return fmt.Errorf("segment store: %w", err)
		}
		if seg.data, err = s.engine.Open(f); err != nil {
			return fmt.Errorf("segment store: %s: %w", f.Name(), err)
		}
	}
	return nil
}

func byGeneration(a, b *segment) int {
	return cmp.Or(cmp.Compare(a.generation, b.generation), cmp.Compare(a.number, b.number))
}

// readHeader reads a segment's header. One that has none, or a damaged one, or that of
// another file, is free: its generation is 0.
func (s *Store) readHeader(seg *segment) error {
	page := make([]byte, pageBytes)
	_, err := seg.file.ReadAt(page, 0)
	if err != nil && err != io.EOF {
		return fmt.Errorf("segment store: %w", err)
	}
	var h record
	err = h.decode(headerMagic, page)
	if err == nil && (h.number != seg.number || h.layout != s.geo.layout || h.segmentBytes != s.geo.segmentBytes) {
		err = fmt.Errorf("it is the header of segment %d", h.number)
	}
	if err != nil {
		seg.blank = err == errNoRecord
		if err != errNoRecord {
			s.log.Warn("segment store: a segment's header is damaged; its blocks are lost", "file", seg.file.Name(), "err", err)
		}
		return nil
	}
	seg.generation = h.generation
	seg.state = full
	if written, err := seg.file.Stat(); err == nil && time.Since(written.ModTime()) < 2*mostUnflushed {
		seg.unflushed = time.Now() // what is older, the last process or the kernel has written
	}
	seg.foreign = h.namespace != s.o.Namespace
	return nil
}

// makeMissing reserves space for all segments. If there is too little, it leaves the
// directory as it was.
func (s *Store) makeMissing(count int) (err error) {
	var made []string
	defer func() {
		if err == nil {
			return
		}
		for _, name := range made {
			err = errors.Join(err, os.Remove(name))
		}
		if s.dir.isNew {
			err = errors.Join(err, os.Remove(filepath.Join(s.dir.path, superName)), s.dir.undo())
		}
	}()
	if err := s.askForSpace(count); err != nil {
		return err
	}
	for _, seg := range s.segments {
		if err := s.o.reserve(seg.file, s.geo.segmentBytes); err != nil {
			return s.noSpace(seg.file, count, err)
		}
	}
	for number := uint32(0); len(s.segments) < count; number++ {
		f, err := os.OpenFile(s.dir.file(number), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("segment store: %w", err)
		}
		made = append(made, f.Name())
		s.segments = append(s.segments, &segment{number: number, file: f, blank: true})
		if err := s.o.reserve(f, s.geo.segmentBytes); err != nil {
			return s.noSpace(f, count, err)
		}
	}
	if len(made) > 0 {
		if err := s.dir.sync(); err != nil {
			return fmt.Errorf("segment store: %w", err)
		}
	}
	return nil
}

// askForSpace refuses a capacity for which the file system has too little space, before
// anything is taken.
func (s *Store) askForSpace(count int) error {
	needBytes := int64(count) * s.geo.segmentBytes
	for _, seg := range s.segments {
		var st unix.Stat_t
		if err := unix.Fstat(int(seg.file.Fd()), &st); err != nil {
			return fmt.Errorf("segment store: %s: %w", seg.file.Name(), err)
		}
		needBytes -= min(st.Blocks*512, s.geo.segmentBytes)
	}
	free := s.dir.freeBytes()
	switch {
	case needBytes <= 0:
	case free >= 0 && needBytes > free:
		return fmt.Errorf("%w: a capacity of %d bytes takes %d more bytes now, and the file system of %s has %d free: free some, or give the store less: %w",
			kv.ErrFull, s.o.CapacityBytes, needBytes, s.dir.path, free, unix.ENOSPC)
	default:
		s.log.Info("segment store: taking its capacity on the disk now", "dir", s.dir.path, "bytes", needBytes, "free_bytes", free)
	}
	return nil
}

func (s *Store) noSpace(f *os.File, count int, err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("%w: a capacity of %d bytes is %d segments of %d, and for %s there is no space; %d bytes are left on its file system: free some, or give the store less: %w",
			kv.ErrFull, s.o.CapacityBytes, count, s.geo.segmentBytes, f.Name(), s.dir.freeBytes(), err)
	}
	return fmt.Errorf("segment store: taking %d bytes for %s: %w", s.geo.segmentBytes, f.Name(), err)
}

// contents is what the index and the heads of a segment say.
type contents struct {
	seg    *segment
	slots  []int // that have a block; their keys are in the table's slots
	whole  bool  // every page of the index is valid
	unread bool  // something could not be read: there may be more blocks
}

// unseenGenerations is how many generations after the latest are never given: their
// headers may be damaged or lost in a power cut, while their heads and indexes are
// there. It is more than a process begins before the kernel has written the first of
// their headers.
//
// An Open skips a random number of such steps: after a power cut that took every header
// of a process, the next one begins at the same latest header.
const unseenGenerations = 1 << 20

// rebuild fills the table and puts every segment back into its state.
func (s *Store) rebuild() error {
	all := make([]contents, len(s.segments))
	var g errgroup.Group
	g.SetLimit(scanners)
	for i, seg := range s.segments {
		all[i].seg = seg
		if seg.state == full && !seg.foreign {
			g.Go(func() (err error) {
				all[i], err = s.look(seg)
				return err
			})
		}
	}
	if err := g.Wait(); err != nil {
		return err
	}
	slices.SortFunc(all, func(a, b contents) int { return byGeneration(a.seg, b.seg) })
	s.generation = all[len(all)-1].seg.generation + unseenGenerations*(1+rand.Uint64N(1<<20))
	newest := true
	for _, c := range slices.Backward(all) {
		s.place(c, newest)
		newest = newest && len(c.slots) == 0 && !c.unread
		// A block may be in several places: it was carried forward, or quarantined in
		// the newer place and saved before, or could not be read and was saved again. The
		// newest counts: that of the later slot in one segment.
		for _, i := range slices.Backward(c.slots) {
			at := c.seg.first + uint32(i)
			if _, known := s.table.find(s.table.slots[at].key); !known {
				s.table.put(s.table.slots[at].key, at)
			} else {
				c.seg.stale = true
			}
		}
	}
	slices.Reverse(s.full)
	slices.Reverse(s.free)
	return s.resume()
}

// place puts a segment into its list. Writing goes on in the newest one that has blocks.
func (s *Store) place(c contents, newest bool) {
	seg := c.seg
	switch {
	case seg.foreign, c.unread: // recycled in its turn, and not before: the next Open may find more in it
		seg.sealed, seg.unread = true, c.unread
		seg.next, seg.indexed = s.geo.slots, s.geo.indexPages()
		s.full = append(s.full, seg)
	case len(c.slots) == 0:
		seg.state = free
		s.free = append(s.free, seg)
	case newest && c.slots[len(c.slots)-1]+1 < s.geo.slots:
		seg.state = active
		seg.next = c.slots[len(c.slots)-1] + 1
		s.active = seg
	default:
		seg.sealed = c.whole
		seg.next, seg.indexed = s.geo.slots, s.geo.indexPages()
		s.full = append(s.full, seg)
	}
}

// resume prepares the segment that was being written for more blocks. Its index must not
// name slots that are about to be written.
func (s *Store) resume() error {
	if s.active == nil {
		return nil
	}
	seg := s.active
	seg.indexed = seg.next / indexSlots
	stale := make([]byte, (s.geo.indexPages()-seg.indexed)*pageBytes)
	if err := s.writeAt(seg, stale, s.geo.indexAt()+int64(seg.indexed)*pageBytes); err != nil {
		return fmt.Errorf("segment store: %w", err)
	}
	return nil
}

// look finds a segment's blocks: from its index, and from the heads where a page of the
// index is not valid. It writes the keys into slots of the table, which no other goroutine
// uses yet.
func (s *Store) look(seg *segment) (c contents, err error) {
	c = contents{seg: seg, whole: true}
	raw := make([]byte, s.geo.indexPages()*pageBytes)
	if _, err := seg.file.ReadAt(raw, s.geo.indexAt()); err != nil {
		clear(raw) // the heads may be readable
	}
	head := make([]byte, blockhead.Size)
	for n := range s.geo.indexPages() {
		page := raw[n*pageBytes : (n+1)*pageBytes]
		valid := indexValid(page, seg.number, n, seg.generation)
		c.whole = c.whole && valid
		first := n * indexSlots
		for i := first; i < min(first+indexSlots, s.geo.slots); i++ {
			key, ok := kv.Key{}, false
			if valid {
				key, ok = indexed(page, i-first)
			} else {
				var failed error
				if key, ok, failed = s.scan(seg, i, head); failed != nil {
					c.unread = true
				}
			}
			if ok {
				s.table.slots[seg.first+uint32(i)].key = key
				c.slots = append(c.slots, i)
			}
		}
	}
	return c, nil
}

// scan reads a slot's head. One that cannot be read, or is not of the segment's
// generation, is no block. err says that it cannot be read.
func (s *Store) scan(seg *segment, i int, raw []byte) (key kv.Key, ok bool, err error) {
	if _, err := seg.file.ReadAt(raw, s.geo.headAt(i)); err != nil {
		if !kv.IsUnreadable(err) && !kv.IsAway(err) {
			err = nil // the file ends before it
		}
		return kv.Key{}, false, err
	}
	var h blockhead.Head
	if h.Decode(raw) != nil || h.Sequence != seg.generation || h.Namespace != s.o.Namespace || h.BlockBytes != s.o.Layout.BlockBytes {
		return kv.Key{}, false, nil
	}
	return h.Key, true, nil
}
