package embedded

import (
	"fmt"
	"strings"
)

// replayer reads the records of the log. What was told to clients before is not known
// any more in all points, so the worst is assumed: every key may have been located, or
// its page handed out to be written again, just now; and every page that was reserved
// lately may still be written.
func (b *Book) replayer() func(line []byte) error {
	rec := &record{}
	return func(line []byte) error {
		if err := rec.decode(line); err != nil {
			return err
		}
		return b.make(rec.space).replay(rec)
	}
}

// longestTouch is how long somebody may be at a page that he was told of.
func (b *Book) longestTouch() int64 { return max(b.lease(), b.reserve()) }

// replay does what one record says.
func (s *space) replay(rec *record) error {
	switch rec.kind {
	case rankSet:
		// A clock that was set back must not close the rank for long.
		rec.atNs = min(rec.atNs, s.book.wall(s.book.longestTouch()+s.book.quarantine()))
		s.setRank(rec)
		return nil
	case cleared:
		for _, r := range s.ranks {
			for page, o := range r.owner {
				if o != 0 {
					s.replayFreed(r, uint32(page), rec.atNs)
				}
			}
		}
		return nil
	}
	r := s.ranks[rec.rank]
	if r == nil {
		// Compaction has moved what is known of the rank behind what its pages are.
		r = &rank{id: rec.rank}
		s.ranks[rec.rank] = r
	}
	keys, err := keysOf(rec.keys)
	if err != nil {
		return err
	}
	defer keys.done()
	keys.look(s)
	for i, page := range rec.pages {
		r.use(page)
		switch rec.kind {
		case reserved:
			s.replayReserved(r, page, rec.hashes[i], rec.atNs)
		case confirmed:
			s.replayConfirmed(r, page, keys, i)
		case freed:
			s.replayFreed(r, page, rec.atNs)
		}
	}
	return nil
}

// disown takes a page from whoever has it.
func (s *space) disown(r *rank, page uint32) {
	switch o := r.owner[page]; {
	case o == 0:
	case o&heldBit != 0:
		r.drop(page)
	default:
		s.detach(r, o-1)
	}
}

func (s *space) replayConfirmed(r *rank, page uint32, keys *batch, i int) {
	id, known := s.replayed(keys, i)
	if known && r.page(id) == page+1 {
		return
	}
	s.disown(r, page)
	if id, known = s.replayed(keys, i); known && r.has(id) {
		s.detach(r, id)
		id, known = s.replayed(keys, i)
	}
	if !known {
		id = s.newEntry(keys.hashes[i], strings.Clone(keys.keys[i]))
		s.entries.at(id).leaseUntil.Store(s.book.longestTouch())
	}
	s.attach(r, id, page)
}

// replayed finds the entry of a key, which may have been forgotten since the batch was
// looked up.
func (s *space) replayed(keys *batch, i int) (id uint32, known bool) {
	if id = keys.ids[i]; id != none {
		if e := s.entries.at(id); e.on == 0 || e.key != keys.keys[i] {
			keys.ids[i] = none
		}
	}
	return keys.again(s, i)
}

func (s *space) replayReserved(r *rank, page uint32, hash uint64, atNs int64) {
	s.disown(r, page)
	at := min(s.book.fromWall(atNs), 0) // before now, whatever the clock was set to
	until := at + s.book.reserve()
	rested := until + s.book.quarantine()
	switch {
	case until > 0:
		r.hold(page, hold{state: writable, hash: hash, at: at, until: until})
	case rested > 0:
		r.hold(page, hold{state: late, hash: hash, at: at, until: rested})
	}
}

func (s *space) replayFreed(r *rank, page uint32, atNs int64) {
	s.disown(r, page)
	until := min(s.book.fromWall(atNs), s.book.longestTouch()+s.book.quarantine())
	if until > 0 {
		r.hold(page, hold{state: forgotten, until: until})
	}
}

// ready is called when the whole log was read, before the book is used.
func (s *space) ready() error {
	for _, r := range s.ranks {
		if int64(len(r.owner)) > r.numPages {
			return fmt.Errorf("rank %d of %d pages uses %d", r.id, r.numPages, len(r.owner))
		}
		for page, o := range r.owner {
			if o == 0 {
				r.release(uint32(page))
			}
		}
	}
	s.recount()
	return nil
}
