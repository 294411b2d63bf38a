package index

// keep implements pageservice.LogOwner.Keep. It sees the index as it is after everything
// logged so far, and repeats what is true of the pages that the record names, unless a later record says it.
//
// A page may have changed its owner without a record, see record. Then keep has one that says so, and a host that begins
// behind the old record knows the same as one that has read it: else one could give a page out to which the other,
// when it led, has sent readers.
func (x *Index) keep(b []byte) [][]byte {
	old := &record{}
	if old.decode(b) != nil {
		return [][]byte{append([]byte(nil), b...)} // keep what cannot be understood
	}
	s := x.find(old.space)
	if s == nil {
		if old.kind != forgot {
			return nil
		}
		return [][]byte{(&record{kind: reopened, space: old.space}).encode()}
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	r := s.ranks[old.rank]
	switch {
	case old.kind == forgot:
		return s.encode([]*record{s.keepForgot()})
	case old.kind == cleared, old.kind == rested, old.kind == reopened, r == nil:
		return nil // what it ended was older, and has been dropped before
	case old.kind == rankSet:
		return s.encode([]*record{s.rankRecord(r)})
	}
	return s.encode(s.keepPages(r, old))
}

// keepForgot returns a record for one that says that a rank was forgotten, which may be known again.
func (s *space) keepForgot() *record {
	if s.closedUntil <= s.index.now() {
		return &record{kind: reopened}
	}
	unknown := 0
	for s.ranks[unknown] != nil {
		unknown++
	}
	return &record{kind: forgot, rank: unknown}
}

func (s *space) keepPages(r *rank, old *record) (recs []*record) {
	same := &record{kind: confirmed, rank: r.id}
	held := &record{kind: reserved, rank: r.id}
	quarantined := &record{kind: freed, rank: r.id} // the deletion of their keys may name no pages
	free := &record{kind: rested, rank: r.id}
	unowned := free
	if r.trimmed > 0 && r.closedUntil > s.index.now() { // clients may use pages of which this index knows nothing
		unowned = quarantined
	}
	for i, page := range old.pages {
		if int64(page) >= r.numPages {
			continue // of an earlier life of the rank, with other pages
		}
		if !r.used(int64(page)) {
			unowned.pages = append(unowned.pages, page)
			continue
		}
		switch h, o := r.holdOf(page), r.owner[page]; {
		case o == 0:
			unowned.pages = append(unowned.pages, page)
		case h != nil && h.state == deleted:
			quarantined.pages = append(quarantined.pages, page)
		case h != nil && (h.busy || old.kind == reserved && h.hash == old.hashes[i]): // a busy one may not be in the log yet, or never
			held.pages, held.hashes = append(held.pages, page), append(held.hashes, h.hash)
		case h == nil && old.kind == confirmed && s.entries.at(o-1).key == old.keys[i]:
			same.pages, same.keys = append(same.pages, page), append(same.keys, old.keys[i])
		}
	}
	for _, rec := range []*record{same, held, quarantined, free} {
		if len(rec.pages) > 0 {
			recs = append(recs, rec)
		}
	}
	return recs
}
