package index

import (
	"context"
	"fmt"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// Initialize makes a rank known, or finds it again. A rank that comes back with another
// number of pages has another model or file: its old pages are dropped
// (RankState.Dropped), and ranks of the space that have yet another number do not count
// for completeness until their next request. Pages that a client was told of lately are
// not given out before it has stopped using them.
func (x *Index) Initialize(ctx context.Context, name pageservice.Space, rankID int, o pageservice.RankOptions) (pageservice.RankState, error) {
	var none pageservice.RankState
	if err := x.usable(ctx); err != nil {
		return none, err
	}
	switch {
	case rankID < 0 || rankID > maxRank:
		return none, fmt.Errorf("%w: rank %d; want 0 to %d", pageservice.ErrInvalid, rankID, maxRank)
	case o.NumPages < 1 || o.NumPages > pageservice.MaxPages:
		return none, fmt.Errorf("%w: %d pages; want 1 to %d", pageservice.ErrInvalid, o.NumPages, int64(pageservice.MaxPages))
	}
	s, err := x.lockSpace(ctx, name)
	if err != nil {
		return none, err
	}
	old := s.ranks[rankID]
	if old == nil && len(s.ranks) >= pageservice.MaxRanks {
		s.unlockAlone()
		return none, fmt.Errorf("%w: a space has at most %d ranks; forget one", pageservice.ErrInvalid, pageservice.MaxRanks)
	}
	if old != nil && old.numPages == o.NumPages {
		_, err := s.rankOf(rankID)
		s.unlockAlone()
		return pageservice.RankState{Known: true}, err
	}

	s.reopen(x.now())
	if err := x.room(); err != nil {
		s.discard()
		s.unlockAlone()
		return none, err
	}
	if old == nil && !x.fits(rankBytes) {
		s.discard()
		s.unlockAlone()
		return none, x.full("rank")
	}
	next := &record{kind: rankSet, rank: rankID, numPages: o.NumPages}
	recs := []*record{next}
	var state pageservice.RankState
	var withheld []uint32
	closedUntil := max(s.closedUntil, x.closedUntil())
	if old != nil { // with another number of pages
		state.Dropped = old.keyed
		next.dropped = true
		closedUntil = max(s.inUseUntil(old)+x.quarantine(), old.closedUntil)
		recs = append(recs, s.staleRecords(next)...)
		withheld = s.withhold(old)
	}
	next.closed = closedUntil > x.now()
	err = s.write(ctx, func(err error) {
		s.exclusive = false
		s.unmark(withheld)
		if err != nil {
			s.discard()
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
	return state, nil
}

// lockSpace locks a space for an exclusive change, and creates it if need be.
func (x *Index) lockSpace(ctx context.Context, name pageservice.Space) (*space, error) {
	for {
		if x.find(name) == nil {
			if err := x.discardEmpty(); err != nil {
				return nil, err
			}
			if !x.fits(spaceBytes + rankBytes) {
				return nil, x.full("set of keys")
			}
		}
		s := x.findOrCreate(name)
		if err := s.lockAlone(ctx); err != nil {
			return nil, err
		}
		if !s.discarded {
			return s, nil
		}
		s.unlockAlone()
	}
}

// discardEmpty discards spaces without ranks, if there may be no more spaces, or there is
// no memory for another.
func (x *Index) discardEmpty() error {
	all := x.all()
	if len(all) < pageservice.MaxSpaces && x.fits(spaceBytes+rankBytes) {
		return nil
	}
	now := x.now()
	for _, s := range all {
		s.mu.Lock()
		if !s.exclusive && s.inflight == 0 {
			s.reopen(now)
			s.discard()
		}
		s.mu.Unlock()
	}
	if len(x.all()) < pageservice.MaxSpaces {
		return nil
	}
	return fmt.Errorf("%w: there are at most %d spaces; forget the ranks of one", pageservice.ErrInvalid, pageservice.MaxSpaces)
}

// discard removes a space that has no ranks, and nothing to remember. One that was removed before may have a successor of its name.
func (s *space) discard() {
	if s.discarded || len(s.ranks) > 0 || s.closedUntil != 0 {
		return
	}
	s.discarded = true
	s.index.mu.Lock()
	defer s.index.mu.Unlock()
	s.index.dropSpace(s)
}

// addRank adds a rank of which nothing is known yet.
func (s *space) addRank(id int) *rank {
	r := &rank{id: id}
	s.ranks[id] = r
	s.index.liveBytes.Add(s.recordBytes())
	s.index.frames.Add(rankBytes)
	return r
}

// staleRecords returns records that mark other ranks as stale, because a rank came back
// with another number of pages: those that do not have the new number belong to an
// engine that no longer exists.
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

// setRank applies a rankSet record, without recounting.
func (s *space) setRank(rec *record) {
	r := s.ranks[rec.rank]
	if r == nil {
		r = s.addRank(rec.rank)
	}
	if rec.dropped {
		s.dropPages(r)
		r.mentioned = 0
	}
	r.numPages, r.stale = rec.numPages, rec.stale
}

// dropPages removes the owners of all pages of a rank.
func (s *space) dropPages(r *rank) {
	for _, o := range r.owner {
		if o != 0 && o&heldBit == 0 {
			s.detach(r, o-1)
		}
	}
	*r = rank{id: r.id, numPages: r.numPages, stale: r.stale, closedUntil: r.closedUntil, mentioned: max(r.mentioned, len(r.owner))}
}

// Forget drops all pages of a rank. It is unknown afterwards, does not count for
// completeness, and has to be initialised to come back. Then it gets no pages before the
// clients that were told of its old ones have stopped using them.
func (x *Index) Forget(ctx context.Context, name pageservice.Space, rankID int) error {
	if err := x.usable(ctx); err != nil {
		return err
	}
	s := x.find(name)
	if s == nil {
		return pageservice.ErrUnknownRank
	}
	if err := s.lockAlone(ctx); err != nil {
		return err
	}
	r := s.ranks[rankID]
	if r == nil {
		s.unlockAlone()
		return pageservice.ErrUnknownRank
	}
	closedUntil := max(r.closedUntil, s.inUseUntil(r)+x.quarantine())
	dropped := r.keyed
	withheld := s.withhold(r)
	err := s.write(ctx, func(err error) {
		s.exclusive = false
		s.unmark(withheld)
		if err != nil {
			return
		}
		s.forgetRank(rankID, closedUntil)
		s.recount()
		s.counters.droppedPages.Add(dropped)
	}, &record{kind: forgot, rank: rankID})
	if err != nil {
		return err
	}
	x.o.Logger.Warn("rank was forgotten, its pages are dropped",
		"namespace", name.Namespace, "set", name.Set, "rank", rankID, "dropped", dropped)
	return nil
}

// forgetRank makes a rank unknown. If it comes back, it gets pages from closedUntil on.
func (s *space) forgetRank(id int, closedUntil int64) {
	s.close(closedUntil)
	if r := s.ranks[id]; r != nil {
		s.dropPages(r)
		delete(s.ranks, id)
		s.index.liveBytes.Add(-s.recordBytes())
		s.index.frames.Add(-rankBytes)
	}
}
