package index

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// searchBound is how many keys a search for victims looks at before it lets others have
// the lock. When it continues, it does not begin with the same keys again.
const searchBound = 4 << 10

// victims finds up to n keys to evict that have a page on r, or on any rank if r is nil,
// and marks them. If it finds fewer before it has looked at all keys, it reports more.
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
			id, ok := s.nextVictim(r, now, &looks)
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
		e.removing, e.unlisted = true, true
		victims = append(victims, best)
	}
	return victims, false
}

// unmark undoes the marks of keys that were to be removed.
func (s *space) unmark(ids []uint32) {
	for _, id := range ids {
		e := s.entries.at(id)
		e.removing = false
		s.relistIfIdle(id, e)
	}
}

// relistIfIdle is called when a change of a key has ended. It puts the key back into the
// order of eviction if the key was taken out meanwhile and no other change is under way.
func (s *space) relistIfIdle(id uint32, e *entry) {
	if e.unlisted && !e.busy() {
		s.relist(id, e)
	}
}

// evict forgets keys. It returns their pages on r, without an owner and in the order of
// the keys; their pages on other ranks become free.
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

// Evict forgets up to n keys as if their pages were needed, respecting leases, and
// returns how many it forgot.
func (x *Index) Evict(ctx context.Context, name pageservice.Space, n int) (int, error) {
	if err := x.usable(ctx); err != nil {
		return 0, err
	}
	if n < 0 {
		return 0, fmt.Errorf("%w: evict %d keys; want 0 or more", pageservice.ErrInvalid, n)
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
			// Remove these before searching on: keys must not stay marked while others have
			// the lock.
			if err := s.logRemoval(ctx, victims, func() { s.evict(nil, victims) }); err != nil {
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
