package index

import (
	"fmt"
	"strings"
)

// replayer reads the records of the log. What was told to clients before is not known
// any more in all points, so the worst is assumed: every key may have been located, or
// its page handed out to be written again, just now; and so may every page that was
// ever reserved, or given up, and is not known to be somebody else's.
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

// longestRest is how long a page rests that somebody may have been told of just now.
func (b *Book) longestRest() int64 { return b.longestTouch() + b.quarantine() }

// replay does what one record says.
func (s *space) replay(rec *record) error {
	switch rec.kind {
	case rankSet:
		s.setRank(rec)
		s.ranks[rec.rank].closedUntil = 0
		if rec.closed {
			s.ranks[rec.rank].closedUntil = s.book.longestRest()
		}
		return nil
	case forgot:
		s.forgetRank(rec.rank, s.book.longestRest())
		return nil
	case cleared:
		for _, r := range s.ranks {
			for page, o := range r.owner {
				if o != 0 {
					s.replayFreed(r, uint32(page))
				}
			}
		}
		return nil
	}
	r := s.ranks[rec.rank]
	if r == nil {
		// Compaction has moved what is known of the rank behind what its pages are.
		r = s.addRank(rec.rank)
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
			s.replayReserved(r, page, rec.hashes[i])
		case confirmed:
			s.replayConfirmed(r, page, keys, i)
		case freed:
			s.replayFreed(r, page)
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

func (s *space) replayReserved(r *rank, page uint32, hash uint64) {
	s.disown(r, page)
	r.hold(page, hold{state: late, hash: hash, until: s.book.reserve() + s.book.quarantine()})
}

func (s *space) replayFreed(r *rank, page uint32) {
	s.disown(r, page)
	r.hold(page, hold{state: forgotten, until: s.book.longestRest()})
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
