package index

import (
	"context"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// Delete implements pageservice.Book.
func (x *Index) Delete(ctx context.Context, name pageservice.Space, keys []string) (int, error) {
	if err := x.usable(ctx); err != nil {
		return 0, err
	}
	batch, err := keysOf(keys)
	if err != nil {
		return 0, err
	}
	defer batch.done()
	s := x.find(name)
	if s == nil {
		return 0, nil
	}
	if err := s.lock(ctx); err != nil {
		return 0, err
	}
	for s.anyBusy(batch) {
		if err := s.lockAgain(ctx); err != nil {
			return 0, err
		}
	}
	var ids []uint32
	for _, id := range batch.ids {
		if id != none && !s.entries.at(id).leaving {
			s.entries.at(id).leaving = true
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		s.mu.Unlock()
		return 0, nil
	}
	return len(ids), s.leave(ctx, ids, func() {
		now := x.now()
		for _, id := range ids {
			s.rest(id, now)
		}
	})
}

// anyBusy tells whether a change of one of the keys is under way.
func (s *space) anyBusy(keys *batch) bool {
	keys.look(s)
	for _, id := range keys.ids {
		if id != none && s.entries.at(id).busy() {
			return true
		}
	}
	return false
}

// leave writes that keys have no pages any more, then applies it. It is called with
// the lock and gives it up.
func (s *space) leave(ctx context.Context, ids []uint32, apply func()) error {
	var recs []*record
	for _, r := range s.ranks {
		rec := &record{kind: freed, rank: r.id}
		for _, id := range ids {
			if r.has(id) {
				rec.pages = append(rec.pages, r.page(id)-1)
			}
		}
		if len(rec.pages) > 0 {
			recs = append(recs, rec)
		}
	}
	for _, id := range ids {
		s.entries.at(id).leaving = true
	}
	return s.write(ctx, func(err error) {
		if err == nil {
			apply()
			return
		}
		s.stay(ids)
	}, recs...)
}

// rest forgets a key, whose pages rest.
func (s *space) rest(id uint32, now int64) {
	until := max(now, s.entries.at(id).leaseUntil.Load()) + s.index.quarantine()
	for _, r := range s.ranks {
		if r.has(id) {
			page := s.detach(r, id)
			r.hold(page, hold{state: forgotten, until: until})
		}
	}
}

// Clear implements pageservice.Book.
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
		}
	}, &record{kind: cleared})
}

// clear forgets all keys and ends all reservations.
func (s *space) clear(now int64) {
	for id, e := range s.entries.all {
		e.leaving = true
		s.rest(id, now)
	}
	for _, r := range s.ranks {
		s.sweep(r, now)
		for page := range r.owner {
			switch h := r.holdOf(uint32(page)); {
			case h == nil:
			case h.state == writable:
				r.change(uint32(page), forgotten, h.until+s.index.quarantine())
			default:
				r.change(uint32(page), forgotten, h.until)
			}
		}
	}
}

// lastTouch is when the last of those who were told of a page of the rank will have
// left it alone.
func (s *space) lastTouch(r *rank) int64 {
	last := int64(never)
	for page, o := range r.owner {
		switch {
		case o == 0:
		case o&heldBit != 0:
			last = max(last, r.holdOf(uint32(page)).until)
		default:
			last = max(last, s.entries.at(o-1).leaseUntil.Load())
		}
	}
	return last
}
