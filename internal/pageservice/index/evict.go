package index

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// searchBound is how many keys are looked at in search of victims before others get the
// lock. Keys that are not victims are not looked at again for some time.
const searchBound = 4 << 10

// victims finds up to n keys to evict that have a page on r, or on any rank when r is
// nil, and marks them. It may find fewer before it has looked at all keys; then it
// says that there are more to look at.
func (s *space) victims(r *rank, n int, now int64) (victims []uint32, more bool) {
	ranks := []*rank{r}
	if r == nil {
		ranks = slices.Collect(maps.Values(s.ranks))
	}
	looks := s.index.o.searchBound
	for len(victims) < n {
		var from *rank
		var best uint32
		for _, r := range ranks {
			id, ok := s.first(r, now, &looks)
			if ok && (from == nil || r.order.ready[0].at < from.order.ready[0].at) {
				from, best = r, id
			}
		}
		if looks == 0 {
			return victims, true
		}
		if from == nil {
			break
		}
		from.order.ready.pop()
		e := s.entries.at(best)
		e.leaving, e.missed = true, true
		victims = append(victims, best)
	}
	return victims, false
}

// stay lets keys be that were to leave.
func (s *space) stay(ids []uint32) {
	for _, id := range ids {
		e := s.entries.at(id)
		e.leaving = false
		s.idle(id, e)
	}
}

// idle is called when a change of a key has ended. Meanwhile it may have come to the
// head of the order, in vain.
func (s *space) idle(id uint32, e *entry) {
	if e.missed && !e.busy() {
		s.relist(id, e)
	}
}

// evict forgets keys. Their pages on r are returned, without an owner and in the
// order of keys; those on other ranks are free.
func (s *space) evict(r *rank, victims []uint32) (taken []uint32) {
	for _, id := range victims {
		for _, q := range s.ranks {
			if !q.has(id) {
				continue
			}
			if page := s.detach(q, id); q == r {
				taken = append(taken, page)
			} else {
				q.release(page)
			}
		}
	}
	s.counters.evicted.Add(int64(len(victims)))
	return taken
}

// Evict implements pageservice.Book.
func (x *Index) Evict(ctx context.Context, name pageservice.Space, n int) (int, error) {
	if err := x.usable(ctx); err != nil {
		return 0, err
	}
	if n < 0 {
		return 0, fmt.Errorf("%w: evict %d keys", pageservice.ErrInvalid, n)
	}
	s := x.find(name)
	if s == nil {
		return 0, nil
	}
	if err := s.lock(ctx); err != nil {
		return 0, err
	}
	for evicted := 0; ; {
		victims, more := s.victims(nil, n-evicted, x.now())
		if len(victims) > 0 {
			// At once, since marked keys may not be left without the lock.
			if err := s.leave(ctx, victims, func() { s.evict(nil, victims) }); err != nil {
				return evicted, err
			}
			evicted += len(victims)
		} else {
			s.mu.Unlock()
		}
		if !more {
			return evicted, nil
		}
		if err := s.lock(ctx); err != nil {
			return evicted, err
		}
	}
}
