package index

import (
	"context"
	"slices"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// Delete forgets keys on all ranks, and returns how many there were.
func (x *Index) Delete(ctx context.Context, name pageservice.Space, keys []string) (int, error) {
	if err := x.usable(ctx); err != nil {
		return 0, err
	}
	batch, err := keysOf(keys)
	if err != nil {
		return 0, err
	}
	defer batch.release()
	s := x.find(name)
	if s == nil {
		return 0, nil
	}
	if err := s.lock(ctx); err != nil {
		return 0, err
	}
	busy := s.anyBusy(batch)
	if s.unlogged() != nil && slices.Contains(batch.ids, none) {
		// The log may have a key that this index forgot, and the next host that leads would find it again.
		s.mu.Unlock()
		if err := s.logTrimmed(ctx); err != nil {
			return 0, err
		}
		if err := s.lock(ctx); err != nil {
			return 0, err
		}
		busy = s.anyBusy(batch)
	}
	for busy {
		if err := s.lockAgain(ctx); err != nil {
			return 0, err
		}
		busy = s.anyBusy(batch)
	}
	var ids []uint32
	for _, id := range batch.ids {
		if id != none && !s.entries.at(id).removing {
			s.entries.at(id).removing = true
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		s.mu.Unlock()
		return 0, nil
	}
	return len(ids), s.logRemoval(ctx, ids, func() {
		now := x.now()
		for _, id := range ids {
			s.quarantine(id, now)
		}
	})
}

// anyBusy reports whether a change of one of the keys is being logged.
func (s *space) anyBusy(keys *batch) bool {
	keys.lookUp(s)
	for _, id := range keys.ids {
		if id != none && s.entries.at(id).busy() {
			return true
		}
	}
	return false
}

// logRemoval logs that keys have no pages any more, then applies it. The caller holds the
// lock, and logRemoval releases it.
func (s *space) logRemoval(ctx context.Context, ids []uint32, apply func()) error {
	for _, id := range ids {
		s.entries.at(id).removing = true
	}
	return s.write(ctx, func(err error) {
		if err == nil {
			apply()
			return
		}
		s.unmark(ids)
	}, s.pagesOf(ids, freed)...)
}

// pagesOf returns records of the pages of keys.
func (s *space) pagesOf(ids []uint32, kind kind) (recs []*record) {
	for _, r := range s.ranks {
		rec := &record{kind: kind, rank: r.id}
		for _, id := range ids {
			if r.has(id) {
				rec.pages = append(rec.pages, r.page(id)-1)
			}
		}
		if len(rec.pages) > 0 {
			recs = append(recs, rec)
		}
	}
	return recs
}

// quarantine forgets a key, and puts its pages into quarantine.
func (s *space) quarantine(id uint32, now int64) {
	until := max(now, s.entries.at(id).leaseUntil.Load()) + s.index.quarantine()
	for _, r := range s.ranks {
		if r.has(id) {
			page := s.detach(r, id)
			r.hold(page, hold{state: deleted, until: until})
		}
	}
}

// Clear forgets all keys and ends all reservations. Ranks stay known.
func (x *Index) Clear(ctx context.Context, name pageservice.Space) error {
	if err := x.usable(ctx); err != nil {
		return err
	}
	s := x.find(name)
	if s == nil {
		return nil
	}
	if err := s.lockAlone(ctx); err != nil {
		return err
	}
	return s.write(ctx, func(err error) {
		s.exclusive = false
		if err == nil {
			s.clear(x.now())
			s.hidden = false
		}
	}, &record{kind: cleared})
}

// clear forgets all keys and ends all reservations.
func (s *space) clear(now int64) {
	for id, e := range s.entries.all {
		e.removing = true
		s.quarantine(id, now)
	}
	for _, r := range s.ranks {
		s.sweep(r, now)
		for page := range r.owner {
			switch h := r.holdOf(uint32(page)); {
			case h == nil:
			case h.state == writable:
				r.change(uint32(page), deleted, h.until+s.index.quarantine()+s.index.lateWrites())
			default:
				r.change(uint32(page), deleted, h.until)
			}
		}
	}
}

// inUseUntil returns the time at which the last client that was told of a page of the
// rank stops using it.
func (s *space) inUseUntil(r *rank) int64 {
	last := int64(never)
	for page, o := range r.owner {
		switch {
		case o == 0:
		case o&heldBit != 0:
			h := r.holdOf(uint32(page))
			until := h.until
			if h.state == writable {
				until += s.index.lateWrites()
			}
			last = max(last, until)
		default:
			last = max(last, s.entries.at(o-1).leaseUntil.Load())
		}
	}
	return last
}
