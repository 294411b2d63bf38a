package index

import (
	"context"
	"slices"
	"strings"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// Confirm makes written pages belong to their keys, durably: when it returns, they
// survive the loss of power. Then it gives up the pages in release. It ignores, and
// counts in Confirmed.Ignored, what is not the caller's to confirm or to release: a page
// that was never reserved for this key, or whose reservation has ended and that another
// writer has now, or that belongs to a key. Nor does it confirm a page whose reservation is younger than the call, which
// may have had to wait: another writer of the same key has it.
//
// A release names no key, and may come late from a former writer of the page. So the
// quarantine begins as if the reservation had lasted, and the present writer may still
// confirm the page.
func (x *Index) Confirm(ctx context.Context, name pageservice.Space, rankID int, written []pageservice.Placed, release []int64) (pageservice.Confirmed, error) {
	var nothing pageservice.Confirmed
	if err := x.usable(ctx); err != nil {
		return nothing, err
	}
	called := x.now()
	keys, err := newBatch(len(written), func(i int) string { return written[i].Key })
	if err != nil {
		return nothing, err
	}
	defer keys.release()
	keys.hashForLog()
	s := x.find(name)
	if s == nil {
		return nothing, pageservice.ErrUnknownRank
	}
	if err := s.lock(ctx); err != nil {
		return nothing, err
	}
	r, err := s.rankOf(rankID)
	if err != nil {
		s.mu.Unlock()
		return nothing, err
	}
	s.sweep(r, x.now())
	for s.anyPending(r, written, keys) {
		if err := s.lockAgain(ctx); err != nil {
			return nothing, err
		}
		if r, err = s.rankOf(rankID); err != nil {
			s.mu.Unlock()
			return nothing, err
		}
		s.sweep(r, x.now())
	}

	// A copy, because confirmed may run when the caller is gone.
	c := confirmation{called: called, release: slices.Clone(release)}
	for i, w := range written {
		s.plan(r, &c, w, keys, i)
	}
	if len(c.pages) == 0 {
		s.giveUp(r, &c)
		s.assert()
		s.mu.Unlock()
		return c.done, nil
	}
	rec := &record{kind: confirmed, rank: r.id, pages: c.pages, keys: make([]string, 0, len(c.ids))}
	for _, id := range c.ids {
		rec.keys = append(rec.keys, s.entries.at(id).key)
	}
	if err := s.write(ctx, func(err error) { s.confirmed(r, &c, err) }, rec); err != nil {
		return nothing, err
	}
	return c.done, nil
}

// confirmation holds the effects of a call of Confirm.
type confirmation struct {
	called  int64    // when
	pages   []uint32 // that will belong to their keys
	ids     []uint32 // the keys' entries
	second  []uint32 // that are given up, because their keys have another page here
	release []int64
	done    pageservice.Confirmed
}

// anyPending reports whether a change of one of the pages, or of the key that it was
// written for, is being logged: what to do depends on its outcome.
func (s *space) anyPending(r *rank, written []pageservice.Placed, keys *batch) bool {
	keys.lookUp(s)
	for i, w := range written {
		if !r.used(w.Page) {
			continue
		}
		if h := r.holdOf(uint32(w.Page)); h != nil && h.busy {
			return true
		}
		if id := keys.ids[i]; id != none && (s.entries.at(id).removing || r.page(id) == pagePending) {
			return true
		}
	}
	return false
}

// plan decides what the confirmation of one page does, and marks the page as busy.
func (s *space) plan(r *rank, c *confirmation, w pageservice.Placed, keys *batch, i int) {
	if !r.used(w.Page) {
		c.done.Ignored++
		return
	}
	page := uint32(w.Page)
	id, known := keys.entry(s, i)
	h := r.holdOf(page)
	switch {
	case known && r.page(id) == page+1:
		c.done.Keys++ // again
	case h == nil || h.hash != keys.logged[i] || h.state == deleted || h.at > c.called:
		c.done.Ignored++
	case h.busy:
		c.done.Keys++ // twice in one batch
	case known && r.page(id) != 0:
		h.busy = true
		c.second = append(c.second, page)
	default:
		if !known {
			id = s.newEntry(keys.hashes[i], strings.Clone(w.Key))
		}
		h.busy = true
		s.entries.at(id).writing++
		r.setPage(id, pagePending)
		c.pages = append(c.pages, page)
		c.ids = append(c.ids, id)
	}
}

// confirmed applies a confirmation, or undoes it.
func (s *space) confirmed(r *rank, c *confirmation, err error) {
	now := s.index.now()
	for i, page := range c.pages {
		id := c.ids[i]
		e := s.entries.at(id)
		e.writing--
		r.setPage(id, 0)
		if err != nil {
			h := r.holdOf(page)
			r.change(page, h.state, h.until)
			if e.on == 0 && e.writing == 0 {
				s.removeKey(id, e)
			}
		} else {
			r.drop(page)
			e.lastUse.Store(now)
			s.attach(r, id, page)
		}
		s.relistIfIdle(id, e)
	}
	if err != nil {
		for _, page := range c.second {
			h := r.holdOf(page)
			r.change(page, h.state, h.until)
		}
		return
	}
	c.done.Keys += len(c.pages)
	s.giveUp(r, c)
}

// giveUp puts into quarantine the pages that their writer released, and those whose keys
// have another page. A release names no key: it may come late, from a former writer of
// the page, and must not shorten the time of the present one.
func (s *space) giveUp(r *rank, c *confirmation) {
	now := s.index.now()
	for _, page := range c.second { // it was written, so no write of it is under way
		r.change(page, givenUp, now+s.index.quarantine())
		c.done.Released++
	}
	for _, page := range c.release {
		if r.used(page) {
			h := r.holdOf(uint32(page))
			if h != nil && !h.busy && (h.state == writable || h.state == late) && h.at <= c.called {
				r.change(uint32(page), givenUp, max(now, h.at+s.index.reserve())+s.index.quarantine()+s.index.lateWrites())
				c.done.Released++
				continue
			}
		}
		c.done.Ignored++
	}
	s.counters.confirmed.Add(int64(c.done.Keys))
	s.counters.released.Add(int64(c.done.Released))
	s.counters.ignored.Add(int64(c.done.Ignored))
}
