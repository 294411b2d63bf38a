package embedded

import (
	"context"
	"fmt"

	"github.com/kv3fs/kv3fs/internal/pages"
)

// lookBound is how many keys one call looks at, per list, in search of victims.
// Lists are in the order of use and leases begin with a use, so those that may go are
// near the old end.
const lookBound = 16 << 10

// evictable tells whether nobody can have been told of a key's pages so recently
// that they must not be written.
func (s *space) evictable(e *entry, now int64) bool {
	return !e.leaving && e.writing == 0 && e.leaseUntil.Load()+s.book.quarantine() <= now
}

// victims finds keys to evict until n of them have a page on r, or any n when r is
// nil. It returns them, and their pages on r in the same order. First go keys that
// nobody completed in the time that a reservation lasts: they are of no use, on
// whatever rank.
func (s *space) victims(r *rank, n int, now int64) (victims, taken []uint32) {
	looked := 0
	add := func(id uint32) {
		victims = append(victims, id)
		if r == nil || r.has(id) {
			n--
		}
		if r != nil && r.has(id) {
			taken = append(taken, r.page(id)-1)
		}
	}
	s.partial.Victims(func(id uint32) bool {
		e := s.entries.at(id)
		if n == 0 || looked == lookBound || e.lastUse.Load()+s.book.reserve() > now {
			return false
		}
		looked++
		if s.evictable(e, now) {
			add(id)
		}
		return true
	})
	looked = 0
	s.complete.Victims(func(id uint32) bool {
		if n == 0 || looked == lookBound {
			return false
		}
		looked++
		if (r == nil || r.has(id)) && s.evictable(s.entries.at(id), now) {
			add(id)
		}
		return true
	})
	return victims, taken
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

// Evict implements pages.Book.
func (b *Book) Evict(ctx context.Context, name pages.Space, n int) (int, error) {
	if err := b.usable(ctx); err != nil {
		return 0, err
	}
	if n < 0 {
		return 0, fmt.Errorf("%w: evict %d keys", pages.ErrInvalid, n)
	}
	s := b.find(name)
	if s == nil {
		return 0, nil
	}
	if err := s.lock(ctx); err != nil {
		return 0, err
	}
	victims, _ := s.victims(nil, n, b.now())
	if len(victims) == 0 {
		s.mu.Unlock()
		return 0, nil
	}
	return len(victims), s.leave(ctx, victims, func() { s.evict(nil, victims) })
}
