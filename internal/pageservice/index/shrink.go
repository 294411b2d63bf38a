package index

import "slices"

// live returns about the memory that the space would have without unused parts. The
// caller holds the lock.
func (s *space) live() int64 {
	bytes := spaceBytes + s.entries.textBytes + int64(s.byKey.len)*(entryBytes+slotBytes+pageBytes)
	for _, r := range s.ranks {
		holds := r.reserved + r.quarantined
		bytes += rankBytes + r.promised + r.keyed*(2*pageBytes+dueBytes) + holds*(holdBytes+dueBytes+2*pageBytes+confirmBytes)
	}
	return bytes
}

// wasteful reports whether shrinking the space would give back half of its memory.
func (s *space) wasteful() bool {
	return s.used.Load() > 2*s.live()+2*slabLen*entryBytes
}

// shrink makes all tables anew, as large as they have to be. The caller holds the lock
// alone.
func (s *space) shrink() {
	old := s.entries
	s.entries, s.byKey = table{}, newKeyMap(s.byKey.len)
	moved := make([]uint32, old.used)
	for id, e := range old.all {
		moved[id] = s.newEntry(e.hash, e.key)
		to := s.entries.at(moved[id])
		to.lastUse.Store(e.lastUse.Load())
		to.leaseUntil.Store(e.leaseUntil.Load())
		to.on, to.counted, to.complete = e.on, e.counted, e.complete
	}
	for _, r := range s.ranks {
		r.shrink(moved)
	}
	s.recount()
	s.countMemory()
	s.assert()
}

// shrink makes the tables of a rank anew; moved are the new numbers of entries. Pages
// behind the last one that has an owner or is kept free become as if they had never been used.
func (r *rank) shrink(moved []uint32) {
	used := 0
	for page, o := range r.owner {
		if o != 0 {
			used = page + 1
		}
	}
	for _, page := range r.kept {
		used = max(used, int(page)+1)
	}
	old := *r
	r.mentioned = max(r.mentioned, len(r.owner))
	r.owner, r.order = make([]uint32, used), order{serial: make([]uint32, used)}
	r.pageOf, r.spare, r.kept = nil, nil, slices.Clone(old.kept)
	r.free = slices.DeleteFunc(slices.Clone(old.free), func(page uint32) bool { return int(page) >= used })
	r.holds, r.due, r.dueBound = make([]hold, 0, old.reserved+old.quarantined), nil, 0
	for page, o := range old.owner[:used] {
		switch {
		case o == 0:
		case o&heldBit != 0:
			h := old.holds[o&^heldBit]
			r.owner[page] = heldBit | uint32(len(r.holds))
			r.holds = append(r.holds, h)
			r.ends(uint32(page), h.until)
		default:
			id := moved[o-1]
			r.owner[page] = id + 1
			r.setPage(id, uint32(page)+1)
		}
	}
}
