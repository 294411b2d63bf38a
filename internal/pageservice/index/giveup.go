package index

import (
	"context"
	"fmt"
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// GiveUp forgets all keys of a space before the file of a rank is removed; ranks stay known. If a
// client may still use a page that it was told of, it changes nothing and returns ErrInUse. From
// then on no key is found; once it returns nil, none is after the loss of power, either.
func (x *Index) GiveUp(ctx context.Context, name pageservice.Space, rankID int) error {
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
	if s.ranks[rankID] == nil {
		s.unlockAlone()
		return pageservice.ErrUnknownRank
	}
	now := x.now()
	for _, r := range s.ranks {
		s.sweep(r, now)
		if until := max(s.inUseUntil(r)+x.quarantine(), r.closedUntil); until > now {
			s.unlockAlone()
			return fmt.Errorf("%w for %v more", pageservice.ErrInUse, time.Duration(until-now))
		}
	}
	withheld := s.withhold(nil)
	return s.write(ctx, func(err error) {
		s.exclusive = false
		if err != nil {
			s.unmark(withheld)
			return
		}
		for _, r := range s.ranks {
			s.dropPages(r) // without quarantine: nobody uses them
		}
		s.recount()
	}, &record{kind: cleared})
}

// withhold marks the keys of a rank, or all if r is nil, as being removed, and returns them. Readers get leases while a
// change is being logged, but not of those: what is being logged may say that no client uses their pages.
func (s *space) withhold(r *rank) (ids []uint32) {
	for id, e := range s.entries.all {
		if r == nil || r.has(id) {
			e.removing = true
			ids = append(ids, id)
		}
	}
	return ids
}

// Hide has nobody find a key of a space from now on, until Clear: their pages have other bytes, or will have. It does
// not wait for the disk, and a restart undoes it.
func (x *Index) Hide(name pageservice.Space) {
	if s := x.find(name); s != nil {
		s.mu.Lock()
		s.hidden = true
		s.mu.Unlock()
	}
}

// Ranks returns the ranks that are known, by space.
func (x *Index) Ranks() map[pageservice.Space][]int {
	ranks := map[pageservice.Space][]int{}
	for _, s := range x.all() {
		s.mu.RLock()
		for id := range s.ranks {
			ranks[s.name] = append(ranks[s.name], id)
		}
		s.mu.RUnlock()
	}
	return ranks
}
