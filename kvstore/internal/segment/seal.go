package segment

// sealAll writes the index of segments that are full, and drops blocks whose shards stopped
// coming.
func (s *Store) sealAll() {
	idle := max(s.o.Timeout/4, 1)
	for s.group.Err() == nil {
		s.waitFor(s.sealerWanted, idle)
		s.drop(s.unfinished.Expire(s.o.Timeout))
		for s.group.Err() == nil {
			seg := s.unsealed()
			if seg == nil {
				break
			}
			s.seal(seg)
			s.unpin(seg)
		}
	}
}

// unsealed pins and returns a full segment whose last block is written and which has no
// index, or returns nil.
func (s *Store) unsealed() *segment {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, seg := range s.full {
		if !seg.sealed && seg.writing == 0 {
			seg.pins.Add(1)
			seg.sealed = true
			return seg
		}
	}
	return nil
}

// seal writes the index and makes the whole segment durable, so that a power cut costs at
// most the segments that are not full. If it fails, the heads are read next time.
func (s *Store) seal(seg *segment) {
	err := s.writeIndex(seg)
	if err == nil {
		err = s.flush(seg)
	}
	if err != nil {
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
