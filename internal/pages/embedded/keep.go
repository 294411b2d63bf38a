package embedded

// keep says what is still needed of a record: journal.Options.Keep. It sees the index
// as it is after everything written so far. A page that a later record names too is
// kept only where both say the same.
func (b *Book) keep(line []byte) [][]byte {
	old := &record{}
	if old.decode(line) != nil {
		return [][]byte{append([]byte(nil), line...)} // was understood once; it stays
	}
	s := b.find(old.space)
	s.mu.RLock()
	defer s.mu.RUnlock()
	switch old.kind {
	case rankSet:
		return s.encode([]*record{s.rankRecord(s.ranks[old.rank])})
	case cleared:
		var recs []*record
		for _, r := range s.ranks {
			recs = append(recs, s.keepForgotten(r, nil)...)
		}
		return s.encode(recs)
	}
	r := s.ranks[old.rank]
	switch old.kind {
	case reserved:
		return s.encode(s.keepReserved(r, old))
	case confirmed:
		return s.encode(s.keepConfirmed(r, old))
	default:
		return s.encode(s.keepForgotten(r, old.pages))
	}
}

func (s *space) keepReserved(r *rank, old *record) []*record {
	rec := &record{kind: reserved, rank: r.id}
	for i, page := range old.pages {
		if !r.used(int64(page)) {
			continue // of a time when the rank had other pages
		}
		if h := r.holdOf(page); h != nil && h.state != forgotten && h.hash == old.hashes[i] {
			rec.pages = append(rec.pages, page)
			rec.hashes = append(rec.hashes, h.hash)
			rec.atNs = max(rec.atNs, s.book.wall(h.at))
		}
	}
	return rec.ifAny()
}

func (s *space) keepConfirmed(r *rank, old *record) []*record {
	rec := &record{kind: confirmed, rank: r.id}
	for i, page := range old.pages {
		if !r.used(int64(page)) {
			continue
		}
		if o := r.owner[page]; o != 0 && o&heldBit == 0 && s.entries.at(o-1).key == string(old.keys[i]) {
			rec.pages = append(rec.pages, page)
			rec.keys = append(rec.keys, old.keys[i])
		}
	}
	return rec.ifAny()
}

// keepForgotten keeps the pages, nil for all, that rest since their keys were deleted.
func (s *space) keepForgotten(r *rank, old []uint32) []*record {
	rec := &record{kind: freed, rank: r.id}
	add := func(page uint32) {
		if h := r.holdOf(page); h != nil && h.state == forgotten {
			rec.pages = append(rec.pages, page)
			rec.atNs = max(rec.atNs, s.book.wall(h.until))
		}
	}
	for _, page := range old {
		if r.used(int64(page)) {
			add(page)
		}
	}
	if old == nil {
		for page := range r.owner {
			add(uint32(page))
		}
	}
	return rec.ifAny()
}

// ifAny is the record, when it names a page.
func (r *record) ifAny() []*record {
	if len(r.pages) == 0 {
		return nil
	}
	return []*record{r}
}
