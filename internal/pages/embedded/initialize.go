package embedded

import (
	"context"
	"fmt"

	"github.com/kv3fs/kv3fs/internal/pages"
)

// Initialize implements pages.Book.
func (b *Book) Initialize(ctx context.Context, name pages.Space, rankID int, o pages.RankOptions) (pages.RankState, error) {
	var none pages.RankState
	if err := b.usable(ctx); err != nil {
		return none, err
	}
	switch {
	case rankID < 0 || rankID > maxRank:
		return none, fmt.Errorf("%w: rank %d; 0 to %d", pages.ErrInvalid, rankID, maxRank)
	case o.NumPages < 1 || o.NumPages > pages.MaxPages:
		return none, fmt.Errorf("%w: %d pages; 1 to %d", pages.ErrInvalid, o.NumPages, int64(pages.MaxPages))
	}
	s := b.make(name)
	if err := s.lockAlone(ctx); err != nil {
		return none, err
	}
	old := s.ranks[rankID]
	if old != nil && old.numPages == o.NumPages {
		_, err := s.rankOf(rankID)
		s.unlockAlone()
		return pages.RankState{Known: true}, err
	}

	next := &record{kind: rankSet, rank: rankID, numPages: o.NumPages}
	recs := []*record{next}
	state := pages.RankState{Known: old != nil}
	var closedUntil, numPages int64
	if old != nil {
		closedUntil, numPages = old.closedUntil, old.numPages
	}
	if old != nil && numPages != o.NumPages {
		state = pages.RankState{Dropped: old.keyed}
		next.dropped = true
		closedUntil = max(closedUntil, s.lastTouch(old)+b.quarantine())
		recs = append(recs, s.staleRecords(next)...)
	}
	next.closed = closedUntil > b.now()
	err := s.write(ctx, func(err error) {
		s.exclusive = false
		if err != nil {
			return
		}
		for _, rec := range recs {
			s.setRank(rec)
		}
		s.ranks[rankID].closedUntil = closedUntil
		s.recount()
		s.counters.droppedPages.Add(state.Dropped)
	}, recs...)
	if err != nil {
		return none, err
	}
	if next.dropped {
		b.o.Logger.Warn("page store: rank came back with another number of pages, its old pages are dropped",
			"namespace", name.Namespace, "set", name.Set, "rank", rankID,
			"pages", o.NumPages, "pages_before", numPages, "dropped", state.Dropped)
	}
	return state, nil
}

// staleRecords says which other ranks belong to an engine that is no more, since this
// one came back with another number of pages: those that do not have the new number.
func (s *space) staleRecords(back *record) (recs []*record) {
	for id, r := range s.ranks {
		if id != back.rank && r.numPages != back.numPages && !r.stale {
			rec := s.rankRecord(r)
			rec.stale = true
			recs = append(recs, rec)
		}
	}
	return recs
}

// setRank does what a rankSet record says, except for recounting.
func (s *space) setRank(rec *record) {
	r := s.ranks[rec.rank]
	if r == nil {
		r = &rank{id: rec.rank}
		s.ranks[rec.rank] = r
	}
	if rec.dropped {
		s.dropPages(r)
	}
	r.numPages, r.stale = rec.numPages, rec.stale
}

// dropPages takes all pages of a rank from whoever has them.
func (s *space) dropPages(r *rank) {
	for _, o := range r.owner {
		if o != 0 && o&heldBit == 0 {
			s.detach(r, o-1)
		}
	}
	*r = rank{id: r.id, numPages: r.numPages, stale: r.stale, closedUntil: r.closedUntil}
}
