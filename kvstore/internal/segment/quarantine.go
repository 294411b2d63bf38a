package segment

// quarantine removes a damaged block for good, from the table and by wiping its head. It
// reports whether the block was still there. The caller pins the segment.
func (s *Store) quarantine(p place) (was bool) {
	s.mu.Lock()
	was = s.table.remove(p.at())
	if was {
		p.seg.stale = true // until its head is wiped, which may fail
		s.count.CorruptBlocks.Add(1)
		s.count.QuarantinedBlocks.Add(1)
	}
	s.mu.Unlock()
	if !was {
		return false // quarantined, deleted, or carried away whole
	}
	if err := s.wipe(p.seg, []int{p.slot}); err != nil {
		s.log.Warn("segment store: a damaged block cannot be marked", "file", p.seg.file.Name(), "slot", p.slot, "err", err)
	}
	return true
}
