package index

// keep implements pageservice.LogOwner.Keep. It sees the index as it is after everything
// logged so far, and repeats what is true of the pages that the record names. It does no
// harm if a later record says the same.
func (x *Index) keep(b []byte) [][]byte {
	old := &record{}
	if old.decode(b) != nil {
		return [][]byte{append([]byte(nil), b...)} // keep what cannot be understood
	}
	s := x.find(old.space)
	if s == nil {
		return nil
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	r := s.ranks[old.rank]
	switch {
	case old.kind == cleared, old.kind == rested:
		return nil // what it ended was older, and has been dropped before
	case old.kind == forgot && r == nil && s.closedUntil > x.now():
		return s.encode([]*record{old}) // because the rank may come back
	case old.kind == forgot, r == nil:
		return nil
	case old.kind == rankSet:
		return s.encode([]*record{s.rankRecord(r)})
	}
	return s.encode(s.keepPages(r, old))
}

func (s *space) keepPages(r *rank, old *record) (recs []*record) {
	same := &record{kind: old.kind, rank: r.id}
	quarantined := &record{kind: freed, rank: r.id} // the deletion of their keys may name no pages
	for i, page := range old.pages {
		if !r.used(int64(page)) {
			continue // of an earlier life of the rank, with other pages
		}
		h, o := r.holdOf(page), r.owner[page]
		switch {
		case h != nil && h.state == deleted:
			quarantined.pages = append(quarantined.pages, page)
		case h != nil && old.kind == reserved && h.hash == old.hashes[i]:
			same.pages = append(same.pages, page)
			same.hashes = append(same.hashes, h.hash)
		case h == nil && o != 0 && old.kind == confirmed && s.entries.at(o-1).key == old.keys[i]:
			same.pages = append(same.pages, page)
			same.keys = append(same.keys, old.keys[i])
		}
	}
	for _, rec := range []*record{same, quarantined} {
		if len(rec.pages) > 0 {
			recs = append(recs, rec)
		}
	}
	return recs
}
