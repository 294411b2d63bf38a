package segment

import "time"

// A device may answer nothing while it is flushed: a virtual disk stood still for 160 ms
// after 400 MiB, and the 99th percentile of loads beside a save was that. So full segments are
// flushed while nobody loads, or when they have waited for as long as a power cut may undo.
const (
	quietBeforeFlush = 200 * time.Millisecond
	mostUnflushed    = time.Minute
)

// sealAll writes the index of segments that are full, flushes them, and drops blocks whose
// shards stopped coming.
func (s *Store) sealAll() {
	idle := max(s.o.Timeout/4, 1)
	for wait := idle; s.group.Err() == nil; {
		s.waitFor(s.sealerWanted, wait)
		s.drop(s.unfinished.Expire(s.o.Timeout))
		for s.group.Err() == nil {
			seg := s.unsealed()
			if seg == nil {
				break
			}
			s.seal(seg)
			s.unpin(seg)
		}
		seg, waits := s.takeUnflushed()
		switch {
		case seg != nil:
			s.flushSealed(seg)
			wait = 1 // somebody may load by now
		case waits:
			wait = min(idle, quietBeforeFlush)
		default:
			wait = idle
		}
	}
}

// isQuiet reports whether nobody has loaded for a moment.
func (s *Store) isQuiet() bool {
	return s.reading.Load() == 0 && time.Now().UnixNano()-s.lastRead.Load() >= int64(quietBeforeFlush)
}

// takeUnflushed pins and returns a segment that is to be flushed now, or returns nil and
// whether one is to be flushed later.
func (s *Store) takeUnflushed() (_ *segment, waits bool) {
	quiet := s.isQuiet()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, seg := range s.full {
		if !seg.sealed || seg.unflushed.IsZero() {
			continue
		}
		if quiet || time.Since(seg.unflushed) >= mostUnflushed {
			seg.pins.Add(1)
			seg.unflushed = time.Time{}
			return seg, true
		}
		waits = true
	}
	return nil, waits
}

// flushSealed makes a segment durable, and unpins it. If that fails, its blocks are checked as
// all are when they are loaded.
func (s *Store) flushSealed(seg *segment) {
	if err := s.flush(seg); err != nil {
		s.log.Warn("segment store: a segment is not flushed", "file", seg.file.Name(), "err", err)
	}
	s.unpin(seg)
}

// unsealed pins and returns a full segment whose last block is written and which has no
// index, or returns nil.
func (s *Store) unsealed() *segment {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, seg := range s.full {
		if !seg.sealed && seg.writing == 0 {
			seg.pins.Add(1)
			seg.sealed, seg.unflushed = true, time.Now()
			return seg
		}
	}
	return nil
}

// seal writes the index. If it fails, the heads are read next time.
func (s *Store) seal(seg *segment) {
	if err := s.writeIndex(seg); err != nil {
		s.log.Warn("segment store: a segment is not sealed", "file", seg.file.Name(), "err", err)
	}
}

// sealAtClose writes the index of a segment that was written to, full or not. The next Open
// knows from its last key where to go on.
func (s *Store) sealAtClose(seg *segment) {
	s.mu.RLock() // an overdue call may come back just now
	skip := seg.sealed || seg.state == free
	s.mu.RUnlock()
	if skip {
		return
	}
	if err := s.writeIndex(seg); err != nil {
		s.log.Warn("segment store: a segment is not sealed", "file", seg.file.Name(), "err", err)
	}
}

// writeIndex writes all of a segment's index.
func (s *Store) writeIndex(seg *segment) error {
	seg.disk.Lock()
	defer seg.disk.Unlock()
	pages := s.geo.indexPages()
	raw := make([]byte, pages*pageBytes)
	for n := range pages {
		s.fillIndex(seg, n, raw[n*pageBytes:(n+1)*pageBytes])
	}
	seg.indexed = pages // also of a write that is cut short
	return s.writeAt(seg, raw, s.geo.indexAt())
}

// fillIndex makes the n-th page of an index from the table.
func (s *Store) fillIndex(seg *segment, n int, page []byte) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	first := n * indexSlots
	for i := first; i < min(first+indexSlots, s.geo.slots); i++ {
		if at := seg.first + uint32(i); s.table.has(at) {
			setIndexed(page, i-first, s.table.slots[at].key)
		}
	}
	sealIndex(page, seg.number, n, seg.generation)
}
