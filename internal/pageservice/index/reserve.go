package index

import (
	"context"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// Reserve finds a page of the rank for each key, to be written and then confirmed. A key
// that already has a page on this rank keeps it (Present); equal keys of one batch get
// one page. If there are not enough free pages, keys are evicted; if even that is not
// enough, a key gets None. With allOrNothing, either every key that needs a page gets
// one or none does.
//
// A reservation ends by itself after Options.Reserve. The pages of Present keys are
// protected for as long, because the client may write them again.
func (x *Index) Reserve(ctx context.Context, name pageservice.Space, rankID int, keys []string, allOrNothing bool) ([]pageservice.Grant, error) {
	if err := x.usable(ctx); err != nil {
		return nil, err
	}
	batch, err := keysOf(keys)
	if err != nil {
		return nil, err
	}
	defer batch.release()
	x.reopen(x.now())
	s := x.find(name)
	if s == nil {
		return nil, pageservice.ErrUnknownRank
	}
	batch.hashForLog()
	if err := s.lock(ctx); err != nil {
		return nil, err
	}
	r, err := s.rankOf(rankID)
	if err != nil {
		s.mu.Unlock()
		return nil, err
	}
	now := x.now()
	s.sweep(r, now)

	grants := make([]pageservice.Grant, len(keys))
	wanted := s.present(r, batch, grants, now)
	if len(wanted.first) > 0 {
		if err := x.room(); err != nil {
			s.mu.Unlock()
			return nil, err
		}
	}
	got, lack := s.findPages(r, wanted, allOrNothing, now)
	for lack == ofTime || lack == ofMemory && x.mayReclaim() {
		if err := s.findMore(ctx, lack, got.victims); err != nil {
			return nil, err
		}
		if r, err = s.rankOf(rankID); err != nil {
			s.mu.Unlock()
			return nil, err
		}
		now = x.now()
		s.sweep(r, now)
		wanted = s.present(r, batch, grants, now)
		got, lack = s.findPages(r, wanted, allOrNothing, now)
	}
	if lack == ofMemory {
		x.warnFull(s)
	}
	s.take(r, wanted, &got)
	if len(got.pages) == 0 {
		s.mu.Unlock()
		wanted.grant(grants, nil)
		s.counters.refused.Add(int64(len(wanted.first)))
		return grants, nil
	}
	wanted.grant(grants, got.pages)
	recs := []*record{{kind: reserved, rank: r.id, pages: got.pages, hashes: got.hashes}}
	var more refill
	if lack == ofNothing && !got.last {
		more = s.refill(r, now)
		recs = append(recs, s.refillRecords(r, &more)...)
	}
	if err := s.write(ctx, func(err error) {
		s.reserved(r, got, err)
		s.refilled(r, &more, err)
	}, recs...); err != nil {
		return nil, err
	}
	s.counters.reserved.Add(int64(len(got.pages)))
	s.counters.refused.Add(int64(len(wanted.first) - len(got.pages)))
	return grants, nil
}

// wanted holds the distinct keys of a batch that need a page.
type wanted struct {
	distinct
	of []int // for every key of the batch: the index of its distinct key, or -1
}

// grant sets the page of each key that needs one, or None for those that get none.
func (w *wanted) grant(grants []pageservice.Grant, got []uint32) {
	for i, n := range w.of {
		switch {
		case n < 0:
		case n < len(got):
			grants[i] = pageservice.Grant{Page: int64(got[n])}
		default:
			grants[i] = pageservice.Grant{Page: pageservice.None}
		}
	}
}

// present grants the keys that the rank has, protects them, and returns the others.
func (s *space) present(r *rank, keys *batch, grants []pageservice.Grant, now int64) *wanted {
	keys.lookUp(s)
	w := &wanted{distinct: keys.distinct(), of: make([]int, len(keys.ids))}
	for i, id := range keys.ids {
		w.of[i] = -1
		if id != none {
			if e := s.entries.at(id); r.has(id) && !e.removing {
				grants[i] = pageservice.Grant{Page: int64(r.page(id) - 1), Present: true}
				e.extend(now + s.index.reserve())
				e.lastUse.Store(now)
				continue
			}
		}
		w.of[i] = w.add(i)
	}
	return w
}

// reservation holds the pages of a reservation while it is being logged.
type reservation struct {
	pages   []uint32
	hashes  []uint64
	texts   []uint16 // see hold.textBytes
	nFree   int      // how many of the pages, the first ones, are free ones
	nSoft   int      // how many of those, the first ones, a restart would not find free
	last    bool     // it takes from those that are kept free
	victims []uint32 // entries that are evicted; the other pages are theirs
	at      int64
}

// lack is why a search found fewer pages than were wanted, if a caller can do anything
// about it.
type lack int

const (
	ofNothing lack = iota
	ofTime         // there are more keys to look at
	ofMemory       // there are more pages, but no memory for what must be known of them
)

// findPages finds pages: free ones first, then those of victims, which it marks, and then those that
// are kept free. If it would have to look at more keys than searchBound, it takes none.
func (s *space) findPages(r *rank, w *wanted, allOrNothing bool, now int64) (g reservation, l lack) {
	n := len(w.first)
	if n == 0 || r.closedUntil > now {
		return g, ofNothing
	}
	g.at = now
	free := int(min(int64(n), r.numFree()))
	affordable := min(free, s.affordable(r, w.b, w.first, s.room()))
	g.nFree = int(min(int64(affordable), max(0, r.numFree()-s.toKeep(r))))
	if g.nFree < n {
		// The pages of victims need memory as well until the victims are gone.
		most := s.affordable(r, w.b, w.first[g.nFree:], s.transientRoom())
		victims, more := s.victims(r, min(n-g.nFree, most), now)
		if last := min(n-g.nFree-len(victims), affordable-g.nFree); last > 0 && !more {
			g.nFree, g.last = g.nFree+last, true
		}
		enough := g.nFree+len(victims) == n
		switch {
		case more:
			l = ofTime
		case !enough && (g.nFree < free || len(victims) == most):
			l = ofMemory
		}
		if more || !enough && allOrNothing {
			s.unmark(victims)
			g.nFree, g.last = 0, false
		} else {
			g.victims = victims
		}
	}
	return g, l
}

// findMore releases the lock to find what a search for pages lacked: it lets others have
// the lock, or looks for memory. Victims that were found are not evicted yet. After an
// error the lock is not held.
func (s *space) findMore(ctx context.Context, l lack, found []uint32) error {
	s.unmark(found)
	if l == ofTime {
		return s.yield(ctx)
	}
	s.mu.Unlock()
	if err := s.index.reclaim(ctx, s); err != nil {
		return err
	}
	return s.lock(ctx)
}

// take takes the pages that were found.
func (s *space) take(r *rank, w *wanted, g *reservation) {
	n := g.nFree + len(g.victims)
	g.pages, g.hashes, g.texts = make([]uint32, 0, n), make([]uint64, 0, n), make([]uint16, 0, n)
	for _, i := range w.first[:n] {
		g.hashes = append(g.hashes, w.b.logged[i])
		g.texts = append(g.texts, uint16(textBytes(w.b.keys[i])))
	}
	g.nSoft = int(min(int64(g.nFree), r.numFree()-r.numKept()))
	for i, hash := range g.hashes[:g.nFree] {
		page := r.take(hold{state: writable, busy: true, textBytes: g.texts[i], hash: hash, at: g.at, until: g.at + s.index.reserve()})
		g.pages = append(g.pages, page)
	}
	for _, id := range g.victims {
		g.pages = append(g.pages, r.page(id)-1)
	}
}

// reserved applies a reservation, or undoes it.
func (s *space) reserved(r *rank, g reservation, err error) {
	if err != nil {
		for i, page := range g.pages[:g.nFree] {
			r.drop(page)
			if i < g.nSoft {
				r.release(page)
			} else {
				r.kept = append(r.kept, page)
			}
		}
		s.unmark(g.victims)
		return
	}
	until := g.at + s.index.reserve()
	for _, page := range g.pages[:g.nFree] {
		r.change(page, writable, until)
	}
	for i, page := range s.evict(r, g.victims) {
		r.hold(page, hold{state: writable, textBytes: g.texts[g.nFree+i], hash: g.hashes[g.nFree+i], at: g.at, until: until})
	}
}
